"""Decides which of the detected names belong to private persons, for `prompts.privacy.names = "private"`.

A name is private if its record speaks of a person's life, contact or account. The name of a public figure, a character
or a person of a school problem stays. So do towns, in a record without personal data.

    text                                       features of "Tevita Fifita"
    my landlord Tevita Fifita keeps my deposit  private_relations_before, own_relation, private_matters_near
    Who was Tevita Fifita, the painter?         public_hints_near, public_matters_near

Each word table of languages/*/context.toml and topics.toml gives features: the number of its entries in the sentence of
the name (near) and elsewhere in the text (far), and whether one stands right before the name (left) or behind it
(right). Another feature is the score of the words around the name (context_model.py). A logistic model joins them; its
weights are in languages/*/weights/private_names.toml.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from eyas.privacy.cjk_words import CJK_LANGUAGES
from eyas.privacy.context_model import load_weights, split_context
from eyas.privacy.span import Span, in_order
from eyas.privacy.surrogates import name_parts
from eyas.privacy.word_lists import UNICASED, tables_of_files
from eyas.privacy.words import TERMS, load_matcher, split_words

COUNTED = (  # tables whose entries count around a name
    "private_matters", "private_hints", "public_matters", "public_hints", "invented_frames", "first_person",
    *sorted(tables_of_files("topics")),
)  # fmt: skip
PUBLIC = ("public_matters", "public_hints", "invented_frames")
_BEFORE = ("private_relations", "private_contacts")
_TABLES = (*COUNTED, *_BEFORE, "public_people")
_NO_EVIDENCE = ("PERSON", "LOCATION", "IP_ADDRESS", "SECRET")  # kinds that identify no person
_MAX_COUNT = 3  # entries of one table that count
_NEAR = 120  # characters around a name, inside its sentence
_REACH = 24  # characters before a name in which a relation or a contact stands
_FAR = 600  # characters around a name, beyond its sentence
_BESIDE = 12  # characters beside a name in which a word such as "me" stands: "Anna and I", "Anna told me"
_REACH_OF_OWN = 12  # characters before a relation in which a word such as "my" stands
_DENSITY = {"zh": 3, "ja": 2, "ko": 2}  # words of these scripts are shorter: the two reaches above shrink
_LONG = 3  # characters of a Chinese or Japanese name from which on it holds a surname and a given name
_REACH_OF_DATA = 200  # characters around a name in which other personal data is near
_NUMBER = re.compile(r"\d+")
_MAX_GAP = 2  # characters between a name and an entry right beside it
_MAX_MENTIONS = 12  # of one name that are read
_MIN_NUMBERS = 2  # in a school problem
_QUESTION = ("?", "？", "؟")  # at the end of a school problem
_MARKS_OF_NOTES = frozenset(':：|;={"')  # in other texts with numbers
_SENTENCE_END = re.compile(r"[.!?؟।]+(?=\s|\Z)|[。！？\n]")
_PUNCTUATION = " \n　、。，！？：:「」『』“”（）()・"
_THRESHOLD = 0.6  # probability from which on a name is private, and makes the others of the record likelier


class DetectedName(NamedTuple):
    """A detected name and the features of the text around it.

    Attributes:
        text: The index of its text in the record.
        span: Its position in that text.
        words: Its words in lower case, without initials.
        features: The values of its features, most of them counts.
    """

    text: int
    span: Span
    words: frozenset[str]
    features: Mapping[str, float]


def select_private(texts: Sequence[str], spans: Sequence[Sequence[Span]], language: str) -> list[list[Span]]:
    """Returns the spans of each text without the names and places that are not private.

    A name that stays has the probability that it is private as its score. All texts of a record are decided together:
    evidence for one mention of a name counts for its other mentions.

    Args:
        texts: The texts of one record.
        spans: All spans of each text.
        language: The language of the record (ISO 639-1).
    """
    names = describe_names(texts, spans, language)
    others = any(span.kind not in _NO_EVIDENCE for group in spans for span in group)
    weights = load_weights(language, "private_names")["features"]
    each = {id(name.features): name.features for name in names}  # many names have the same ones
    scores = {key: score_features(features, weights) for key, features in each.items()}
    if max(scores.values(), default=0.0) >= _THRESHOLD:
        scores = {key: score_features({**each[key], "beside_private": 1.0}, weights) for key in each}
    kept: list[list[Span]] = [[span for span in group if span.kind not in ("PERSON", "LOCATION")] for group in spans]
    private = [(name, score) for name in names if (score := scores[id(name.features)]) >= _THRESHOLD
               and (name.features.get("full_name") or not name.features.get("school_problem"))]  # fmt: skip
    for name, score in private:
        kept[name.text].append(replace(name.span, score=round(score, 3)))
    if private or others:
        for group, found in zip(kept, spans, strict=True):
            group += [span for span in found if span.kind == "LOCATION"]
    return [sorted(group, key=in_order) for group in kept]


def describe_names(texts: Sequence[str], spans: Sequence[Sequence[Span]], language: str) -> list[DetectedName]:
    """Returns the names of a record with their features. benchmarks/fit_context.py fits the weights to them.

    A feature of a name is the largest value among the names of the record that share a word with it.

    Args:
        texts: The texts of one record.
        spans: All spans of each text.
        language: The language of the record (ISO 639-1).
    """
    names = [name for k, text in enumerate(texts)
             if any(span.kind == "PERSON" for span in spans[k])
             for name in _Context(k, text, spans[k], language).describe()]  # fmt: skip
    largest: dict[str, dict[str, float]] = {}
    distinct = {id(name.features): name for name in names}.values()  # mentions of a name share their features
    for name in distinct:
        for word in name.words:
            _keep_largest(largest.setdefault(word, {}), name.features)
    joined: dict[int, dict[str, float]] = {}
    for name in distinct:
        features = joined[id(name.features)] = {} if name.words else dict(name.features)
        for word in name.words:
            _keep_largest(features, largest[word])
    return [name._replace(features=joined[id(name.features)]) for name in names]


def _keep_largest(features: dict[str, float], others: Mapping[str, float]) -> None:
    for feature, value in others.items():
        if value > features.get(feature, 0.0):
            features[feature] = value


def score_features(features: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Returns the probability that a name with these features is private."""
    total = weights["bias"] + sum(weights.get(feature, 0.0) * value for feature, value in features.items())
    return 1 / (1 + math.exp(-total))


