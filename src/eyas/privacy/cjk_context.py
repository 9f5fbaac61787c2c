"""The words around a name in Chinese, Japanese and Korean texts, with which `names_cjk.py` searches."""

import re

from eyas.privacy.cjk_words import HAN, KATAKANA, LETTER, load_cjk_words

_LETTERS = re.compile(rf"[{LETTER}]+")
_OPENING = "\"'“‘「『（(： :　*_"
_QUOTES = "\"' "
_MAX_PARTICLES = 8  # characters
CLEAR, SURE, SIDE, OPEN = 2, 3, 2, 1  # points


class CjkContext:
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
            return SURE, words.rules[lead]
        if not self._is_letter(start - 1):
            return SIDE, ""
        if self.language == "ko":
            return -1, ""
        if self.language == "ja" and not HAN.match(text[start - 1]):
            return (0 if KATAKANA.match(text, start) and KATAKANA.match(text, start - 1) else OPEN), ""
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
            return SURE
        if not self.letters[end]:
            return SIDE
        if self.language == "ko":
            return SIDE if self._is_particle(end) else -1
        if self.language == "ja" and not HAN.match(text[end]):
            return 0 if KATAKANA.match(text, end) and KATAKANA.match(text, end - 1) else OPEN
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

    def _quality(self, start: int, end: int) -> int:
        """Returns the points of a given name: 3 if it is listed, 2 or 1 if its characters are usual; else 0."""
        given, words = self.text[start:end], self.words
        if end > len(self.text) or not all(self.letters[start:end]) or given in words["honorifics"]:
            return 0
        if given in words.given:
            return SURE
        if len(given) == 1:
            alone, first = words.characters("given_characters_alone"), words.characters("given_characters_before")
            return 2 if given in alone else int(given in first)
        if len(given) > 2 or len({HAN.match(char) is None for char in given}) > 1 or not words.never.isdisjoint(given):
            return 0
        first, last = words.characters("given_characters_before"), words.characters("given_characters_after")
        return (given[0] in first) + (given[-1] in last)
