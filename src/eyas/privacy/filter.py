"""The privacy filter: detectors find personal data in a record; the recipe says which kinds are dropped or replaced.

No detected value leaves this package. Results hold the number of values of each kind. Errors hold only the name of the
detector and the class of the exception.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from eyas.base.errors import EyasError, StageError, UsageError
from eyas.privacy.config import BUILTIN, PrivacyConfig
from eyas.privacy.coreference import Mentions
from eyas.privacy.span import KINDS, Detector, Span, merge_spans
from eyas.privacy.surrogates import FIRST, MIN_KEY_BYTES, Surrogates, name_parts
from eyas.privacy.word_lists import code_digest
from eyas.privacy.words import split_words

UNSUPPORTED_LANGUAGE = "unsupported_language"


@dataclass(frozen=True)
class CleanedRecord:
    """A record that may be used.

    Attributes:
        texts: The texts of the record, with surrogates.
        changed: The number of replaced values of each kind, for example {"PERSON": 2}.
    """

    texts: tuple[str, ...]
    changed: dict[str, int]


@dataclass(frozen=True)
class DroppedRecord:
    """A record that must not be used.

    Attributes:
        reason: The kind that drops the record, in lower case ("secret", "card"), or UNSUPPORTED_LANGUAGE.
        kinds: The number of detected values of each kind.
    """

    reason: str
    kinds: dict[str, int]


class PrivacyFilter:
    """The filter that detects personal data in records, and drops or cleans each record as the recipe says.

    Attributes:
        name_languages: The languages (ISO 639-1) in which a detector finds personal names.
        digest: A digest of the settings, the detectors and their code. It changes when results may change.
    """

    def __init__(self, config: PrivacyConfig, key: bytes, detectors: Sequence[Detector] | None = None) -> None:
        """Builds the filter.

        Args:
            config: The recipe keys.
            key: The secret key that selects surrogates.
            detectors: The detectors; None builds those of `config`.

        Raises:
            UsageError: A detector needs a package that is not installed.
            InputError: A detector's model cannot be loaded.
        """
        assert len(key) >= MIN_KEY_BYTES, f"a key of at least {MIN_KEY_BYTES} bytes"
        self._config = config
        self._surrogates = Surrogates(key)
        self._detectors = tuple(detectors) if detectors is not None else build_detectors(config.detectors)
        self.name_languages = frozenset[str]().union(*(detector.name_languages for detector in self._detectors))
        settings = asdict(config) | {"key_file": None, "names": [detector.name for detector in self._detectors]}
        settings["code"] = code_digest()
        self.digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def clean(self, records: Sequence[tuple[Sequence[str], str]]) -> list[CleanedRecord | DroppedRecord]:
        """Cleans or drops each record, and returns the results in the same order. Calls each detector once.

        Args:
            records: The texts and the language (ISO 639-1) of each record.
        """
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
        """Returns the number of values of each kind in each text. `eyas respond` uses it for the target's answers.

        A surrogate that an answer repeats from its prompt is counted, too.

        Args:
            texts: The texts.
            languages: The language of each text (ISO 639-1).
        """
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
        """Drops the record or replaces the values of the spans, as the recipe says."""
        kinds = _count_kinds(span for group in spans for span in group)
        for kind in self._config.drop:
            if kind in kinds:
                return DroppedRecord(kind.lower(), kinds)
        replaced = [[span for span in group if span.kind in self._config.replace] for group in spans]
        if not any(replaced):
            return CleanedRecord(tuple(texts), {})
        return self._replace(texts, language, replaced)

    def _replace(self, texts: Sequence[str], language: str, spans: Sequence[Sequence[Span]]) -> CleanedRecord:
        """Replaces the values of the spans by surrogates, and other mentions of the same values in the record, too.

        Args:
            texts: The texts of the record.
            language: The language of the record (ISO 639-1).
            spans: The spans to replace, one list for each text.
        """
        mentions = Mentions(texts, spans)
        # No surrogate may be a word of the record.
        avoid = frozenset(word for text in texts for word in split_words(text).lowers)
        cleaned, changed = [], Counter[str]()
        for text, group in zip(texts, spans, strict=True):
            more = mentions.find(text, language, with_names="PERSON" in self._config.replace)
            pieces, done = [], 0
            for span in _add_without_overlap(group, more):
                value = text[span.start : span.end]
                if span.kind == "PERSON":
                    surrogate = self._replace_name(value, language, mentions, avoid)
                else:
                    surrogate = self._surrogates.replace_value(span.kind, value, language, avoid)
                pieces += [text[done : span.start], surrogate]
                done = span.end
                changed[span.kind] += 1
            cleaned.append("".join((*pieces, text[done:])))
        return CleanedRecord(tuple(cleaned), _in_order(changed))

    def _replace_name(self, value: str, language: str, mentions: Mentions, avoid: frozenset[str]) -> str:
        def replace_part(written: str) -> str:
            role = mentions.roles.get(written.casefold(), FIRST)
            return self._surrogates.replace_name_part(written, role, language, avoid)

        user_name = mentions.user_names.get(value.casefold())
        if user_name:
            joined = "".join(map(replace_part, user_name))
            return joined if value.islower() else joined.title()
        pieces, done = [], 0
        for part in name_parts(value):
            pieces += [value[done : part.start()], replace_part(part[0])]
            done = part.end()
        return "".join((*pieces, value[done:]))


def build_detectors(names: Sequence[str]) -> tuple[Detector, ...]:
    """Builds the detectors of a recipe.

    Args:
        names: Values of `prompts.privacy.detectors`, for example "builtin" or "gliner:DIR".

    Raises:
        UsageError: A detector needs a package that is not installed.
        InputError: A detector's model cannot be loaded.
    """
    return tuple(map(_build_detector, names))


def _build_detector(name: str) -> Detector:
    kind, _, argument = name.partition(":")
    if name == BUILTIN:
        try:
            from eyas.privacy.builtin_detector import BuiltinDetector

            return BuiltinDetector()
        except ImportError as error:
            problem = f"Screening prompts needs the package {error.name}, which is not installed"
            raise UsageError(problem, "Run: pip install 'eyas[data]'") from None
    if kind == "dlp":
        from eyas.privacy.dlp_detector import DlpDetector

        return DlpDetector(argument)
    from eyas.privacy.model_detectors import GlinerDetector, TransformersDetector

    return GlinerDetector(argument) if kind == "gliner" else TransformersDetector(argument)


def _add_without_overlap(spans: Sequence[Span], more: Iterable[Span]) -> list[Span]:
    """Returns all of `spans`, and those of `more` that overlap none of `spans`, sorted by position."""
    taken = sorted(spans)
    result, k = list(taken), 0
    for span in merge_spans(more):
        while k < len(taken) and taken[k].end <= span.start:
            k += 1
        if k == len(taken) or taken[k].start >= span.end:
            result.append(span)
    return sorted(result)


def _count_kinds(spans: Iterable[Span]) -> dict[str, int]:
    return _in_order(Counter(span.kind for span in spans))


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in KINDS if counts[kind]}
