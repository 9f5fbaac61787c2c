"""Finds the names of people in running text. A linear model decides for each word if it belongs to a name.

The features of a word are its letters and the lists that hold it, the same for the words beside it, the entries of the
language folders before and after it ("my sister", "wrote"), and the decision on the word before it. Their weights are
in data/tagger_weights.toml; benchmarks/fit_name_tagger.py fits them to texts with marked names.

    text                          some features of the word "Zorvek" or "zorvek"
    my sister Zorvek called       is:capital:unknown:inside, before:relations:space:capital, after:verbs_of_people
    meeting zorvek tonight        is:lower:unknown:inside, before:words_before_unlisted_names:space:lower
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Set
from functools import cache, lru_cache

from eyas.privacy.dictionary import is_compound, is_known, is_misspelling
from eyas.privacy.name_shapes import find_inflection
from eyas.privacy.phrase_matcher import load_matcher
from eyas.privacy.span import Span
from eyas.privacy.word_lists import PARTICLES, load_lexicon, read_data_file, read_entries, tables_of_files
from eyas.privacy.words import NAMED_THINGS, TERMS, Words, ends_as_word, is_quoted_word, is_technical

THRESHOLD = 0.4  # probability from which on a word belongs to a name
_THRESHOLD_BESIDE_DATA = 0.25  # the same for a capitalized word in a text with other personal data
_THRESHOLDS_INSIDE = {"core_first": 0.06, "first": 0.2}  # the same for first names inside a sentence
_MAX_WORDS = 7  # in a name
_MAX_LETTERS = 40  # in a word of a name
_CUES = read_data_file("data/tagger_cues")
# A rule of `Span.rule` and the tables of the entries before a name that stand for it; the first that fits counts.
_RULES: dict[str, list[str]] = _CUES["rules"]
# Only after an entry of one of these, or in a text without capitals, an unlisted word in lower case may be a name.
_SURE_CUES = frozenset(table for tables in _RULES.values() for table in tables) | {*_CUES["sure"]}
_LOWER_CUES = _SURE_CUES | {*_CUES["lower"]}
_GAPS = {" ": "space", "\u00a0": "space", ", ": "comma", "-": "hyphen", ". ": "stop", ".": "dot", ": ": "colon"}
_ROW_GAP = re.compile(r"[|\t]|\A[\"']?[,;][\"']?\Z|\A,\d")  # between two cells of a table
_FIELD_GAP = re.compile(r"[\"'`*)\]]{0,3}\s?[:=]")
_LABELS_OF_THINGS = frozenset(("THING", "name_words", "words_for_number"))
_LABELS_OF_PEOPLE = frozenset(("labels_of_names", "labels_of_names_in_fields", "roles", "roles_in_fields"))
_LABELS = _LABELS_OF_PEOPLE | _LABELS_OF_THINGS | {"PERSONAL"}
_FIRST_NAMES = ("core_first", "first", "ambiguous")  # groups of words
_MAX_PARTICLES = 4  # before a last name: "Herr von und zu Stein"
_MAX_INITIAL = 2  # letters of a word before a full stop inside a name


class Tagger:
    """The features of the words of one text, and the search for names. Arguments `i` are indices of words.

    Attributes:
        words: The words of the text.
        is_personal: The text holds other personal data, or words about relatives, friends or shared events.
    """

    def __init__(self, words: Words, language: str, has_data: bool = False) -> None:
        """Finds the entries of the language folders in the text.

        Args:
            words: The words of the text.
            language: The language of the text (ISO 639-1).
            has_data: The text holds other personal data, such as an e-mail address.
        """
        self.words, self.language, self.lexicon = words, language, load_lexicon()
        self.nouns = "nouns" if language == "de" else "names"  # that begin with a capital letter
        self.no_particles = read_entries("words_like_particles", language)
        self.ending: dict[int, set[str]] = {}  # end of an entry -> its tables
        self.starting: dict[int, set[str]] = {}  # start of an entry -> its tables
        for start, end, table in load_matcher(_cue_tables(), language).find(words):
            self.ending.setdefault(end, set()).add(table)
            self.starting.setdefault(start, set()).add(table)
        starts = [*filter(words.starts_sentence, range(len(words)))]
        self.style = "lower" if 3 * sum(map(words.is_capital, starts)) <= len(starts) else "cased"
        self.cells = {i for line in _lines(words) if any(_ROW_GAP.search(words.gap(i)) for i in line) for i in line}
        self.capitals = {words.lowers[i] for i in {*range(len(words))}.difference(starts) if words.is_capital(i)}
        self.written, self.threshold = set(words.written), _THRESHOLD_BESIDE_DATA if has_data else THRESHOLD
        self.is_technical = is_technical(words.text)
        self.is_personal = has_data or any("shared_events" in at or "relations" in at for at in self.ending.values())

    def run(self, weights: Mapping[str, float] | None = None) -> Iterator[Span]:
        """Yields the spans of the names. The score is the probability of the most certain word of the name.

        Args:
            weights: The weight of each feature; None: those of data/tagger_weights.toml.
        """
        weights = read_weights() if weights is None else weights
        first, best, lead = -1, 0.0, frozenset[str]()  # of the name that reaches to the word before word i
        for i in range(len(self.words)):
            follows = first >= 0 and i - first < _MAX_WORDS and self.may_follow(i)
            if i - 1 == first and self.gap(first) == "comma" and "headers" in lead:
                follows = True  # "From: Fifita, Tevita"
            chance, is_capital = 0.0, self.words.is_capital(i)
            if self.may_be_name(i, follows):
                chance = _probability(self.features(i, follows, lead), weights)
            usual = THRESHOLD if self.gap(i) == "number" or not is_capital else self.threshold
            is_inside = is_capital and not self.words.starts_sentence(i)
            limit = min(usual, _THRESHOLDS_INSIDE.get(self.group(i), usual)) if is_inside else usual
            is_name = chance >= limit or (is_capital and follows and self.gap(i - 1) == "hyphen")
            is_name = is_name and not (follows and self._is_noun_behind_name(i))
            if first >= 0 and not (follows and (is_name or self._joins(i))):
                yield self._to_span(first, i - 1, best)
                first = -1
            if is_name:
                if first < 0:
                    first, best, lead = i, 0.0, frozenset(self.tables_before(i))
                best = max(best, chance)
        if first >= 0:
            yield self._to_span(first, len(self.words) - 1, best)

    def _is_noun_behind_name(self, i: int) -> bool:
        """Returns True if word i is an object of a German sentence: "Brot" in "Gestern hat Anna Meier Brot gekauft"."""
        if self.nouns != "nouns" or self.group(i) != "known" or self.gap(i - 1) != "space":
            return False
        return self.group(i - 1) not in (*_FIRST_NAMES, "particle")

    def _joins(self, i: int) -> bool:
        """Returns True if word i is a particle between two words of a name: "Ana de la Cruz"."""
        lowers = self.words.lowers
        if lowers[i] not in PARTICLES or i + 1 >= len(lowers) or self.gap(i) not in ("space", "hyphen"):
            return False
        return lowers[i] not in self.no_particles or lowers[i + 1] in PARTICLES  # "Cornelis op den Akker"

    def _to_span(self, first: int, last: int, score: float) -> Span:
        words, before = self.words, self.tables_before(first)
        is_titled = not before.isdisjoint(_RULES["title"])
        while last > first and words.lowers[last] in PARTICLES and not words.is_initial(last):
            last -= 1
        start = first
        while first > max(0, start - _MAX_PARTICLES + 1) and words.lowers[first - 1] in PARTICLES and is_titled:
            first -= 1  # "Herr de la Vega"
        rule = next((rule for rule, tables in _RULES.items() if not before.isdisjoint(tables)), self.group(first))
        return Span(words.starts[first], words.ends[last], "PERSON", round(score, 3), f"builtin.{rule}")

    def may_follow(self, i: int) -> bool:
        """Returns True if word i and the word before it may belong to one name: "Anna-Lena Meier", "J. R. Smith"."""
        gap = self.gap(i - 1)
        return gap in ("space", "hyphen") or (gap in ("stop", "dot") and len(self.words.written[i - 1]) <= _MAX_INITIAL)

    def tables_before(self, i: int) -> Set[str]:
        """Returns the tables of the entries that end right before word i, or before the particles before it."""
        lowers, k = self.words.lowers, i - 1
        while k > max(0, i - _MAX_PARTICLES) and lowers[k] in PARTICLES and self.words.written[k].islower():
            k -= 1
        tables = self.ending.get(self.words.ends[k], frozenset()) if k >= 0 else frozenset()
        is_near = k >= i - 1 or not tables.isdisjoint(_RULES["title"])
        return tables if is_near else self.ending.get(self.words.ends[i - 1], frozenset())

    def gap(self, i: int) -> str:
        """Returns the class of the characters after word i."""
        gap = self.words.gap(i)
        if gap in _GAPS:
            return _GAPS[gap]
        return "line" if "\n" in gap else "number" if any(map(str.isdigit, gap[:6])) else "other" if gap else "none"

    def form(self, i: int) -> str:
        """Returns the class of the letters of word i."""
        return _find_form(self.words.written[i])

    def group(self, i: int) -> str:
        """Returns the class of word i by the lists that hold it."""
        return _find_group(self.words.lowers[i], self.language)

    def may_be_name(self, i: int, follows: bool) -> bool:
        """Returns True if the model decides on word i: a capitalized word, or one that something announces.

        Args:
            i: Index of the word.
            follows: The word before it belongs to a name.
        """
        word, lower = self.words.written[i], self.words.lowers[i]
        if len(lower) > _MAX_LETTERS or self._is_title_or_thing(i, follows) or not (follows or self._is_free(i)):
            return False
        if word[0].isupper():
            return i == 0 or self.gap(i - 1) != "hyphen" or self.words.lowers[i - 1] not in NAMED_THINGS
        if len(lower) < 3 or not (word.islower() and word[0].islower()):
            return False
        is_verb = lower.endswith("ing") and self.language == "en" and lower not in self.lexicon.sure_names
        if is_verb or lower in self.lexicon.stop or lower in NAMED_THINGS or is_misspelling(lower, self.language):
            return False
        if follows or lower in self.lexicon.sure_names:
            return True
        if self.style == "cased" and is_known(lower, self.language):  # "veggies and flowers", "a dad joke"
            return False
        is_led = not _LOWER_CUES.isdisjoint(self.tables_before(i))
        if (group := self.group(i)) in ("last", "unknown", "compound"):
            is_likely = self.is_personal and (is_led or self.style == "lower")
            return is_likely or not _SURE_CUES.isdisjoint(self.tables_before(i))
        return is_led and group == "ambiguous"

    def _is_title_or_thing(self, i: int, follows: bool) -> bool:
        """Returns True for a title, a group ("Dear all"), a month, or a part of "Victoria Falls"."""
        words, tables, group = self.words, self.starting.get(self.words.starts[i], ()), self.group(i)
        is_pair = i + 1 < len(words) and self.gap(i) == "space" and words.is_capital(i + 1)
        is_thing = is_pair and "thing_nouns" in self.starting.get(words.starts[i + 1], ())
        if is_thing or "titles" in tables or ("group_addressees" in tables and group not in _FIRST_NAMES):
            return True
        is_led = not _LOWER_CUES.isdisjoint(self.tables_before(i))
        return ("months" in tables and not (is_pair or is_led)) or ("thing_nouns" in tables and not (follows or is_led))

    def _is_free(self, i: int) -> bool:
        """Returns False if word i is a cell of a row, or the value of a field that need not be a person's.

        structured_text.py decides about those with the headings and the other fields.
        """
        words, tables = self.words, self.tables_before(i)
        if i in self.cells:
            is_label = not _LABELS.isdisjoint(self.starting.get(words.starts[i], ()))
            return not is_label and (self.group(i) in _FIRST_NAMES or not _LABELS_OF_PEOPLE.isdisjoint(tables))
        is_value = i > 0 and _FIELD_GAP.match(words.gap(i - 1)) is not None
        return not is_value or _LABELS_OF_THINGS.isdisjoint(tables)

    def features(self, i: int, follows: bool, lead: Collection[str]) -> Iterator[str]:
        """Yields the features of word i.

        Args:
            i: Index of the word.
            follows: The word before it belongs to a name.
            lead: The tables of the entries before that name.
        """
        yield "bias"
        yield from self._own_features(i, follows)
        yield from self._features_before(i)
        yield from self._features_after(i)
        if follows:
            yield f"follows:{self.gap(i - 1)}:{self.form(i)}:{self.group(i)}"
            yield f"follows:{self.nouns}:{self.form(i)}:{self.group(i)}"
            for table in lead:
                yield f"lead:{table}:{self.form(i)}"

    def _own_features(self, i: int, follows: bool) -> Iterator[str]:
        words, lower, form, group = self.words, self.words.lowers[i], self.form(i), self.group(i)
        place = "start" if words.starts_sentence(i) else "inside"
        yield f"is:{form}:{group}:{place}:{self.nouns}"
        yield f"form:{form}:{place}"
        yield f"group:{group}"
        if words.is_code(i):
            yield "code"
        if lower in TERMS and self.is_technical:
            yield "term"
        if lower in self.lexicon.last_names:
            yield f"last:{follows}"
        if lower in self.lexicon.cities:
            yield f"city:{follows}"
        if lower in NAMED_THINGS:
            yield "thing"
        if is_quoted_word(words.text, words.starts[i], words.ends[i]):
            yield "quoted"
        if words.text.startswith(("'s", "’s"), words.ends[i]):
            yield "possessive"
        for table in self.starting.get(words.starts[i], ()):
            yield f"in:{table}"
        if form == "lower":
            yield f"style:{self.style}:{group}:{self.is_personal}"
        else:
            yield f"personal:{self.is_personal}:{group}"
            if place == "start" and lower in self.capitals:
                yield f"seen capitalized:{group}"
            if lower in self.written:
                yield "seen in lower case"
        if group in ("unknown", "last", "known", "ending", "compound"):
            yield f"suffix:{lower[-3:]}"
            yield f"suffix:{lower[-2:]}"

    def _features_before(self, i: int) -> Iterator[str]:
        if i == 0:
            return
        words, form, group, gap = self.words, self.form(i), self.group(i), self.gap(i - 1)
        is_title = not self.tables_before(i).isdisjoint(_RULES["title"])
        yield f"left:{gap}:{self.form(i - 1)}:{'title' if is_title else self.group(i - 1)}"
        for table in self.tables_before(i):
            yield f"before:{table}:{gap}:{form}"
            yield f"before:{table}:{group}"
        if gap == "space" and self.group(i - 1) == "stop":
            yield f"word before:{words.lowers[i - 1]}"
        if i > 1 and self.gap(i - 2) == "space":
            for table in self.ending.get(words.ends[i - 2], ()):
                yield f"second before:{table}:{form}"

    def _features_after(self, i: int) -> Iterator[str]:
        words, form, gap = self.words, self.form(i), self.gap(i)
        if gap != "space":
            yield f"gap:{gap}:{form}"
        if i + 1 >= len(words):
            yield f"right:end:{form}"
            return
        yield f"right:{gap}:{self.form(i + 1)}:{self.group(i + 1)}"
        following = next((k for k in range(i + 1, min(i + 4, len(words))) if words.lowers[k] not in PARTICLES), i + 1)
        if following > i + 1 and words.is_capital(following) and self.gap(following - 1) in ("space", "hyphen"):
            yield f"particle:{form}:{self.group(following)}"
        if gap in ("space", "comma"):
            for table in self.starting.get(words.starts[i + 1], ()):
                yield f"after:{table}:{form}"
        if gap == "space" and self.group(i + 1) == "stop":
            yield f"word after:{words.lowers[i + 1]}"
        if i + 2 < len(words) and self.gap(i + 1) == "space":
            for table in self.starting.get(words.starts[i + 2], ()):
                yield f"second after:{table}:{form}"


def _lines(words: Words) -> Iterator[range]:
    """Yields the indices of the words of each line."""
    first = 0
    for i in range(len(words)):
        if "\n" in words.gap(i) or i + 1 == len(words):
            yield range(first, i + 1)
            first = i + 1


@cache
def _cue_tables() -> tuple[str, ...]:
    return tuple(sorted(tables_of_files(*_CUES["files"]) - {*_CUES["no_cues"]} | {*_CUES["labels"]}))


def _find_form(word: str) -> str:
    if len(word) == 1:
        return "initial" if word.isupper() else "letter"
    if word.isupper():
        return "upper"
    return ("capital" if word[1:].islower() else "mixed") if word[0].isupper() else "lower"


@lru_cache(maxsize=100_000)
def _find_group(lower: str, language: str) -> str:
    lexicon = load_lexicon()
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
    for names in ("first", "last"):
        listed = lexicon.sure_names if names == "first" else lexicon.last_names
        if find_inflection(lower, listed, language):
            return f"inflected_{names}"
    if is_known(lower, language):
        return "known"
    if ends_as_word(lower, language == "de"):
        return "ending"
    return "compound" if is_compound(lower, language) else "unknown"


def _probability(features: Iterator[str], weights: Mapping[str, float]) -> float:
    total = sum(weights.get(feature, 0.0) for feature in features)
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


@cache
def read_weights() -> Mapping[str, float]:
    """Returns the weight of each feature."""
    return read_data_file("data/tagger_weights")["weights"]
