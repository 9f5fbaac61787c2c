"""A text as words with their places: what the search for names walks over."""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

# Letters, with apostrophes inside ("O'Brien", "m'appelle"). Digits and underscores end a word.
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# What French, Italian and Portuguese write before a name: "d'Anna", "dell'Anna", "qu'Anna".
_ELISION = re.compile(r"(?:[dlnsjcmt]|qu|dell|all|dall|nell|sull|un|jusqu|lorsqu|puisqu)'(?=[^\W\d_])")
_SENTENCE_END = '.!?:;\n"“”„«»()[]{}•*-–—>|/\t#=,'
_NO_ACCENT = str.maketrans({"ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "ß": "ss"})


def strip_accents(word: str) -> str:
    """The word without its accents: "wiadomosc" for "wiadomość"."""
    if word.isascii():
        return word
    parts = unicodedata.normalize("NFKD", word.translate(_NO_ACCENT))
    return "".join(char for char in parts if not unicodedata.combining(char))


@dataclass(frozen=True)
class Words:
    """The words of a text: word i is text[begins[i]:ends[i]], written words[i], in lower case lowers[i]."""

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    written: tuple[str, ...]
    lowers: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.written)

    def gap(self, i: int) -> str:
        """What stands between word i and the next; behind the last word, what ends the text."""
        return self.text[self.ends[i] : self.starts[i + 1] if i + 1 < len(self.starts) else len(self.text)]

    def is_capital(self, i: int) -> bool:
        """Whether the word begins with a capital letter."""
        return self.written[i][0].isupper()

    def is_initial(self, i: int) -> bool:
        """Whether the word is one capital letter: "J. R. Smith"."""
        return len(self.written[i]) == 1 and self.written[i].isupper()

    def starts_sentence(self, i: int) -> bool:
        """Whether a capital letter is expected in any case: at the start, behind a full stop, a bullet, a quote."""
        if i == 0:
            return True
        before = self.gap(i - 1)
        stripped = before.strip(" \u00a0")
        if not stripped:
            return False
        # An abbreviation's full stop ("Mr. May", "J. May") ends no sentence; a comma neither.
        return stripped[-1] in _SENTENCE_END and stripped != "," and stripped != "-"

    def is_code(self, i: int) -> bool:
        """Whether the word is part of an identifier, a call, a path or an attribute."""
        before = self.text[max(0, self.starts[i] - 2) : self.starts[i]]
        after = self.text[self.ends[i] : self.ends[i] + 2]
        if before[-1:] == " " == after[:1]:
            return False  # as most words stand
        if after[:1] in ("_", "(", "<") or after == "::" or after[:1].isdigit():
            return True
        if after[:1] == "." and after[1:].isalpha() and after[1:].islower():
            return True  # "Anna.name", but not the end of a sentence
        return before[-1:] in ("_", "$", "@", "#", "\\") or (before[-1:] == "." and before[:1].isalnum())


@lru_cache(maxsize=4)  # several detectors walk over one text, one after another
def split_words(text: str) -> Words:
    """The words of the text. A possessive ("Anna's") and an elision ("d'Anna") are no part of a capitalised word."""
    matches = list(_WORD.finditer(text))
    words = [match[0] for match in matches]
    begins, ends = [match.start() for match in matches], [match.end() for match in matches]
    for i, word in enumerate(words) if "'" in text or "’" in text else ():
        if "'" in word or "’" in word:
            plain = word.replace("’", "'")
            elision = _ELISION.match(plain)
            if elision and plain[elision.end()].isupper():
                begins[i] += elision.end()
                plain = plain[elision.end() :]
            # "It's" and "name's" stay whole: phrases hold them.
            if plain.endswith(("'s", "'S")) and plain[0].isupper() and plain.lower() not in ("it's", "let's", "here's"):
                ends[i] -= 2
                plain = plain[:-2]
            words[i] = plain
    return Words(text, tuple(begins), tuple(ends), tuple(words), tuple(map(str.casefold, words)))
