"""Splits Chinese, Japanese and Korean texts for the tagger, and describes the scripts of these languages.

    text                units                       classes of the units
    给楼上的韦秋菊写信      给|楼上|的|韦|秋菊|写信    "韦": a surname; "秋菊": a first name
    担当の佐々木さん        担当|の|佐々木|さん        "佐々木": a last name; "さん": an honorific
    선우재하는             선우재하|는              "선우재하": a surname and a usual given name

All words are tables of the language folders; languages/README.md explains them. Faker adds names and ordinary words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import compress, pairwise
from operator import add, or_

from eyas.privacy.word_lists import read_by_language, read_data_file, read_entries, read_faker_words, read_names_of

CJK_LANGUAGES = ("zh", "ja", "ko")
NEUTRAL, FORMS = "han", ("simplified", "traditional")  # scripts of Chinese characters
HAN = re.compile(r"[々〆ヵヶ㐀-䶿一-鿿]")
_LETTER = r"々〆ヵヶぁ-ゖァ-ヺー㐀-䶿一-鿿가-힣"
_IS_LETTER, _KATAKANA = re.compile(rf"[{_LETTER}]"), re.compile(r"[ァ-ヺー]+")
_UNIT = re.compile(rf"[{_LETTER}]+|(?:(?![{_LETTER}])[^\W\d_])+")
_HANGUL = re.compile("[가-힣]*")
_MAX_KOREAN = 6  # characters of a name
_TITLED = 3  # an honorific behind a Korean word counts as much as usual characters of a name
_TABLES = read_data_file("data/cjk_tables")


class WordSet:
    """A set of words that finds the longest of them at a position of a text."""

    def __init__(self, words: Iterable[str]) -> None:
        """Indexes the words by their first two characters."""
        self.words, self._sizes = frozenset(words), dict[str, list[int]]()
        for start, size in sorted({(word[:2], len(word)) for word in self.words if len(word) > 1}, reverse=True):
            self._sizes.setdefault(start, []).append(size)
        self._singles = frozenset(word for word in self.words if len(word) == 1)

    def __contains__(self, word: str) -> bool:
        """Returns True if the set holds the word."""
        return word in self.words

    def size_at(self, text: str, start: int) -> int:
        """Returns the length of the longest word that starts at a position; 0 if there is none."""
        if sizes := self._sizes.get(text[start : start + 2]):
            for size in sizes:
                found = text[start : start + size]
                if found in self.words:
                    return len(found)
        return int(text[start : start + 1] in self._singles)

    def find_all(self, text: str, at_starts: bool = False) -> Iterator[tuple[int, int]]:
        """Yields the start and the end of the words in a text: the longest at each position, without overlaps.

        Args:
            text: The text.
            at_starts: A word counts only where no letter stands before it; one of one character only as a whole word.
        """
        pairs, singles, done = self._sizes, self._singles, 0
        is_pair, is_single = map(pairs.__contains__, map(add, text, text[1:] + " ")), map(singles.__contains__, text)
        for i in compress(range(len(text)), map(or_, is_pair, is_single)):
            if i < done or (at_starts and i and text[i - 1].isalpha()):
                continue
            size = self.size_at(text, i)
            if size > 1 or (size and not (at_starts and text[i + 1 : i + 2].isalpha())):
                done = i + size
                yield i, done


class CjkWords:
    """The words of one language, and the units of a text: words, parts of names, single characters.

    Attributes:
        surnames: All surnames; those in the table doubtful_surnames or unlikely_surnames are other words as well.
        given: Given names of two characters or more.
        words: Ordinary words of two characters or more.
        known: Names of well-known people.
    """

    def __init__(self, language: str) -> None:
        """Reads the tables of a language."""
        self.language = language
        self.old_forms = {ord(pair[0]): pair[1] for pair in self.read("traditional_characters")}
        last, first = ({name.translate(self.old_forms) for name in read_names_of(part, language)}
                       for part in ("last", "first"))  # fmt: skip
        self.never = frozenset("".join(self.read("characters_not_in_names")))
        self.surnames = WordSet((self.read("surnames") | last) - self.never)
        self.doubtful = self.read("doubtful_surnames") | self.read("unlikely_surnames")
        self.given = WordSet(name for name in self.read("given_names") | first if len(name) > 1)
        self.honorifics, self.particles = WordSet(self.read("honorifics")), self.read("particles_after_names") | {""}
        ordinary = read_faker_words(language).union(*map(self.read, _TABLES["ordinary_words"]))
        compound = {name for name in self.surnames.words if len(name) > 1}
        self.words = WordSet(word for word in ordinary - compound if len(word) > 1)
        self.known = WordSet(name for name in self.read("public_people") - self.words.words if len(name) > 1)
        self.parts = {part: frozenset("".join(self.read(table))) for part, table in _TABLES["characters"].items()}

    def read(self, table: str) -> frozenset[str]:
        """Returns the entries of a table; an empty set if the language lacks it."""
        return read_entries(table, self.language)

    def split(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields the start and the end of each unit of a text."""
        text = normalize_cjk(text, self.language)
        for match in _UNIT.finditer(text):
            if not _IS_LETTER.match(match[0]):
                yield match.span()
            elif self.language == "ko":
                yield from self._split_korean(text, *match.span())
            else:
                yield from self._split_run(text, *match.span())

    def _split_run(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the units of Chinese or Japanese letters. A full name of listed parts counts before a word."""
        while start < end:
            last, word = self.surnames.size_at(text, start), self.words.size_at(text, start)
            given = self.given.size_at(text, start + last) if last else 0
            given -= given > 1 and self.words.size_at(text, start + last + given - 1) > 1  # "李伟|明天", not "伟明"
            if given and last + given >= word:
                yield start, start + last
                start, size = start + last, given
            else:
                kana = _KATAKANA.match(text, start)
                names = self.known.size_at(text, start), self.given.size_at(text, start), last
                size = max(word, *names, kana.end() - start if kana else 1)
            yield start, start + size
            start += size

    def _split_korean(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the units of a Korean word: the part that may be a name, an honorific, and the particles."""
        word = text[start:end]
        cuts = (k for k in range(1, min(len(word), _MAX_KOREAN) + 1) if self._is_ending(word[k:]))
        rank, cut = max(((self._rank(word[:k]) + self._rank_title(word, k), k) for k in cuts), default=(0, 0))
        first = self.honorifics.size_at(word, 0)
        if first and word[:first] not in self.surnames and word[first:] in self.particles:
            cut = 0  # "노을빛나 씨가"
        elif not rank or self.words.size_at(word, 0) > cut or self._is_titled(text, end):
            cut = len(word)
        bounds = sorted({0, cut, cut + self.honorifics.size_at(word, cut), len(word)})
        yield from ((start + a, start + b) for a, b in pairwise(bounds))

    def _rank_title(self, word: str, k: int) -> int:
        size = self.honorifics.size_at(word, k)
        return _TITLED if size > 1 or (size and (k > 1 or word[k] == "씨")) else 0

    def _is_titled(self, text: str, end: int) -> bool:
        """Returns True if an honorific is the next word: the word before it has no particle."""
        size = self.honorifics.size_at(text, end + 1) if text[end : end + 1] == " " else 0
        return size > 0 and self._is_ending(_HANGUL.match(text, end + 1 + size)[0])  # type: ignore[index]

    def _is_ending(self, rest: str) -> bool:
        """Returns True if what stands behind a Korean name is nothing, or honorifics and particles."""
        while rest not in self.particles and (size := self.honorifics.size_at(rest, 0)):
            rest = rest[size:]
        return rest in self.particles

    def _rank(self, word: str) -> int:
        """Returns how likely a Korean word is a name: 4 for a listed one to 1; 0 if nothing shows it."""
        if word in self.words:
            return 0
        last = self.surnames.size_at(word, 0)
        given = word[last:]
        if word in self.known or word in self.given or (last and given in self.given):
            return 4
        if last and len(given) == 2:
            return (given[0] in self.parts["before"]) + (given[1] in self.parts["after"])
        return int(last > 0 and not given)

    def group(self, unit: str) -> str:
        """Returns the class of a unit. That of one Chinese character has three parts, with dots between."""
        last = "" if unit not in self.surnames else "last_common" if unit in self.doubtful else "last"
        rank = self._rank(unit) if self.language == "ko" else 0
        if unit in self.honorifics:
            return "honorific"
        if unit in self.known:
            return "famous"
        if unit in self.particles:
            return "particles"
        if len(unit) > 1 or self.language == "ko":
            given = "first" if unit in self.given else f"name{rank}" if rank else ""
            return last or given or ("known" if unit in self.words else "unknown")
        if not HAN.match(unit) or unit in self.never:
            return "stop" if unit in self.never else "kana"
        parts = [part for part, chars in self.parts.items() if unit in chars]
        inside = "+".join(part for part in parts if part not in ("left", "right"))
        return f"{last or '-'}.{inside}.{'+'.join(part for part in parts if part in ('left', 'right'))}"


@cache
def load_cjk_words(language: str) -> CjkWords:
    """Returns the words of one of CJK_LANGUAGES. A process loads them once."""
    return CjkWords(language)


def normalize_cjk(text: str, language: str) -> str:
    """Returns the text with traditional Chinese characters replaced by simplified ones. All positions stay the same."""
    return text.translate(load_cjk_words(language).old_forms) if language == "zh" else text


def is_cjk(text: str) -> bool:
    """Returns True if a text begins with a letter of Chinese, Japanese or Korean."""
    return _IS_LETTER.match(text) is not None


@cache
def _characters_of_forms() -> Mapping[str, frozenset[str]]:
    """Returns the Chinese characters that belong to one form only, by form."""
    pairs = [pair for pair in read_by_language("traditional_characters")["zh"] if pair[0] != pair[1]]
    return {FORMS[0]: frozenset(pair[1] for pair in pairs), FORMS[1]: frozenset(pair[0] for pair in pairs)}


def find_script(name: str) -> str:
    """Returns the script of a name. Chinese characters are NEUTRAL unless they belong to one of FORMS only."""
    if not all(map(HAN.match, name)):
        return "hangul" if "가" <= name[0] <= "힣" else "katakana" if _KATAKANA.match(name) else "hiragana"
    return next((form for form in reversed(FORMS) if not _characters_of_forms()[form].isdisjoint(name)), NEUTRAL)


def list_cjk_names(role: str, language: str) -> list[str]:
    """Returns names from which surrogates are picked: those of Faker and of the language's folder.

    Args:
        role: "first" or "last".
        language: One of CJK_LANGUAGES.
    """
    words = load_cjk_words(language)
    names = words.given.words if role == "first" else words.surnames.words - words.doubtful
    return sorted({*names, *read_names_of(role, language)})


@lru_cache(maxsize=10_000)
def surname_size(word: str) -> int:
    """Returns the number of characters of the surname at the start of a name; 0 for a given name alone."""
    lists = [(load_cjk_words(language), normalize_cjk(word, language)) for language in CJK_LANGUAGES]
    if any(plain in words.surnames for words, plain in lists):
        return len(word)
    if any(plain in words.given for words, plain in lists):
        return 0
    return max(words.surnames.size_at(plain[:-1], 0) for words, plain in lists)
