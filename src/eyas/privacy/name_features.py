"""The features of the words of a text, from which name_tagger.py decides whether a word belongs to a name."""

import re
from collections.abc import Collection, Iterator, Set
from functools import cache, lru_cache
from itertools import pairwise, repeat

from eyas.privacy.cjk_words import CJK_LANGUAGES, HAN, find_script, is_cjk
from eyas.privacy.dictionary import is_compound, is_known
from eyas.privacy.name_shapes import find_inflection
from eyas.privacy.uncased_words import UNCASED_LANGUAGES, find_uncased_group, round_up, split_uncased
from eyas.privacy.word_lists import PARTICLES, load_lexicon, read_data_file, read_entries, tables_of_files
from eyas.privacy.words import NAMED_THINGS, TERMS, Words, ends_as_word, ends_sentence, load_matcher

UNCASED = frozenset(("uncased", "han", "hangul", "katakana", "hiragana"))  # forms
CUES = read_data_file("data/tagger_cues")
# A rule of `Span.rule` and the tables of the entries before a name that stand for it; the first that fits counts.
RULES: dict[str, list[str]] = CUES["rules"]
MAX_LETTERS = 40  # in a word of a name
MAX_PARTICLES = 4  # before a last name: "Herr von und zu Stein"
_GAPS = {gap: name for name, gaps in CUES["gaps"].items() for gap in gaps}
_HAS_ROWS = re.compile(r"[|\t]|[,;][\"']?(?:\w|\Z)")  # a faster test for _ROW_GAP
_ROW_GAP = re.compile(r"[|\t]|\A[\"']?[,;][\"']?\Z|\A,\d")  # between two cells of a table


