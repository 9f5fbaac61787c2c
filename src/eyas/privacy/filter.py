"""The filter of a record: detectors find, the recipe says what is dropped and what is replaced.

Nothing found leaves this room: results hold counts by kind, errors the name of a detector and of an exception's class.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from eyas.base.errors import EyasError, StageError
from eyas.privacy import coreference as mention
from eyas.privacy.config import BUILTIN, MIN_KEY_BYTES, PrivacyConfig
from eyas.privacy.span import KINDS, Detector, Span, merge_spans
from eyas.privacy.surrogates import FIRST, Surrogates, name_parts
from eyas.privacy.tokens import split_words
from eyas.privacy.wordlist_cache import code_digest

UNSUPPORTED_LANGUAGE = "unsupported_language"
_REPEATED = ("EMAIL", "IP_ADDRESS", "LOCATION")  # kinds whose values are sought letter by letter in the whole record
MAX_REPEATED = 100  # values of a record that are sought again: each is one pass over its texts


@dataclass(frozen=True)
class CleanedRecord:
    """A record that may be used: its texts with surrogates, and how many values of each kind were replaced."""

    texts: tuple[str, ...]
    changed: dict[str, int]


@dataclass(frozen=True)
class DroppedRecord:
    """A record that must not be used: the kind that decided in lower case ("secret", "card"), or the language."""

    reason: str
    kinds: dict[str, int]  # what was found, by kind


class PrivacyFilter:
    """Cleans records with one configuration, one key and its detectors. Builds the detectors where none are given."""

    def __init__(self, config: PrivacyConfig, key: bytes, detectors: Sequence[Detector] | None = None) -> None:
        assert len(key) >= MIN_KEY_BYTES, f"a key of at least {MIN_KEY_BYTES} bytes"
        self._config = config
        self._surrogates = Surrogates(key)
        self._detectors = tuple(detectors) if detectors is not None else build_detectors(config.detectors)
        self.name_languages = frozenset[str]().union(*(detector.name_languages for detector in self._detectors))
        settings = asdict(config) | {"key_file": None, "names": [detector.name for detector in self._detectors]}
        settings["code"] = code_digest()
        self.digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def clean(self, records: Sequence[tuple[Sequence[str], str]]) -> list[CleanedRecord | DroppedRecord]:
        """What becomes of each record (its texts, its language), in order. Detectors see all texts at once."""
        wanted = [
            self._config.unsupported_language == "keep" or language in self.name_languages for _, language in records
        ]
        texts = [text for (group, _), want in zip(records, wanted, strict=True) if want for text in group]
        languages = [language for (group, language), want in zip(records, wanted, strict=True) if want for _ in group]
        spans = iter(self._find(texts, languages))
        result: list[CleanedRecord | DroppedRecord] = []
        for (group, language), want in zip(records, wanted, strict=True):
            if want:
                result.append(self._act(group, language, [next(spans) for _ in group]))
            else:
                result.append(DroppedRecord(UNSUPPORTED_LANGUAGE, {}))
        return result

    def scan(self, texts: Sequence[str], languages: Sequence[str]) -> list[dict[str, int]]:
        """How many values of each kind stand in each text; for the model's answers. Surrogates count as well."""
        return [_count(spans) for spans in self._find(texts, languages)]

    def _find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        found: list[list[Span]] = [[] for _ in texts]
        for detector in self._detectors:
            try:
                answers = detector.find(texts, languages)
            except EyasError:
                raise
            except Exception as error:  # its message may quote the text
                failure = type(error).__name__
            else:
                assert len(answers) == len(texts), "a detector answers for each text"
                for spans, answer in zip(found, answers, strict=True):
                    spans += answer
                continue
            raise StageError(
                f"{failure} in the detector {detector.name}", "spans for every text", "run again; report it if it stays"
            )
        return [merge_spans(spans) for spans in found]

    def _act(self, texts: Sequence[str], language: str, spans: list[list[Span]]) -> CleanedRecord | DroppedRecord:
        kinds = _count(span for group in spans for span in group)
        for kind in self._config.drop:
            if kind in kinds:
                return DroppedRecord(kind.lower(), kinds)
        chosen = [[span for span in group if span.kind in self._config.replace] for group in spans]
        if not any(chosen):
            return CleanedRecord(tuple(texts), {})
        return self._replace(texts, language, chosen)

    def _replace(self, texts: Sequence[str], language: str, spans: list[list[Span]]) -> CleanedRecord:
        names = mention.collect_names(texts, spans)
        digits, values = _repeatable(texts, spans)
        held = frozenset(word for text in texts for word in split_words(text).lowers)
        clean, changed = [], Counter[str]()
        for text, group in zip(texts, spans, strict=True):
            more: list[Span] = []
            if "PERSON" in self._config.replace and names.roles:
                more += mention.find_names(text, names, language)
            if digits:
                more += mention.find_phone_numbers(text, digits)
            more += mention.find_values(text, values)
            places = _beside(group, more)
            changed.update(span.kind for span in places)
            clean.append(
                mention.replace_spans(
                    text, places, lambda span, text=text: self._surrogate(text, span, language, names, held)
                )
            )
        return CleanedRecord(tuple(clean), _ordered(changed))

    def _surrogate(self, text: str, span: Span, language: str, names: mention.RecordNames, held: frozenset[str]) -> str:
        """Another value for a span. `held`: the words of the record, which no surrogate may be."""
        value = text[span.start : span.end]
        if span.kind != "PERSON":
            return self._surrogates.replace_value(span.kind, value, language, held)
        user = names.user_names.get(value.casefold())
        if user:
            made = "".join(self._part(word, word, language, names, held) for word in user)
            return made if value.islower() else made.title()
        pieces, done = [], 0
        for part in name_parts(value):
            pieces += [value[done : part.start()], self._part(part[0], part[0].casefold(), language, names, held)]
            done = part.end()
        return "".join((*pieces, value[done:]))

    def _part(self, written: str, lower: str, language: str, names: mention.RecordNames, held: frozenset[str]) -> str:
        return self._surrogates.replace_name_part(written, names.roles.get(lower, FIRST), language, held)


