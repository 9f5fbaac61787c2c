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

from eyas.privacy.cjk_context import CLEAR, OPEN, SIDE, SURE
from eyas.privacy.cjk_words import HAN, LETTER, find_script, normalize_cjk
from eyas.privacy.span import Span
from eyas.privacy.unlisted_cjk import UnlistedSearch

_VALUE = re.compile(
    rf"[:：=]\s{{0,4}}[\"'“「『]?([{LETTER}]{{1,12}}(?:[ 　・·＝][{LETTER}]{{1,12}}){{0,3}})(?=[^:：=\w]|$)",
    re.MULTILINE,
)
_DOTTED = re.compile(rf"[{LETTER}]{{1,12}}(?:[・·•＝][{LETTER}]{{1,12}})+")
_DOTTED_KATAKANA = re.compile(r"[ァ-ヺー]{1,12}(?:[・･＝][ァ-ヺー]{1,12})+")
_SIGNATURE = re.compile(rf"\n[ 　]*([{LETTER}]{{2,5}})[ 　]*\Z")
_COUNT = re.compile(r"[\d一二两三四五六七八九十百千万几数多每这那][ ]?\Z")  # before a measure word
_CASES = frozenset("은는이가을를의도만와과로에")  # the commonest Korean particles
_LONG_TITLE = 3  # syllables of a Korean title that may stand right behind a surname
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


class _Search(UnlistedSearch):
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
        size = words["towns"].size_at(text, start) or words["towns_that_are_words"].size_at(text, start)
        end = start + size + words["endings_of_places"].size_at(text, start + size)
        lives = bool(self._word_before(start, "words_of_living") or words["words_behind_homes"].size_at(text, end))
        if text[start : start + size] in words["towns_that_are_words"] and not lives:
            return None
        if not size or not (is_personal or lives) or (self.language == "ko" and self._is_letter(start - 1)):
            return None
        if self.language == "ja" and start and HAN.match(text, start - 1):
            return None
        end = start + size
        ending = words["endings_of_places"].word_before(text, end)
        end -= len(ending) if size - len(ending) > 1 else 0  # the ending stays: "倉吉市" -> "倉吉"
        behind = end + words["endings_of_places"].size_at(text, end)
        at = behind + text.startswith(" ", behind)
        particle = words["particles_after_places"].size_at(text, behind)
        ends = self._is_particle(behind) or (particle > 0 and not self._is_letter(behind + particle))
        is_other = self.language == "ko" and not ends
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
            clear = 0 if unlikely else CLEAR - doubtful
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
        rule = rule or ("title" if self._right(end) == SURE else "listed")
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
            is_shown = right == SURE or (left == SURE and right > 0 and (clear == CLEAR or right == SIDE))
            is_weak = quality == 1 and not is_shown
            is_weak |= not right and count == 1
            if self.language == "ko" and self.begins.get(start, 0) >= end - 1:  # a word and a particle: "문장만"
                has_particle = self.text[end - 1 : end] in _CASES
                is_weak |= quality < SURE or (has_particle and SURE not in (left, right))
            is_weak |= self.language == "ko" and quality < SURE and is_known
            is_weak |= quality < SURE and not clear and self.language != "zh" and not (space or left == SURE)
            if right < 0 or is_weak or (quality < SIDE and (space or is_known)):
                continue
            total = left + clear + (middle - start > 1) + quality + right - self._collisions(start, middle, end)
            if total >= _ENOUGH and total > points:
                best, points = end, total
        return best, points

    def _known_name_at(self, start: int, left: int, rule: str) -> Span | None:
        """Returns a well-known name: whoever bears it may be a private person."""
        end = start + self.words.known.size_at(self.text, start)
        is_part = bool(self.inside[start]) or self.begins.get(start, 0) >= end  # of an ordinary word
        if end == start or is_part or left < OPEN or self._right(end) < (self.language != "zh"):
            return None
        return Span(start, end, "PERSON", 0.5, f"builtin.{rule or 'listed'}")

    def _given_name_at(self, start: int, left: int, rule: str) -> Span | None:
        """Returns a given name without a surname: "我女儿雨桐", "ゆかりさん"."""
        end = start + self.words.given.size_at(self.text, start)
        if end == start or left < OPEN or self._collides(start, end):
            return None
        right = self._right(end)
        if find_script(self.text[start:end]) == "hiragana" and right != SURE and (left, right) != (SURE, SIDE):
            return None  # most words have hiragana
        if self.language == "ja" and right >= OPEN and HAN.match(self.text, start) and end - start > 1:
            return self._make_span(start, end, 0.3, rule)
        sure = right >= OPEN and left + right >= (SIDE if self.language == "zh" else SURE)
        return self._make_span(start, end, 0.4, rule) if sure else None

    def _address(self, start: int, end: int, left: int, clear: int) -> str:
        """Returns the rule for a surname alone: with an honorific ("王老师", "佐々木さん") or a prefix ("小王").

        Returns "" if nothing shows that it is a name.
        """
        if self._collides(start, end):
            return ""
        right = self._right(end)
        if self._right(end, alone=True) == SURE:
            is_long = self.words["honorifics"].size_at(self.text, end) >= _LONG_TITLE
            apart = self.text[end : end + 1] in (" ", "씨") and self.text[start:end] not in self.words["determiners"]
            is_sure = left >= SIDE and (self.language != "ko" or apart or is_long)
            return "title" if left >= OPEN and (clear > 0 or is_sure) else ""
        announced = self.language == "ja" and left == SURE and end - start > 1
        if right >= OPEN and (announced or self._word_before(start, "labels_of_last_names")):
            return "label"
        if left >= SIDE and self.words["words_after_speakers"].size_at(self.text, end):
            return "introduction"
        prefixed = self.text[start - 1 : start] in self.words["prefixes_of_surnames"] and clear > 0
        before = self._left(start - 1)[0] if prefixed else 0
        return "title" if before == SURE or (before >= OPEN and right >= OPEN) else ""

    def _collisions(self, start: int, middle: int, end: int) -> int:
        """Returns the points that a name loses because of ordinary words in its surname and its given name."""
        if self.language == "ko":
            return _ENOUGH * self._collides(start, end)
        return SURE * self._collides(start, middle) + SIDE * self._collides(middle, end)
