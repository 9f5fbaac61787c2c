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
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from itertools import takewhile

from eyas.privacy.context_model import read_weights
from eyas.privacy.dictionary import is_known, is_misspelling
from eyas.privacy.name_features import CUES, MAX_LETTERS, MAX_PARTICLES, RULES, UNCASED, NameFeatures
from eyas.privacy.span import Span
from eyas.privacy.word_lists import PARTICLES, UNICASED, read_entries
from eyas.privacy.words import NAMED_THINGS

_THRESHOLD = 0.4  # probability from which on a word belongs to a name
# The same for a word that is rarely anything else, and for a capitalized word in a text with other personal data.
_THRESHOLD_OF_NAMES = 0.25
# The same for first names inside a sentence, and for last names right before a title: "천요양사님".
_THRESHOLDS_INSIDE = {"core_first": 0.06, "first": 0.15, "titled": 0.03}
# The same inside a sentence of a text with other personal data.
_THRESHOLDS_WITH_DATA = {"last": 0.1, "unknown": 0.12}
_THRESHOLD_LED = 0.2  # the same in scripts without capitals behind a title, in Chinese characters also a relation
_MIN_TITLED = 0.5  # score of a name behind a title
_WORDS = frozenset(("ambiguous", "common", "ending", "known", "stop", "stop_name", "town"))  # groups
_MAX_WORDS = 7  # in a name
_MAX_LAST = 3  # words of a Japanese last name that no list holds
_SURE = 0.9  # probability from which on a word before a Hindi last name is a first name, even if it is a word, too
_POSSIBLE = 0.1  # probability from which on a word before a Russian first name is a last name: "Лоза Владислав"
_MANY_WORDS = 400  # from which on equal neighborhoods are decided once
_REACH = 5  # words on each side on which a decision depends
# Only after an entry of one of these, or in a text without capitals, an unlisted word in lower case may be a name.
_SURE_CUES = frozenset(table for tables in RULES.values() for table in tables) | {*CUES["sure"]}
_LOWER_CUES = _SURE_CUES | {*CUES["lower"]}
_FIELD_GAP = re.compile(r"[\"'`*)\]]{0,3}\s?[:=]")
_LABELS_OF_THINGS, _LABELS_OF_PEOPLE = map(frozenset, (CUES["labels_of_things"], CUES["labels_of_people"]))
_LABELS = _LABELS_OF_PEOPLE | _LABELS_OF_THINGS | {"PERSONAL"}
_FIRST_NAMES = ("core_first", "first", "ambiguous")  # groups of words
_JOINED = (*_FIRST_NAMES, "last", "unknown")  # groups of words behind a name and "&"
_GROUPS_IN_LOWER = frozenset((*_JOINED, "particle", "compound"))  # of words in lower case that may begin a name
_NO_NAMES = frozenset(("known", "stop", "honorific", "particles"))  # groups of words in scripts without capitals
_MAX_GIVEN = 2  # characters of a Japanese given name that is a word
_MAX_INITIAL = 2  # letters of a word before a full stop inside a name


