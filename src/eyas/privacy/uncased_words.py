"""Splits texts in languages without capital letters for the tagger, and tells names from other words there.

text            words               class of the name
قلت لأحمد       قلت|أحمد            "أحمد": a first name; the prefix "ل" is cut off
给韦秋菊打电话     给|韦|秋菊|打|电话      "韦": a surname; cjk_words.py splits Chinese, Japanese and Korean
"""

from bisect import bisect_left
from dataclasses import replace
from functools import cache, lru_cache

from eyas.privacy.case_insensitive import fold_word
from eyas.privacy.cjk_words import CJK_LANGUAGES, is_cjk, load_cjk_words, normalize_cjk
from eyas.privacy.dictionary import is_known
from eyas.privacy.word_lists import UNICASED, read_data_file, read_entries, read_names_of
from eyas.privacy.words import Words, cut_prefixes

UNCASED_LANGUAGES = (*UNICASED, *CJK_LANGUAGES)
_GROUPS: dict[str, list[str]] = read_data_file("data/tagger_cues")["groups"]
_CUT_NAMES = ("first", "kin", "last", "town")  # groups of Arabic words that prefixes are cut from


def split_uncased(words: Words, language: str) -> Words:
    """Returns the words of a text as the tagger reads them; in languages with capital letters, the same words."""
    if language in CJK_LANGUAGES:
        bounds = tuple(load_cjk_words(language).split(words.text))
        written = tuple(words.text[start:end] for start, end in bounds)
        starts, ends = tuple(start for start, _ in bounds), tuple(end for _, end in bounds)
        return Words(words.text, starts, ends, written, tuple(map(str.casefold, written)))
    return _cut_names(words) if language == "ar" else words


def _cut_names(words: Words) -> Words:
    """Returns the words of an Arabic text without the prefixes of names."""
    starts, written, groups = list(words.starts), list(words.written), _groups_of_words("ar")
    for i, lower in enumerate(words.lowers):
        following = groups.get(fold_word(words.lowers[i + 1])) if i + 1 < len(words) else None
        allowed = (*_CUT_NAMES, "ambiguous") if following in (*_CUT_NAMES, "joining") else _CUT_NAMES
        name = next((rest for rest in cut_prefixes(fold_word(lower))[1:] if groups.get(rest) in allowed), "")
        if name and find_uncased_group(lower, "ar") in ("known", "unknown"):
            while len(fold_word(written[i])) > len(name):
                written[i], starts[i] = written[i][1:], starts[i] + 1
    return replace(words, starts=tuple(starts), written=tuple(written), lowers=tuple(map(str.casefold, written)))


def round_up(end: int, words: Words) -> int:
    """Returns the end of the word that holds the character before `end`: a particle may follow a phrase there."""
    return words.ends[min(len(words) - 1, bisect_left(words.ends, end))]


@lru_cache(maxsize=100_000)
def find_uncased_group(lower: str, language: str) -> str:
    """Returns the class of a word in one of UNCASED_LANGUAGES by the lists that hold it."""
    if language in CJK_LANGUAGES:
        return load_cjk_words(language).group(normalize_cjk(lower, language)) if is_cjk(lower) else "unknown"
    if lower in read_entries("function_words", language):  # "على" is a word, "علي" is a name
        return "stop"
    form = fold_word(lower)
    return _groups_of_words(language).get(form) or ("known" if is_known(form, language) else "unknown")


@cache
def _groups_of_words(language: str) -> dict[str, str]:
    """Returns the class of each listed word of one of UNICASED, in the spelling of `fold_word`."""
    groups: dict[str, str] = {}
    for group, tables in _GROUPS.items():  # a later class wins
        names = read_names_of(group, language) if group in ("first", "last") else ()
        groups |= {form: group for form in map(fold_word, names) if len(form) > 2 and not is_known(form, language)}
        entries = (entry for table in tables for entry in read_entries(table, language))
        groups |= {fold_word(word): group for entry in entries for word in entry.split()}
    return groups