class _Context:
    """The entries of the word tables in one text of a record, and the features of its names.

    All look-ups use sorted positions, so that a text with many names takes linear time.
    """

    def __init__(self, index: int, text: str, spans: Sequence[Span], language: str) -> None:
        self.index, self.text, self.words = index, text, split_words(text)
        self.language, self.is_cjk, self.density = language, language in CJK_LANGUAGES, _DENSITY.get(language, 1)
        self.people = [span for span in spans if span.kind == "PERSON"]
        self.weights = load_weights(language, "private_names")["words"]
        self.context = split_context(text, tuple((span.start, span.end) for span in self.people), language)
        self.data = sorted(span.start for span in spans if span.kind not in _NO_EVIDENCE)
        entries = load_matcher(_TABLES, language).find(self.words)
        self.places: dict[str, list[int]] = {table: [] for table in _TABLES}  # table -> positions of its entries
        self.known: list[tuple[int, int]] = []  # positions of well-known names
        self.beside: dict[tuple[str, int], set[str]] = {}  # side of an entry, its inner edge -> its tables
        inside = {k for span in self.people for k in range(span.start, span.end)}
        for start, end, table in entries:
            if table == "public_people":
                self.known.append((start, end))
            elif start not in inside:
                self.places[table].append(start)
                self.beside.setdefault(("left", end), set()).add(table)
                self.beside.setdefault(("right", start), set()).add(table)
        self.counted = [table for table in COUNTED if self.places[table]]
        self.ends = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]

        is_question = text.rstrip().endswith(_QUESTION) and _MARKS_OF_NOTES.isdisjoint(text)
        is_task = (bool(self.places["invented_frames"]) or is_question) and not self.places["first_person"]
        self.is_school_problem = is_task and not self.data and len(_NUMBER.findall(text)) >= _MIN_NUMBERS

    def describe(self) -> list[DetectedName]:
        """Returns all names of the text with their features. A name of many mentions has those of the first ones."""
        seen: dict[str, list[DetectedName]] = {}
        for span in self.people:
            mentions = seen.setdefault(self.text[span.start : span.end], [])
            is_new = len(mentions) < _MAX_MENTIONS
            mentions.append(self._describe(span) if is_new else mentions[0]._replace(span=span))
        return sorted((name for mentions in seen.values() for name in mentions), key=lambda name: in_order(name.span))

    def _describe(self, span: Span) -> DetectedName:
        left = max(self.ends[bisect_right(self.ends, span.start) - 1], span.start - _NEAR)
        right = min(self.ends[bisect_left(self.ends, span.end)], span.end + _NEAR)
        rule = span.rule.rpartition(".")[2]
        features = {f"rule_{rule}": 1.0, "context": self.context.score(span.start, span.end, self.weights)}
        words = self._words_of(span)
        for table in self.counted:
            near = _count(self.places[table], left, right)
            around = _count(self.places[table], min(left, span.start - _FAR), max(right, span.end + _FAR))
            features[f"{table}_near"] = min(near, _MAX_COUNT)
            features[f"{table}_far"] = min(around - near, _MAX_COUNT)
        first = max(left, span.start - _REACH // self.density)
        for table in _BEFORE:
            features[f"{table}_before"] = _count(self.places[table], first, span.start) > 0
        for gap in range(_MAX_GAP + 1):
            for side, edge in (("left", span.start - gap), ("right", span.end + gap)):
                features |= dict.fromkeys((f"{table}_{side}" for table in self.beside.get((side, edge), ())), 1.0)
        beside = max(left, span.start - _BESIDE), min(right, span.end + _BESIDE)
        is_near = _count(self.data, span.start - _REACH_OF_DATA, span.end + _REACH_OF_DATA) > 0
        is_long = self.is_cjk and span.end - span.start > _LONG
        is_public = any(features.get(f"{table}_{place}") for table in PUBLIC for place in ("near", "far"))
        at = bisect_left(self.known, (span.end, 0)) - 1
        features |= {
            "own_relation": self._has_own_relation(span, left),
            "first_person_beside": _count(self.places["first_person"], *beside) > 0,
            "school_problem": self.is_school_problem,
            "term": words <= TERMS,
            "nothing_public": not is_public,
            "doubt": 1 - span.score,
            "full_name": len(words) > 1 or span.rule.endswith(".title") or is_long,
            "data_near": is_near,
            "data_far": bool(self.data) and not is_near,
            "public_people": at >= 0 and self.known[at][1] > span.start,
        }
        found = {feature: float(value) for feature, value in features.items() if value}
        return DetectedName(self.index, span, words, found)

    def _has_own_relation(self, span: Span, left: int) -> bool:
        """Returns True for a name behind "my neighbor" or before ", my neighbor"."""
        relations, own = self.places["private_relations"], self.places["first_person"]
        k = bisect_left(relations, span.start)
        if k > 0 and relations[k - 1] >= max(left, span.start - _REACH // self.density):
            at = relations[k - 1]
            # Chinese, Japanese and Korean mostly leave out "my"; "X's wife" has a particle before "wife".
            is_first = self.is_cjk and not self.text[max(0, at - 1) : at].strip(_PUNCTUATION)
            # An Arabic relation may hold the word itself.
            if is_first or _count(own, at - _REACH_OF_OWN // self.density, at + 1):
                return True
        after = relations[k] if k < len(relations) else len(self.text)
        is_apposition = self.text[span.end : span.end + 2].lstrip()[:1] in tuple(",(–-") and after - span.end <= _REACH
        return is_apposition and _count(own, span.end, after) > 0

    def _words_of(self, span: Span) -> frozenset[str]:
        if self.is_cjk or self.language in UNICASED:
            return frozenset(part[0].casefold() for part in name_parts(self.text[span.start : span.end]))
        first, last = bisect_left(self.words.starts, span.start), bisect_left(self.words.starts, span.end)
        return frozenset(lower for lower in self.words.lowers[first:last] if len(lower) > 1)


def _count(positions: Sequence[int], start: int, end: int) -> int:
    """Returns how many of the sorted positions are in the range from `start` to before `end`."""
    return max(0, bisect_left(positions, end) - bisect_left(positions, start))
