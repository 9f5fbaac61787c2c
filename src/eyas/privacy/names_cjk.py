"""Finds names of people and towns in Chinese, Japanese and Korean texts, which have no capitals and few spaces.

    text                    evidence for a name
    给楼上的韦秋菊写张纸条      a surname, two characters of given names, and other words before and after it
    姓名：阿依古丽·艾山         a label, or a dot between two parts of a transliterated name
    担当の佐々木さん           an honorific behind a surname
    제 남편 선우재하는         a relation before it, and a particle behind it

A name is a surname and a given name; each part and both sides of it give points. The search looks at a fixed number of
characters around each surname, so it takes linear time.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from eyas.privacy.cjk_words import HAN, KATAKANA, LETTER, find_script, load_cjk_words, normalize_cjk
from eyas.privacy.span import Span

_LETTERS = re.compile(rf"[{LETTER}]+")
_VALUE = re.compile(
    rf"[:：=]\s{{0,4}}[\"'“「『]?([{LETTER}]{{1,12}}(?:[ 　・·＝][{LETTER}]{{1,12}}){{0,3}})(?=[^:：=\w]|$)",
    re.MULTILINE,
)
_DOTTED = re.compile(rf"[{LETTER}]{{1,12}}(?:[・·•＝][{LETTER}]{{1,12}})+")
_DOTTED_KATAKANA = re.compile(r"[ァ-ヺー]{1,12}(?:[・･＝][ァ-ヺー]{1,12})+")
_HAN_RUN = re.compile(r"[々ヶ㐀-䶿一-鿿]+(?:[ァ-ヺー]{1,4}[子江美代枝]?(?![ァ-ヺー]))?")
_TITLED_KANA = re.compile(
    r"(?<![ァ-ヺー])([ァ-ヺー]{2,12}|[ぁ-ゖ]{2}[子江美代枝世])(?:さん|様|さま|君|くん|ちゃん|氏|先生)"
)
_SIGNATURE = re.compile(rf"\n[ 　]*([{LETTER}]{{2,5}})[ 　]*\Z")
_ANNOUNCED = {
    "zh": re.compile(r"(?=([小阿][㐀-䶿一-鿿]))"),
    "ko": re.compile(r"(?<![가-힣])([가-힣]{2,8})"),
}
_COUNT = re.compile(r"[\d一二两三四五六七八九十百千万几数多每这那][ ]?\Z")  # before a measure word
_KOREAN_TITLED = re.compile(r"(?<![가-힣])([가-힣]{3,5}) (?:씨|님|양|군)")
_OPENING = "\"'“‘「『（(： :　*_"
_CASES = frozenset("은는이가을를의도만와과로에")  # the commonest Korean particles
_QUOTES = "\"' "
_MAX_PARTICLES = 8  # characters
_MAX_UNLISTED = 6  # characters of a Japanese name that is in no list
_CLEAR, _SURE, _SIDE, _OPEN = 2, 3, 2, 1  # points
_ENOUGH = 5  # points of a name
_SIZES = {"zh": (2, 1), "ja": (3, 2, 1, 4), "ko": (2, 1, 3)}  # characters of a given name, the usual number first


def find_cjk_names(text: str, language: str) -> list[Span]:
    """Returns the spans of names, of kind "PERSON", sorted.

    Args:
        text: The text.
        language: One of CJK_LANGUAGES.
    """
    search = _start_search(text, language)
    spans: list[Span] = []
    found = [*search.find_values(), *search.find_dotted(), *search.find_names()]
    if language == "ja":
        found += [*search.find_unlisted(), *search.find_titled_kana()]
    else:
        found += [*search.find_announced(), *search.find_unlisted_korean()]
    for span in sorted(found, key=lambda span: (span.start, -span.end)):
        if not spans or span.start >= spans[-1].end:
            spans.append(span)
    return spans


def find_cjk_places(text: str, language: str, is_personal: bool, people: Sequence[Span]) -> Iterator[Span]:
    """Yields the spans of listed towns, of kind "LOCATION".

    Args:
        text: The text.
        language: One of CJK_LANGUAGES.
        is_personal: The text is about a person. In another one, a town counts only behind words such as "I live in".
        people: The names in the text, which are no towns.
    """
    search, done = _start_search(text, language), 0
    names = frozenset(k for span in people for k in range(span.start, span.end))
    for match in search.words["towns"].starts.finditer(search.text):
        span = search.find_town(match.start(), is_personal) if match.start() >= done else None
        if span and span.start not in names:
            done = span.end
            yield span


@lru_cache(maxsize=4)
def _start_search(text: str, language: str) -> "_Search":
    return _Search(normalize_cjk(text, language), language)


class _Context:
    """The ordinary words in one text, and the words around a name. Arguments `start`, `end`, `at` are positions."""

    def __init__(self, text: str, language: str) -> None:
        self.text, self.language, self.words = text, language, load_cjk_words(language)
        self.letters = bytearray(len(text) + 2)  # 1: a letter of the three languages
        for run in _LETTERS.finditer(text):
            self.letters[run.start() : run.end()] = b"\1" * (run.end() - run.start())
        self.inside = bytearray(len(text) + 1)  # 1: inside an ordinary word that begins before this position
        self.begins: dict[int, int] = {}  # start of an ordinary word -> its end
        at = 0
        while at < len(text):
            end = self._word_end(at)
            if end:
                self.begins[at] = end
                self.inside[at + 1 : end] = b"\1" * (end - at - 1)
            at = end or at + 1

    def _is_letter(self, at: int) -> bool:
        return at >= 0 and bool(self.letters[at])

    def _word_end(self, start: int) -> int:
        """Returns the end of the longest word at `start`; 0 if there is none. Korean words begin after a space."""
        if not self.letters[start] or (self.language == "ko" and self._is_letter(start - 1)):
            return 0
        size = self.words.words.size_at(self.text, start)
        return size and start + size

    def _holds_word(self, start: int, end: int) -> bool:
        return any(at in self.begins for at in range(start, end))

    def _collides(self, start: int, end: int) -> bool:
        """Returns True if an ordinary word covers a part of a name. A Korean word must reach its end."""
        if self.language == "ko":
            return self.begins.get(start, 0) >= end
        if self.language == "ja" and self.text[start:end] in self.words.surnames:  # "二階堂" holds the word "二階"
            return bool(self.inside[start]) or any(self.begins.get(at, 0) > end for at in range(start, end))
        return bool(self.inside[start]) or self._holds_word(start, end)

    def _left(self, start: int) -> tuple[int, str]:
        """Returns the points of the text before a name, and the rule of the word that announces the name."""
        text, words = self.text, self.words
        before = start
        while before and before > start - 4 and text[before - 1] in _OPENING:
            before -= 1
        lead = words.leads.word_before(text, before)
        copula = "" if lead else words["copulas"].word_before(text, before)
        lead = lead or (copula and words.leads.word_before(text, before - len(copula)))
        if lead and (self.language != "ko" or before < start):
            return _SURE, words.rules[lead]
        if not self._is_letter(start - 1):
            return _SIDE, ""
        if self.language == "ko":
            return -1, ""
        if self.language == "ja" and not HAN.match(text[start - 1]):
            return (0 if KATAKANA.match(text, start) and KATAKANA.match(text, start - 1) else _OPEN), ""
        known = words.words.word_before(text, start)
        return int(bool(known) or text[start - 1] in words.characters("characters_before_names")), ""

    def _right(self, end: int, alone: bool = False) -> int:
        """Returns the points of the text behind a name; -1 if no name ends there. alone: it is a surname only."""
        text, words = self.text, self.words
        at = end + (self.language != "zh" and text[end : end + 1] in (" ", "　"))
        size = words["honorifics"].size_at(text, at)
        if self.language == "ko" and at == end and size == 1 and text[at] != "씨":
            size = 0  # "평양" holds no name before the honorific 양
        is_whole = self.language == "ko" or self.begins.get(at, 0) <= at + size  # a Korean word may hold a particle
        fits = size > 0 and is_whole and (size > 1 or alone or self.language != "zh")
        if fits and (self.language != "ko" or self._is_particle(at + size)):
            return _SURE
        if not self.letters[end]:
            return _SIDE
        if self.language == "ko":
            return _SIDE if self._is_particle(end) else -1
        if self.language == "ja" and not HAN.match(text[end]):
            return 0 if KATAKANA.match(text, end) and KATAKANA.match(text, end - 1) else _OPEN
        return int(bool(self._word_end(end)) or text[end] in words.characters("characters_after_names"))

    def _is_particle(self, at: int) -> bool:
        """Returns True if a Korean word ends at a position, or nothing but particles follows there."""
        end = at
        while self.letters[end]:
            end += 1
            if end - at > _MAX_PARTICLES:
                return False
        return end == at or self.text[at:end] in self.words["particles_after_names"]

    def _word_before(self, end: int, table: str) -> str:
        """Returns the longest entry of a table that ends at a position, with quotes and blanks between."""
        while end and self.text[end - 1] in _QUOTES:
            end -= 1
        return self.words[table].word_before(self.text, end)


class _Search(_Context):
    """The search for names and towns in one text."""

    def find_values(self) -> Iterator[Span]:
        """Yields the names behind labels: "姓名：王小明"."""
        labels = ("labels_before_names", "labels_of_last_names")
        for match in _VALUE.finditer(self.text):
            start, end = match.span(1)
            if any(self._word_before(match.start(), label) for label in labels) and not self._is_word(start, end):
                yield Span(start, self._without_honorific(start, end), "PERSON", 0.85, "builtin.field")
        signature = _SIGNATURE.search(self.text)
        if signature and self.words.surnames.size_at(signature[1], 0) and not self._holds_word(*signature.span(1)):
            yield Span(*signature.span(1), "PERSON", 0.9, "builtin.closing")

    def _is_word(self, start: int, end: int) -> bool:
        value, words = self.text[start:end], self.words
        is_name = bool(words.surnames.size_at(value, 0)) or value in words.given
        return value in words.words or (not is_name and self._holds_word(start, end))

    def _without_honorific(self, start: int, end: int) -> int:
        size = len(self.words["honorifics"].word_before(self.text, end))
        return len(self.text[: end - size].rstrip()) if 0 < size < end - start else end

    def find_dotted(self) -> Iterator[Span]:
        """Yields names of several parts with a dot between: "阿依古丽·艾山", "キム・ドヒョン"."""
        if self.language == "ko":
            return
        for match in (_DOTTED_KATAKANA if self.language == "ja" else _DOTTED).finditer(self.text):
            start, end = match.span()
            dots = [at for at in range(start, end) if not self.letters[at]]
            if self.language == "zh":  # words around the name stand in the same run of characters
                while start < dots[0] and not self._is_foreign(start, dots[0]):
                    start += 1
                while end > dots[-1] + 1 and not self._is_foreign(dots[-1] + 1, end):
                    end -= 1
                is_longer = end - dots[-1] > 2 and end < match.end()
                end -= is_longer and self.text[end - 1] in self.words.characters("characters_after_names")
            else:
                end = self._without_honorific(start, end)
            parts = re.split(r"[・·•･＝]", self.text[start:end])
            if all(parts) and len(parts) > 1 and not any(part in self.words.words for part in parts):
                yield Span(start, end, "PERSON", 0.6, f"builtin.{self._left(start)[1] or 'listed'}")

    def _is_foreign(self, start: int, end: int) -> bool:
        foreign = self.words.characters("transliteration_characters")
        return not self._holds_word(start, end) and foreign.issuperset(self.text[start:end])

    def find_town(self, start: int, is_personal: bool) -> Span | None:
        """Returns the listed town at `start`, if it tells something about a person."""
        text, words = self.text, self.words
        size = words["towns"].size_at(text, start)
        lives = bool(self._word_before(start, "words_of_living"))
        if not size or not (is_personal or lives) or (self.language == "ko" and self._is_letter(start - 1)):
            return None
        if self.language == "ja" and start and HAN.match(text, start - 1):
            return None
        end = start + size
        ending = words["endings_of_places"].word_before(text, end)
        end -= len(ending) if size - len(ending) > 1 else 0  # the ending stays: "倉吉市" -> "倉吉"
        behind = end + words["endings_of_places"].size_at(text, end)
        at = behind + text.startswith(" ", behind)
        is_other = self.language == "ko" and not self._is_particle(behind)
        if is_other or words["words_after_public_places"].size_at(text, at):
            return None
        return Span(start, end, "LOCATION", 0.8 if lives else 0.5)

    def find_names(self) -> Iterator[Span]:
        """Yields surnames with given names, surnames with honorifics, and given names alone."""
        done = 0
        for match in self.words.starts.finditer(self.text):
            start = match.start()
            if start < done:
                continue
            left, rule = self._left(start)
            span = self._name_at(start, left, rule) if left >= 0 else None
            if span:
                done = span.end
                yield span

    def _name_at(self, start: int, left: int, rule: str) -> Span | None:
        """Returns the name that begins at `start` and has the most points, or None."""
        known = self._known_name_at(start, left, rule)
        best, points = None, 0
        for size in range(5, 0, -1):
            surname = self.text[start : start + size]
            if len(surname) < size or surname not in self.words.surnames:
                continue
            unlikely, doubtful = surname in self.words["unlikely_surnames"], surname in self.words["doubtful_surnames"]
            if (unlikely or doubtful) and _COUNT.search(self.text, max(0, start - 2), start):
                continue  # a measure word
            clear = 0 if unlikely else _CLEAR - doubtful
            end, total = self._best_given(start, start + size, left, clear, bool(known))
            if total > points:
                points, best = total, self._make_span(start, end, total / 10, rule)
            found = "" if best else self._address(start, start + size, left, clear)
            if found:
                best = self._make_span(start, start + size, 0.7, rule or found)
        if known and (best is None or best.end <= known.end):
            return known
        return best or self._given_name_at(start, left, rule)

    def _make_span(self, start: int, end: int, score: float, rule: str) -> Span:
        rule = rule or ("title" if self._right(end) == _SURE else "listed")
        return Span(start, end, "PERSON", min(0.9, score), f"builtin.{rule}")

    def _best_given(self, start: int, middle: int, left: int, clear: int, is_known: bool) -> tuple[int, int]:
        """Returns the end of the name with the best given name behind a surname, and its points; 0, 0 for none.

        Args:
            start: The start of the surname.
            middle: Its end.
            left: The points of the text before it.
            clear: The points of the surname.
            is_known: A well-known name begins here, which a weak one does not replace.
        """
        best, points = 0, 0
        space = self.language == "ja" and self.text[middle : middle + 1] in (" ", "　")
        for count in _SIZES[self.language]:
            end = middle + space + count
            quality = self._quality(middle + space, end)
            right = self._right(end) if quality else -1
            is_shown = right == _SURE or (left == _SURE and right > 0 and (clear == _CLEAR or right == _SIDE))
            is_weak = quality == 1 and not is_shown
            is_weak |= not right and count == 1
            if self.language == "ko" and self.begins.get(start, 0) >= end - 1:  # a word and a particle: "문장만"
                has_particle = self.text[end - 1 : end] in _CASES
                is_weak |= quality < _SURE or (has_particle and _SURE not in (left, right))
            is_weak |= self.language == "ko" and quality < _SURE and is_known
            is_weak |= quality < _SURE and not clear and self.language != "zh" and not (space or left == _SURE)
            if right < 0 or is_weak or (quality < _SIDE and (space or is_known)):
                continue
            total = left + clear + (middle - start > 1) + quality + right - self._collisions(start, middle, end)
            if total >= _ENOUGH and total > points:
                best, points = end, total
        return best, points

    def _known_name_at(self, start: int, left: int, rule: str) -> Span | None:
        """Returns a well-known name: whoever bears it may be a private person."""
        end = start + self.words.known.size_at(self.text, start)
        is_part = bool(self.inside[start]) or self.begins.get(start, 0) >= end  # of an ordinary word
        if end == start or is_part or left < _OPEN or self._right(end) < (self.language != "zh"):
            return None
        return Span(start, end, "PERSON", 0.5, f"builtin.{rule or 'listed'}")

    def _given_name_at(self, start: int, left: int, rule: str) -> Span | None:
        """Returns a given name without a surname: "我女儿雨桐", "ゆかりさん"."""
        end = start + self.words.given.size_at(self.text, start)
        if end == start or left < _OPEN or self._collides(start, end):
            return None
        right = self._right(end)
        if find_script(self.text[start:end]) == "hiragana" and right != _SURE and (left, right) != (_SURE, _SIDE):
            return None  # most words have hiragana
        if self.language == "ja" and right >= _OPEN and HAN.match(self.text, start) and end - start > 1:
            return self._make_span(start, end, 0.3, rule)
        sure = right >= _OPEN and left + right >= (_SIDE if self.language == "zh" else _SURE)
        return self._make_span(start, end, 0.4, rule) if sure else None

    def find_unlisted(self) -> Iterator[Span]:
        """Yields Japanese names that no list holds: before an honorific, with a listed given name, or announced."""
        for match in _HAN_RUN.finditer(self.text):
            start, end = match.span()
            while start in self.begins and self.begins[start] < end:
                start = self.begins[start]
            start += end - start > 1 and self.text[start] in self.words.leads  # "妹梓"
            title = self.words["honorifics"].word_before(self.text, end)
            if title and end - len(title) > start:
                end -= len(title)
            left, rule = self._left(start)
            if self._holds_word(start, end) or end - start > _MAX_UNLISTED:
                continue
            if left == _SURE and self._is_announced(start, end, rule):
                yield Span(start, end, "PERSON", 0.8, f"builtin.{rule}")
                continue
            titled = self.words["honorifics_of_persons"].size_at(self.text, end) > 0
            given = len(self.words.given.word_before(self.text, end))
            full = end - start - given > 1 and given > 1 and self._right(end) >= _OPEN
            if (titled or full) and end - start > 1:
                yield Span(start, end, "PERSON", 0.4, f"builtin.{rule or ('title' if titled else 'listed')}")

    def _is_announced(self, start: int, end: int, rule: str) -> bool:
        """Returns True if a Japanese word behind a relation or a label is a name: "夫の航平は", "借主尾形清隆、"."""
        right = self._right(end)
        if right < _OPEN or self.text[start:end] in self.words["words_that_look_like_names"]:
            return False
        if end - start == 1:
            return self._quality(start, end) > 1
        least = 1 if rule == "relation" and end - start > _MAX_UNLISTED - 3 else 2
        ends_like_name = max(self._quality(at, end) for at in range(max(start, end - 2), end)) >= least
        is_whole = right >= _SIDE and rule != "relation"
        return is_whole or self._quality(start, end) > 1 or (end - start > 2 and ends_like_name)

    def find_titled_kana(self) -> Iterator[Span]:
        """Yields Japanese names in kana before an honorific: "ハーグリーブス先生", "ふみ江さん"."""
        for match in _TITLED_KANA.finditer(self.text):
            if match[1] not in self.words.words:
                yield Span(*match.span(1), "PERSON", 0.8, f"builtin.{self._left(match.start())[1] or 'title'}")

    def find_announced(self) -> Iterator[Span]:
        """Yields Chinese and Korean names in no list, behind a relation or a label: "我叫小雅", "남편 승필이는"."""
        for match in _ANNOUNCED[self.language].finditer(self.text):
            start, (left, rule) = match.start(1), self._left(match.start(1))
            if left < _SURE or start in self.begins:
                continue
            if self.language == "zh" and self._right(match.end(1)) >= _SIDE and not self.inside[match.end(1) - 1]:
                yield Span(*match.span(1), "PERSON", 0.8, f"builtin.{rule}")
            sizes = (2, 3) if self.text[start + 2 : start + 3] == "이" else (3, 2, 4)
            for size in sizes if self.language == "ko" else ():
                end = start + size
                if self.text[end - 1] == "씨":
                    continue
                given = start + (size > 2)
                if end <= match.end(1) and self._is_particle(end) and self._quality(given, min(end, given + 2)) > 0:
                    yield Span(start, end, "PERSON", 0.8, f"builtin.{rule}")
                    break

    def find_unlisted_korean(self) -> Iterator[Span]:
        """Yields Korean words before an honorific that are in no list: "노을빛나 씨"."""
        if self.language != "ko":
            return
        for match in _KOREAN_TITLED.finditer(self.text):
            if self.begins.get(match.start(1), 0) < match.end(1) - 1 and self._is_particle(match.end()):
                yield Span(*match.span(1), "PERSON", 0.4, "builtin.title")

    def _address(self, start: int, end: int, left: int, clear: int) -> str:
        """Returns the rule for a surname alone: with an honorific ("王老师", "佐々木さん") or a prefix ("小王").

        Returns "" if nothing shows that it is a name.
        """
        if self._collides(start, end):
            return ""
        right = self._right(end)
        if self._right(end, alone=True) == _SURE:
            apart = self.text[end : end + 1] in (" ", "씨") and self.text[start:end] not in self.words["determiners"]
            is_sure = left >= _SIDE and (self.language != "ko" or apart)
            return "title" if left >= _OPEN and (clear > 0 or is_sure) else ""
        announced = self.language == "ja" and left == _SURE and end - start > 1
        if right >= _OPEN and (announced or self._word_before(start, "labels_of_last_names")):
            return "label"
        if left >= _SIDE and self.words["words_after_speakers"].size_at(self.text, end):
            return "introduction"
        prefixed = self.text[start - 1 : start] in self.words["prefixes_of_surnames"] and clear > 0
        before = self._left(start - 1)[0] if prefixed else 0
        return "title" if before == _SURE or (before >= _OPEN and right >= _OPEN) else ""

    def _collisions(self, start: int, middle: int, end: int) -> int:
        """Returns the points that a name loses because of ordinary words in its surname and its given name."""
        if self.language == "ko":
            return _ENOUGH * self._collides(start, end)
        return _SURE * self._collides(start, middle) + _SIDE * self._collides(middle, end)

    def _quality(self, start: int, end: int) -> int:
        """Returns the points of a given name: 3 if it is listed, 2 or 1 if its characters are usual; else 0."""
        given, words = self.text[start:end], self.words
        if end > len(self.text) or not all(self.letters[start:end]) or given in words["honorifics"]:
            return 0
        if given in words.given:
            return _SURE
        if len(given) == 1:
            alone, first = words.characters("given_characters_alone"), words.characters("given_characters_before")
            return 2 if given in alone else int(given in first)
        if len(given) > 2 or len({HAN.match(char) is None for char in given}) > 1 or not words.never.isdisjoint(given):
            return 0
        first, last = words.characters("given_characters_before"), words.characters("given_characters_after")
        return (given[0] in first) + (given[-1] in last)