class TaggerWeights(dict[str, float]):
    """Feature -> weight. The sums of groups of features are kept, for most of them come back."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__(weights)
        self._sum_of = lru_cache(50_000)(lambda group: sum(self.get(feature, 0.0) for feature in group))

    def probability(self, groups: Iterable[tuple[str, ...]]) -> float:
        """Returns the probability that a word with these features belongs to a name."""
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, sum(map(self._sum_of, groups))))))


@cache
def load_weights() -> dict[str, TaggerWeights]:
    """Returns the weights of data/tagger_weights.toml: kind of script -> weights."""
    return {family: TaggerWeights(weights) for family, weights in read_weights("data/tagger_weights").items()}


class Tagger(NameFeatures):
    """The search for names in one text. Arguments `i` are indices of words."""

    def run(self, weights: Mapping[str, TaggerWeights] | None = None) -> Iterator[Span]:
        """Yields the spans of the names. The score is the probability of the most certain word of the name.

        Args:
            weights: The weights of each kind of script; None: those of data/tagger_weights.toml.
        """
        used = weights or load_weights()
        chances: dict[tuple[object, ...], float] = {}
        first, best, lead = -1, 0.0, frozenset[str]()  # of the name that reaches to the word before word i
        for i in range(len(self.words)):
            if first < 0 and not self._may_begin_name(i):
                continue
            follows = first >= 0 and i - first < _MAX_WORDS and self.may_follow(i)
            # "From: Fifita, Tevita"
            follows |= i - 1 == first and self.gaps[first] == "comma" and "headers" in lead
            is_capital = self.words.is_capital(i)
            key = (*self._neighborhoods[i - _REACH : i + _REACH], i in self.cells, follows, lead)
            if (chance := chances.get(key) if len(key) > 2 * _REACH else None) is None:
                is_possible = self.may_be_name(i, follows)
                chance = used[self.family(i)].probability(self.features(i, follows, lead)) if is_possible else 0.0
                chances[key] = chance
            is_likely = is_capital and self.has_data and self.gaps[i] != "number"
            usual = _THRESHOLD if self.groups[i] in _WORDS and not is_likely else _THRESHOLD_OF_NAMES
            is_inside = is_capital and not self.at_start[i]
            is_titled = self.gaps[i] == "none" and self.groups[i + 1 : i + 2] == ("honorific",)
            is_last = self.groups[i].startswith("last") or (self.language == "ja" and self._begin(i) < i)
            group = "titled" if is_titled and is_last else self.groups[i]
            limit = min(usual, _THRESHOLDS_INSIDE.get(group, usual)) if is_inside or is_titled else usual
            limit = min(limit, _THRESHOLDS_WITH_DATA.get(group, limit)) if is_inside and is_likely else limit
            # "Best, Zorvek & Quendla"
            is_joined = first >= 0 and is_capital and self.words.gaps[i - 1] == " & " and self.groups[i] in _JOINED
            cues = _SURE_CUES if self.forms[i] == "han" else RULES["title"]
            is_led = self.forms[i] in UNCASED and not follows and chance >= _THRESHOLD_LED
            is_led = is_led and not self.tables_before(i).isdisjoint(cues)
            is_name = chance >= limit or is_led or is_joined or (follows and self._is_sure_part(i))
            is_name = is_name and not (follows and self._ends_before(i, first))
            if first >= 0 and not (follows and (is_name or self._joins(i))):
                yield self._to_span(first, i - 1, best)
                first = -1
            if is_name and first < 0:
                first, best, lead = self._begin(i), 0.0, frozenset(self.tables_before(i))
            best = max(best, chance) if is_name else best
        if first >= 0:
            yield self._to_span(first, len(self.words) - 1, best)

    @cached_property
    def _neighborhoods(self) -> list[int]:
        """Numbers of the words of a long text: equal words with equal entries and gaps have equal numbers."""
        words, numbers = self.words, dict[tuple[object, ...], int]()
        if len(words) < _MANY_WORDS:
            return []
        starting, ending = ({at: frozenset(tables) for at, tables in entries.items()}
                            for entries in (self.starting, self.ending))  # fmt: skip
        each = zip(words.written, words.gaps, map(starting.get, words.starts), map(ending.get, words.ends), strict=True)
        return [numbers.setdefault(one, len(numbers)) for one in each]

    def _begin(self, i: int) -> int:
        """Returns the first word of a name that the model finds from word i on.

        Before it may stand an unlisted last name ("津久井" in "津久井柚葉"), or a first name that is a word, too.
        """
        if self.language == "ja" and self.forms[i] == "han" and not self.groups[i].startswith("last"):
            return i - len(list(takewhile(self._is_character, range(i - 1, max(-1, i - 1 - _MAX_LAST), -1))))
        is_last = self.language == "hi" and self.groups[i] == "last" and self.groups[i - 1 : i] == ("known",)
        if is_last and self.gaps[i - 1] == "space" and self.words.starts[i - 1] not in self.starting:
            return i - (load_weights()["unicased"].probability(self.features(i - 1, False, ())) >= _SURE)
        is_first = self.language == "ru" and self.groups[i] in ("core_first", "first") and self.groups[i - 1] == "known"
        if is_first and i and self.gaps[i - 1] == "space" and self.words.is_capital(i - 1) and not self.at_start[i - 1]:
            return i - (load_weights()["cased"].probability(self.features(i - 1, False, ())) >= _POSSIBLE)
        return i

    def _is_character(self, i: int) -> bool:
        """Returns True for a Chinese character or a listed last name right before the next word: no ordinary word."""
        return self.forms[i] == "han" and self.gaps[i] == "none" and self.groups[i].startswith(("-", "last"))

    def _ends_before(self, i: int, first: int) -> bool:
        """Returns True if the name that begins at word `first` surely ends before word i.

        "Gestern hat Anna Meier Brot gekauft": a German object. "老裴装": behind "old" or "young", a Chinese last name
        stands alone.
        """
        if self.language == "zh" and i > 1 and self.words.lowers[i - 2] in ("老", "小"):
            return self.groups[i - 1].startswith("last.")
        is_object = self.nouns == "nouns" and self.groups[i] == "known" and self.gaps[i - 1] == "space"
        is_begun = self.groups[i - 1] == "unknown" and i - 1 == first  # "Kübra Oberdörfer"
        return is_object and not is_begun and self.groups[i - 1] not in (*_FIRST_NAMES, "particle")

    def _is_sure_part(self, i: int) -> bool:
        """Returns True if word i surely belongs to the name before it: "Lena" in "Anna-Lena", "蓝天" in "郜蓝天，"."""
        before, is_word = self.groups[i - 1], self.groups[i] == "known" and self.gaps[i] != "none"
        is_given = self.language == "zh" and before.startswith("last.") and is_word
        is_given |= self.language == "ja" and before.startswith("last") and self._is_behind_blank(i)  # "中村 心愛"
        return before == "kin" or is_given or (self.words.is_capital(i) and self.gaps[i - 1] == "hyphen")

    def _is_behind_blank(self, i: int) -> bool:
        """Returns True for one or two Chinese characters between a blank and the end of a part of the sentence."""
        is_short = self.forms[i] == "han" and len(self.words.written[i]) <= _MAX_GIVEN
        return is_short and self.groups[i] == "known" and self.gaps[i - 1] == "space" and self.gaps[i] != "none"

    def _joins(self, i: int) -> bool:
        """Returns True if word i is a particle between two words of a name: "Ana de la Cruz"."""
        lowers = self.words.lowers
        is_particle = lowers[i] in PARTICLES and i + 1 < len(lowers) and self.gaps[i] in ("space", "hyphen")
        return is_particle and (lowers[i] not in self.no_particles or lowers[i + 1] in PARTICLES)  # "op den Akker"

    def _to_span(self, first: int, last: int, score: float) -> Span:
        words, before = self.words, self.tables_before(first)
        is_titled = not before.isdisjoint(RULES["title"])
        while last > first and words.lowers[last] in PARTICLES and not words.is_initial(last):
            last -= 1
        start = first
        while first > max(0, start - MAX_PARTICLES + 1) and words.lowers[first - 1] in PARTICLES and is_titled:
            first -= 1  # "Herr de la Vega"
        rule = next((rule for rule, tables in RULES.items() if not before.isdisjoint(tables)), "")
        if self.forms[first] in UNCASED:
            is_titled = last + 1 < len(words) and self.groups[last + 1] == "honorific"
            rule = "field" if rule == "label" and self.gaps[first - 1] == "colon" else rule
            is_signed = last + 1 == len(words) and first > 0 and self.gaps[first - 1] == "line"
            rule = rule or ("title" if is_titled else "closing" if is_signed else "listed")
        rule = rule or self.groups[first]
        score = round(max(score, _MIN_TITLED if rule == "title" else 0.0), 3)
        return Span(words.starts[first], words.ends[last], "PERSON", score, f"builtin.{rule}")

    def may_follow(self, i: int) -> bool:
        """Returns True if word i and the word before it may belong to one name: "Anna-Lena Meier", "J. R. Smith"."""
        gap = self.gaps[i - 1]
        if gap in ("none", "middle"):
            return self.forms[i] in UNCASED and self.forms[i - 1] in UNCASED
        return gap in ("space", "hyphen") or (gap in ("stop", "dot") and len(self.words.written[i - 1]) <= _MAX_INITIAL)

    def may_be_name(self, i: int, follows: bool) -> bool:
        """Returns True if the model decides on word i: a capitalized word, or one that something announces.

        Args:
            i: Index of the word.
            follows: The word before it belongs to a name.
        """
        word, lower = self.words.written[i], self.words.lowers[i]
        if len(lower) > MAX_LETTERS or not (follows or self._is_free(i)):
            return False
        if self.forms[i] in UNCASED:
            return self._may_be_uncased_name(i, follows)
        if self._is_title_or_thing(i, follows):
            return False
        if self.is_uncased and not follows and not (word[0].isupper() and len(word) > 1):
            return False
        if word[0].isupper():
            return i == 0 or self.gaps[i - 1] != "hyphen" or self.words.lowers[i - 1] not in NAMED_THINGS
        if len(lower) < 3 or not (word.islower() and word[0].islower()):
            return False
        is_verb = lower.endswith("ing") and self.language == "en" and lower not in self.lexicon.sure_names
        if is_verb or lower in self.lexicon.stop or lower in NAMED_THINGS:
            return False
        is_led = follows or lower in self.lexicon.sure_names or self._announces(i)
        return is_led and not is_misspelling(lower, self.language)

    def _announces(self, i: int) -> bool:
        """Returns True if an unlisted word in lower case stands where a name may stand."""
        lower = self.words.lowers[i]
        if self.style == "cased" and is_known(lower, self.language):  # "veggies and flowers", "a dad joke"
            return False
        is_led = not _LOWER_CUES.isdisjoint(self.tables_before(i))
        if (group := self.groups[i]) in ("last", "unknown", "compound"):
            is_likely = self.is_personal and (is_led or (self.style == "lower" and not is_known(lower, self.language)))
            return is_likely or not _SURE_CUES.isdisjoint(self.tables_before(i))
        return is_led and group == "ambiguous"

    def _may_begin_name(self, i: int) -> bool:
        """Returns False for most words that `may_be_name` rejects, in less time. No name reaches to word i."""
        if self.forms[i] == "lower":
            return self.groups[i] in _GROUPS_IN_LOWER
        return self.groups[i] not in _NO_NAMES or self.forms[i] not in UNCASED or self.words.starts[i] in self.starting

    def _may_be_uncased_name(self, i: int, follows: bool) -> bool:
        group = self.groups[i]
        is_famous = "public_people" in self.starting.get(self.words.starts[i], ())
        if group == "stop" and follows:  # "फ़ातिमा पी के"
            return self.groups[i - 1] == "initial" and self.words.lowers[i] in read_entries("initials", self.language)
        if group in ("stop", "honorific", "particles"):
            return is_famous and self.language in UNICASED
        if self.language in UNICASED:
            return follows or group != "known" or is_famous
        is_given = self.language == "zh" or (self.language == "ja" and self._is_behind_blank(i))
        return group != "known" or (follows and is_given)  # "郜蓝天": "蓝天" is a word

    def _is_title_or_thing(self, i: int, follows: bool) -> bool:
        """Returns True for a title, a group ("Dear all"), a month, or a part of "Victoria Falls"."""
        words, tables, group = self.words, self.starting.get(self.words.starts[i], ()), self.groups[i]
        is_pair = i + 1 < len(words) and self.gaps[i] == "space" and words.is_capital(i + 1)
        is_thing = is_pair and "thing_nouns" in self.starting.get(words.starts[i + 1], ())
        if is_thing or "titles" in tables or ("group_addressees" in tables and group not in _FIRST_NAMES):
            return True
        is_led = not _LOWER_CUES.isdisjoint(self.tables_before(i))
        return ("months" in tables and not (is_pair or is_led)) or ("thing_nouns" in tables and not (follows or is_led))

    def _is_free(self, i: int) -> bool:
        """Returns False if word i is a cell of a row, or the value of a field that need not be a person's.

        structured_text.py decides about those with the headings and the other fields.
        """
        if i in self.cells and self.forms[i] not in UNCASED:
            is_label = not _LABELS.isdisjoint(self.starting.get(self.words.starts[i], ()))
            is_first = self.groups[i] in _FIRST_NAMES
            return not is_label and (is_first or not _LABELS_OF_PEOPLE.isdisjoint(self.tables_before(i)))
        is_value = i > 0 and _FIELD_GAP.match(self.words.gaps[i - 1]) is not None
        return not is_value or self.has_data or _LABELS_OF_THINGS.isdisjoint(self.tables_before(i))