def build_detectors(names: Sequence[str]) -> tuple[Detector, ...]:
    """The detectors of a recipe. Raises UsageError or InputError for what is not installed or not there."""
    made: list[Detector] = []
    for name in names:
        kind, _, rest = name.partition(":")
        if name == BUILTIN:
            from eyas.privacy.builtin_detector import BuiltinDetector

            made.append(BuiltinDetector())
        elif kind == "transformers":
            from eyas.privacy.model_detectors import TransformersDetector

            made.append(TransformersDetector(rest))
        elif kind == "gliner":
            from eyas.privacy.model_detectors import GlinerDetector

            made.append(GlinerDetector(rest))
        else:
            from eyas.privacy.dlp_detector import DlpDetector

            made.append(DlpDetector(rest))
    return tuple(made)


def _beside(spans: Sequence[Span], more: Sequence[Span]) -> list[Span]:
    """The spans, and those of `more` that overlap none of them, in order."""
    taken = sorted(spans)
    result, k = list(taken), 0
    for span in merge_spans(more):
        while k < len(taken) and taken[k].end <= span.start:
            k += 1
        if k == len(taken) or taken[k].start >= span.end:
            result.append(span)
    return sorted(result)


def _repeatable(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> tuple[frozenset[str], dict[str, str]]:
    """What was found and may stand in the record again: the digits of phone numbers, other values with their kind."""
    digits, values = set(), {}
    for text, group in zip(texts, spans, strict=True):
        for span in group:
            value = text[span.start : span.end]
            if span.kind == "PHONE":
                digits.add(re.sub(r"\D", "", value))
            elif span.kind in _REPEATED and len(value) > 2 and len(values) < MAX_REPEATED:
                values[value] = span.kind
    return frozenset(digits), values


def _count(spans: Iterable[Span]) -> dict[str, int]:
    return _ordered(Counter(span.kind for span in spans))


def _ordered(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in KINDS if counts[kind]}