class NameFeatures:
    """The features of the words of one text. Arguments `i` are indices of words.

    Attributes:
        words: The words of the text.
        gaps: The class of the characters after each word.
        forms: The class of the letters of each word.
        groups: The class of each word by the lists that hold it.
        at_start: For each word, whether it starts a sentence.
        is_personal: The text holds other personal data, or words about relatives, friends or shared events.
    """

    def __init__(self, words: Words, language: str, has_data: bool = False) -> None:
        """Finds the entries of the language folders in the text.

        Args:
            words: The words of the text.
            language: The language of the text (ISO 639-1).
            has_data: The text holds other personal data, such as an e-mail address.
        """
        words = split_uncased(words, language)
        self.words, self.language, self.lexicon = words, language, load_lexicon()
        self.nouns = "nouns" if language == "de" else "names"  # that begin with a capital letter
        self.is_uncased = language in UNCASED_LANGUAGES
        self.skipped = PARTICLES | read_entries("copulas", language)  # between a phrase and the name
        self.no_particles = read_entries("words_like_particles", language)
        self.ending: dict[int, set[str]] = {}  # end of an entry -> its tables
        self.starting: dict[int, set[str]] = {}  # start of an entry -> its tables
        for start, end, table in load_matcher(_cue_tables(self.is_uncased), language).find(words):
            self.ending.setdefault(round_up(end, words) if self.is_uncased else end, set()).add(table)
            self.starting.setdefault(start, set()).add(table)
        self.gaps = tuple(map(_find_gap, words.gaps))
        self.forms = tuple(map(_find_form, words.written))
        self.groups = tuple(map(_find_group, words.lowers, repeat(language)))
        self.at_start = (True, *map(ends_sentence, words.gaps[:-1]))[: len(words)]
        starts = [i for i, is_start in enumerate(self.at_start) if is_start]
        self.style = "lower" if 3 * sum(map(words.is_capital, starts)) <= len(starts) else "cased"
        lines = _lines(words) if _HAS_ROWS.search(words.text) else ()
        self.cells = {i for line in lines if any(_ROW_GAP.search(words.gaps[i]) for i in line) for i in line}
        self.capitals = {words.lowers[i] for i in range(len(words)) if words.is_capital(i) and not self.at_start[i]}
        self.written, self.has_data = set(words.written), has_data
        self.is_personal = has_data or any("shared_events" in at or "relations" in at for at in self.ending.values())

    def tables_before(self, i: int) -> Set[str]:
        """Returns the tables of the entries that end right before word i, or before the particles before it."""
        lowers, k = self.words.lowers, i - 1
        while k > max(0, i - MAX_PARTICLES) and lowers[k] in self.skipped and not self.words.is_capital(k):
            k -= 1
        tables = self.ending.get(self.words.ends[k], frozenset()) if k >= 0 else frozenset()
        is_near = k >= i - 1 or self.is_uncased or not tables.isdisjoint(RULES["title"])
        return tables if is_near else self.ending.get(self.words.ends[i - 1], frozenset())

    def features(self, i: int, follows: bool, lead: Collection[str]) -> Iterator[tuple[str, ...]]:
        """Yields the features of word i, in groups that come back with other words, so that their sum is kept.

        Args:
            i: Index of the word.
            follows: The word before it belongs to a name.
            lead: The tables of the entries before that name.
        """
        form, group, gap = self.forms[i], self.groups[i], self.gaps[i]
        place = f"{'start' if self.at_start[i] else 'inside'}:{self.nouns}"
        yield _word_features(self.words.lowers[i], form, group, place, follows, self.language)
        yield tuple(self._features_of_text(i))
        if form in UNCASED:
            yield from self._features_of_script(i, follows)
        if i:
            tables, left = frozenset(self.tables_before(i)), self.groups[i - 1]
            left = left if tables.isdisjoint(RULES["title"]) else "title"
            lower, before = self.words.lowers[i - 1], self.gaps[i - 1]
            yield _features_beside(("left", "word_before"), lower, before, form, self.forms[i - 1], left)
            yield _table_features("before", tables, f"{before}:{form}", group)
            if i > 1 and self.gaps[i - 2] == "space":
                tables = self.ending.get(self.words.ends[i - 2], ())
                yield _table_features("second_before", frozenset(tables), form, "")
        if i + 1 < len(self.words):
            lower, right = self.words.lowers[i + 1], self.groups[i + 1]
            yield _features_beside(("right", "word_after"), lower, gap, form, self.forms[i + 1], right)
            if gap in ("space", "comma"):
                yield _table_features("after", frozenset(self._tables_at(i + 1)), form, "")
            if i + 2 < len(self.words) and self.gaps[i + 1] == "space":
                yield _table_features("second_after", frozenset(self._tables_at(i + 2)), form, "")
        else:
            yield (f"right:end:{form}",)
        if gap != "space":
            yield (f"gap:{gap}:{form}",)
        if follows:
            yield _features_behind_name(self.gaps[i - 1], form, group, self.nouns, frozenset(lead))

    def family(self, i: int) -> str:
        """Returns the weights that count for word i: "cased", "cjk" or "unicased"."""
        return "cased" if self.forms[i] not in UNCASED else "cjk" if self.language in CJK_LANGUAGES else "unicased"

    def _tables_at(self, i: int) -> Collection[str]:
        return self.starting.get(self.words.starts[i], ())

    def _features_of_text(self, i: int) -> Iterator[str]:
        """Yields the features of word i that depend on the whole text."""
        words, lower, group = self.words, self.words.lowers[i], self.groups[i]
        if words.is_code(i):
            yield "code"
        if lower in TERMS and words.is_technical:
            yield "term"
        if words.is_quoted(i):
            yield "quoted"
        if words.text.startswith(("'s", "’s"), words.ends[i]):
            yield "possessive"
        for table in self._tables_at(i):
            yield f"in:{table}"
        if self.forms[i] == "lower":
            yield f"style:{self.style}:{group}:{self.is_personal}"
            return
        yield f"personal:{self.is_personal}:{group}"
        if self.at_start[i] and lower in self.capitals:
            yield f"seen_capitalized:{group}"
        if lower in self.written:
            yield "seen_in_lower_case"
        k = next((k for k in range(i + 1, min(i + 4, len(words))) if words.lowers[k] not in PARTICLES), i + 1)
        if i + 1 < k < len(words) and words.is_capital(k) and self.gaps[k - 1] in ("space", "hyphen"):
            yield f"particle:{self.forms[i]}:{self.groups[k]}"

    def _features_of_script(self, i: int, follows: bool) -> Iterator[tuple[str, ...]]:
        """Yields the features of word i in a script without capital letters."""
        groups, gap, lowers = self.groups, self.gaps[i], self.words.lowers
        beside = groups[i + 1] if i + 1 < len(lowers) else ""
        yield _script_features(groups[i], follows, gap, beside)
        yield (f"edges:{self.gaps[i - 1] if i else 'start'}:{gap}", f"left_letter:{lowers[i - 1][-1] if i else ''}",
               f"right_letter:{lowers[i + 1][0] if beside else ''}")  # fmt: skip


@lru_cache(maxsize=20_000)
def _word_features(lower: str, form: str, group: str, place: str, follows: bool, language: str) -> tuple[str, ...]:
    """Returns the features of a word itself. place: "start" or "inside" a sentence, and which words have capitals."""
    lexicon = load_lexicon()
    found = ["bias", f"is:{form}:{group}:{place}", f"form:{form}:{place.partition(':')[0]}", f"group:{group}"]
    found += [f"word:{lower}", f"prefix:{lower[:3]}", f"suffix:{lower[-4:]}"]
    if group in ("unknown", "last", "known", "ending", "compound"):
        found += [f"suffix:{lower[-3:]}", f"suffix:{lower[-2:]}"]
    if lower in lexicon.last_names:
        found.append(f"last:{follows}")
    if lower in lexicon.cities:
        found.append(f"city:{follows}")
    if lower in NAMED_THINGS:
        found.append("thing")
    if form in UNCASED:
        found += [f"script:{language}:{group}:{follows}", f"ends:{lower[:2]}:{lower[-1]}:{follows}"]
        found += [f"prefix:{lower[:2]}:{group}", f"letters:{len(lower)}:{group}"]
        found += [f"letter:{letter}:{min(k, 3)}" for k, letter in enumerate(lower)]
        found += [f"letters:{first}{second}" for first, second in pairwise(lower)]
    return tuple(found)


