"""The privacy filter of a record: detectors find values, the recipe says which kinds are dropped or replaced.

No value leaves this package: results hold counts by kind, errors the name of a detector and the class of an exception.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from eyas.base.errors import EyasError, StageError, UsageError
from eyas.privacy import coreference
from eyas.privacy.config import BUILTIN, MIN_KEY_BYTES, PrivacyConfig
from eyas.privacy.span import KINDS, Detector, Span, merge_spans
from eyas.privacy.surrogates import FIRST, Surrogates, name_parts
from eyas.privacy.word_lists import code_digest
from eyas.privacy.words import split_words

UNSUPPORTED_LANGUAGE = "unsupported_language"
_REPEATED_KINDS = ("EMAIL", "IP_ADDRESS", "LOCATION")  # their values are searched letter by letter in the whole record
MAX_REPEATED = 100  # values of a record that are searched again: each is one pass over its texts


@dataclass(frozen=True)
class CleanedRecord:
    """A record that may be used: its texts with surrogates, and how many values of each kind were replaced."""

    texts: tuple[str, ...]
    changed: dict[str, int]


@dataclass(frozen=True)
class DroppedRecord:
    """A record that must not be used: the kind that decided in lower case ("secret", "card"), or the language."""

    reason: str
    kinds: dict[str, int]  # the number of values of each kind


class PrivacyFilter:
    """The filter for one configuration, one key and its detectors, which it builds where none are given."""

    def __init__(self, config: PrivacyConfig, key: bytes, detectors: Sequence[Detector] | None = None) -> None:
        """Builds the detectors and the digest. Raises UsageError or InputError for a detector that is not available."""
        assert len(key) >= MIN_KEY_BYTES, f"a key of at least {MIN_KEY_BYTES} bytes"
        self._config = config
        self._surrogates = Surrogates(key)
        self._detectors = tuple(detectors) if detectors is not None else build_detectors(config.detectors)
        self.name_languages = frozenset[str]().union(*(detector.name_languages for detector in self._detectors))
        settings = asdict(config) | {"key_file": None, "names": [detector.name for detector in self._detectors]}
        settings["code"] = code_digest()
        self.digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def clean(self, records: Sequence[tuple[Sequence[str], str]]) -> list[CleanedRecord | DroppedRecord]:
        """Returns each record (its texts, its language) cleaned or dropped, in order, in one call of each detector."""
        keep_all = self._config.unsupported_language == "keep"
        supported = [keep_all or language in self.name_languages for _, language in records]
        chosen = [record for record, is_supported in zip(records, supported, strict=True) if is_supported]
        texts = [text for group, _ in chosen for text in group]
        spans = iter(self._detect(texts, [language for group, language in chosen for _ in group]))
        return [
            self._apply(group, language, [next(spans) for _ in group])
            if is_supported
            else DroppedRecord(UNSUPPORTED_LANGUAGE, {})
            for (group, language), is_supported in zip(records, supported, strict=True)
        ]

    def scan(self, texts: Sequence[str], languages: Sequence[str]) -> list[dict[str, int]]:
        """Returns the number of values of each kind in each text; for the model's answers. Surrogates count as well."""
        return [_count_kinds(spans) for spans in self._detect(texts, languages)]

    def _detect(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        found: list[list[Span]] = [[] for _ in texts]
        for detector in self._detectors:
            failure = ""
            try:
                results = detector.find(texts, languages)
            except EyasError:
                raise
            except Exception as error:  # its message may quote the text
                failure, results = type(error).__name__, []
            if failure:
                raise StageError(f"The detector {detector.name} failed with {failure}", "Run the command again")
            assert len(results) == len(texts), "a detector returns spans for each text"
            for spans, more in zip(found, results, strict=True):
                spans += more
        return [merge_spans(spans) for spans in found]

    def _apply(self, texts: Sequence[str], language: str, spans: list[list[Span]]) -> CleanedRecord | DroppedRecord:
        """Returns the record as the recipe wants it."""
        kinds = _count_kinds(span for group in spans for span in group)
        for kind in self._config.drop:
            if kind in kinds:
                return DroppedRecord(kind.lower(), kinds)
        replaced = [[span for span in group if span.kind in self._config.replace] for group in spans]
        if not any(replaced):
            return CleanedRecord(tuple(texts), {})
        return _Replacement(self._surrogates, texts, language, replaced, "PERSON" in self._config.replace).run()


class _Replacement:
    """The replacement of the values of one record, and of their further mentions in it."""

    def __init__(
        self,
        surrogates: Surrogates,
        texts: Sequence[str],
        language: str,
        spans: Sequence[Sequence[Span]],
        replaces_names: bool,
    ) -> None:
        self.surrogates, self.texts, self.language, self.spans = surrogates, texts, language, spans
        self.names = coreference.collect_names(texts, spans)
        self.replaces_names = replaces_names and bool(self.names.roles)
        self.digits, self.values = _collect_repeatable(texts, spans)
        # No surrogate may be a word of the record.
        self.record_words = frozenset(word for text in texts for word in split_words(text).lowers)

    def run(self) -> CleanedRecord:
        cleaned, changed = [], Counter[str]()
        for text, group in zip(self.texts, self.spans, strict=True):
            mentions = coreference.find_names(text, self.names, self.language) if self.replaces_names else []
            if self.digits:
                mentions += coreference.find_phone_numbers(text, self.digits)
            mentions += coreference.find_values(text, self.values)
            spans = _add_without_overlap(group, mentions)
            changed.update(span.kind for span in spans)
            cleaned.append(
                coreference.replace_spans(text, spans, lambda span, text=text: self._replace_value(text, span))
            )
        return CleanedRecord(tuple(cleaned), _in_order(changed))

    def _replace_value(self, text: str, span: Span) -> str:
        value = text[span.start : span.end]
        if span.kind != "PERSON":
            return self.surrogates.replace_value(span.kind, value, self.language, self.record_words)
        user_name = self.names.user_names.get(value.casefold())
        if user_name:
            joined = "".join(self._replace_part(part, part) for part in user_name)
            return joined if value.islower() else joined.title()
        pieces, done = [], 0
        for part in name_parts(value):
            pieces += [value[done : part.start()], self._replace_part(part[0], part[0].casefold())]
            done = part.end()
        return "".join((*pieces, value[done:]))

    def _replace_part(self, written: str, lower: str) -> str:
        role = self.names.roles.get(lower, FIRST)
        return self.surrogates.replace_name_part(written, role, self.language, self.record_words)


def build_detectors(names: Sequence[str]) -> tuple[Detector, ...]:
    """Returns the detectors of a recipe. Raises UsageError or InputError for one that is not installed or not there."""
    return tuple(map(_build_detector, names))


def _build_detector(name: str) -> Detector:
    kind, _, argument = name.partition(":")
    if name == BUILTIN:
        try:
            from eyas.privacy.builtin_detector import BuiltinDetector

            return BuiltinDetector()
        except ImportError as error:
            raise UsageError(
                f"Screening prompts needs the package {error.name}, which is not installed",
                "Run: pip install 'eyas[data]'",
            ) from None
    if kind == "transformers":
        from eyas.privacy.model_detectors import TransformersDetector

        return TransformersDetector(argument)
    if kind == "gliner":
        from eyas.privacy.model_detectors import GlinerDetector

        return GlinerDetector(argument)
    from eyas.privacy.dlp_detector import DlpDetector

    return DlpDetector(argument)


def _add_without_overlap(spans: Sequence[Span], more: Iterable[Span]) -> list[Span]:
    """Returns the spans, and those of `more` that overlap none of them, in order."""
    taken = sorted(spans)
    result, k = list(taken), 0
    for span in merge_spans(more):
        while k < len(taken) and taken[k].end <= span.start:
            k += 1
        if k == len(taken) or taken[k].start >= span.end:
            result.append(span)
    return sorted(result)


def _collect_repeatable(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> tuple[frozenset[str], dict[str, str]]:
    """Returns the values that may stand in the record again: digits of phone numbers, other values with their kind."""
    digits, values = set(), {}
    for text, group in zip(texts, spans, strict=True):
        for span in group:
            value = text[span.start : span.end]
            if span.kind == "PHONE":
                digits.add(re.sub(r"\D", "", value))
            elif span.kind in _REPEATED_KINDS and len(value) > 2 and len(values) < MAX_REPEATED:
                values[value] = span.kind
    return frozenset(digits), values


def _count_kinds(spans: Iterable[Span]) -> dict[str, int]:
    return _in_order(Counter(span.kind for span in spans))


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in KINDS if counts[kind]}
