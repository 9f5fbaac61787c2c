"""Finds Chinese, Japanese and Korean names that no list holds: an honorific, a relation or a label shows them."""

import re
from collections.abc import Iterator

from eyas.privacy.cjk_context import OPEN, SIDE, SURE, CjkContext
from eyas.privacy.span import Span

_HAN_RUN = re.compile(r"[々ヶ㐀-䶿一-鿿]+(?:[ァ-ヺー]{1,4}[子江美代枝]?(?![ァ-ヺー]))?")
_TITLED_KANA = re.compile(
    r"(?<![ァ-ヺー])([ァ-ヺー]{2,12}|[ぁ-ゖ]{2}[子江美代枝世])(?:さん|様|さま|君|くん|ちゃん|氏|先生)"
)
_ANNOUNCED = {
    "zh": re.compile(r"(?=([小阿][㐀-䶿一-鿿]))"),
    "ko": re.compile(r"(?<![가-힣])([가-힣]{2,8})"),
}
_KOREAN_TITLED = re.compile(r"(?<![가-힣])(?:([가-힣]{3,5}) (?:씨|님|양|군)|([가-힣]{2,4})씨)")
_MAX_UNLISTED = 6  # characters of a Japanese name that is in no list


class UnlistedSearch(CjkContext):
    """The search for names in no list. `names_cjk.py` adds the search for the others."""

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
            if left == SURE and self._is_announced(start, end, rule):
                yield Span(start, end, "PERSON", 0.8, f"builtin.{rule}")
                continue
            titled = self.words["honorifics_of_persons"].size_at(self.text, end) > 0
            given = len(self.words.given.word_before(self.text, end))
            full = end - start - given > 1 and given > 1 and self._right(end) >= OPEN
            if (titled or full) and end - start > 1:
                yield Span(start, end, "PERSON", 0.4, f"builtin.{rule or ('title' if titled else 'listed')}")

    def _is_announced(self, start: int, end: int, rule: str) -> bool:
        """Returns True if a Japanese word behind a relation or a label is a name: "夫の航平は", "借主尾形清隆、"."""
        right = self._right(end)
        if right < OPEN or self.text[start:end] in self.words["words_that_look_like_names"]:
            return False
        if end - start == 1:
            return self._quality(start, end) > 1
        least = 1 if rule == "relation" and end - start > _MAX_UNLISTED - 3 else 2
        ends_like_name = max(self._quality(at, end) for at in range(max(start, end - 2), end)) >= least
        is_whole = right >= SIDE and rule != "relation"
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
            if left < SURE or start in self.begins:
                continue
            if self.language == "zh" and self._right(match.end(1)) >= SIDE and not self.inside[match.end(1) - 1]:
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
            start, end = match.span(match.lastindex or 1)
            is_word = self.begins.get(start, 0) >= end - 1 or match[0] in self.words["honorifics"]
            if not is_word and self._is_particle(match.end()):
                yield Span(start, end, "PERSON", 0.4, "builtin.title")