@lru_cache(maxsize=20_000)
def _script_features(group: str, follows: bool, gap: str, beside: str) -> tuple[str, ...]:
    """Returns the features of the parts of a group, such as "last.ending", and of the group of the next word."""
    pieces = [f"piece:{k}:{piece}:{follows}" for k, piece in enumerate(group.split("."))]
    return (*pieces, *(f"{piece}:{gap}:{beside}" for piece in pieces))


@lru_cache(maxsize=20_000)
def _features_beside(names: tuple[str, str], lower: str, gap: str, form: str, near: str, group: str) -> tuple[str, ...]:
    """Returns the features of the word before or behind. near, group: its form, and its group or "title"."""
    found = (f"{names[0]}:{gap}:{near}:{group}", f"{names[0]}:{lower}:{form}")
    return (*found, f"{names[1]}:{lower}") if gap == "space" and group == "stop" else found


@lru_cache(maxsize=20_000)
def _table_features(name: str, tables: frozenset[str], form: str, group: str) -> tuple[str, ...]:
    """Returns the features of the entries beside a word."""
    more = (f"{name}:{table}:{group}" for table in tables) if group else ()
    return (*(f"{name}:{table}:{form}" for table in tables), *more)


@lru_cache(maxsize=20_000)
def _features_behind_name(gap: str, form: str, group: str, nouns: str, lead: frozenset[str]) -> tuple[str, ...]:
    """Returns the features of a word behind a word of a name. lead: the tables of the entries before that name."""
    found = (f"follows:{gap}:{form}:{group}", f"follows:{nouns}:{form}:{group}")
    return (*found, *(f"lead:{table}:{form}" for table in lead))


def _lines(words: Words) -> Iterator[range]:
    """Yields the indices of the words of each line."""
    first = 0
    for i in range(len(words)):
        if "\n" in words.gaps[i] or i + 1 == len(words):
            yield range(first, i + 1)
            first = i + 1


@cache
def _cue_tables(is_uncased: bool) -> tuple[str, ...]:
    tables = tables_of_files(*CUES["files"]) - {*CUES["no_cues"]} | {*CUES["labels"]}
    if is_uncased:
        tables = tables - {*CUES["no_cues_uncased"]} | {*CUES["cues_uncased"]}
    return tuple(sorted(tables))


@lru_cache(maxsize=10_000)
def _find_gap(gap: str) -> str:
    if gap in _GAPS:
        return _GAPS[gap]
    return "line" if "\n" in gap else "number" if any(map(str.isdigit, gap[:6])) else "other" if gap else "none"


@lru_cache(maxsize=100_000)
def _find_form(word: str) -> str:
    if word.upper() == word.lower():
        return "han" if HAN.match(word) else find_script(word) if is_cjk(word) else "uncased"
    if len(word) == 1:
        return "initial" if word.isupper() else "letter"
    if word.isupper():
        return "upper"
    return ("capital" if word[1:].islower() else "mixed") if word[0].isupper() else "lower"


@lru_cache(maxsize=100_000)
def _find_group(lower: str, language: str) -> str:
    lexicon = load_lexicon()
    if language in UNCASED_LANGUAGES and not lower.isascii():
        return find_uncased_group(lower, language)
    if lower in PARTICLES:
        return "particle"
    if lower in lexicon.stop:
        return "stop_name" if lower in lexicon.first_names else "stop"
    first, apostrophe, last = lower.partition("'")
    if apostrophe and len(first) < 3 and (last in lexicon.common or is_known(last, language)):
        return "stop"  # "J'ai", "L'hôtel"
    if apostrophe and len(last) < 3 and first in lexicon.stop:
        return "stop"  # "Here's", "don't", "war's"
    if lower in lexicon.sure_names:
        return "core_first" if lower in lexicon.core_names else "first"
    if lower in lexicon.ambiguous:
        return "ambiguous"
    if lower in lexicon.last_names:
        return "last_common" if lower in lexicon.common else "last"
    if lower in lexicon.common:
        return "common"
    for names, listed in (("first", lexicon.sure_names), ("last", lexicon.last_names)):
        if find_inflection(lower, listed, language):
            return f"inflected_{names}"
    if is_known(lower, language):
        return "known"
    if ends_as_word(lower, language == "de"):
        return "ending"
    return "compound" if len(lower) <= MAX_LETTERS and is_compound(lower, language) else "unknown"
