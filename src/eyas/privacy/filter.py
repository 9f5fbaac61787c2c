"""The privacy filter: detectors find personal data in a record; the recipe says which kinds are dropped or replaced.

No detected value leaves this package. Results hold the number of values of each kind, and their positions. Errors hold
only the name of the detector and the class of the exception.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from eyas.base.errors import EyasError, InputError, StageError, UsageError
from eyas.privacy.config import BUILTIN, PrivacyConfig
from eyas.privacy.coreference import Mentions
from eyas.privacy.name_shapes import find_inflection
from eyas.privacy.private_names import select_private
from eyas.privacy.span import KINDS, Detector, Span, in_order, merge_spans
from eyas.privacy.surrogates import FIRST, MIN_KEY_BYTES, Surrogates, name_parts
from eyas.privacy.word_lists import LANGUAGES, code_digest
from eyas.privacy.words import split_words

Spans = Sequence[Sequence[Span]]  # of each text of a record
UNSUPPORTED_LANGUAGE = "unsupported_language"
MENTION = "filter.mention"
"""The rule of a span that repeats a value of another span in the record."""


@dataclass(frozen=True)
class FoundValue:
    """A detected value: its position in the text as it was read, and the surrogate that replaces it; None if it stays.

    If the record is dropped, no value has a surrogate.
    """

    span: Span
    surrogate: str | None = None


@dataclass(frozen=True)
class CleanedRecord:
    """A record that may be used.

    Attributes:
        texts: The texts of the record, with surrogates.
        changed: The number of replaced values of each kind, for example {"PERSON": 2}.
        found: The detected values of each text, in order.
    """

    texts: tuple[str, ...]
    changed: dict[str, int]
    found: tuple[tuple[FoundValue, ...], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class DroppedRecord:
    """A record that must not be used.

    Attributes:
        reason: The kind that drops the record, in lower case ("secret", "card"), or UNSUPPORTED_LANGUAGE.
        kinds: The number of detected values of each kind.
        found: The detected values of each text, in order.
    """

    reason: str
    kinds: dict[str, int]
    found: tuple[tuple[FoundValue, ...], ...] = field(default=(), compare=False)


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
        self._kept = _read_kept_values(config.keep)
        self.name_languages = frozenset[str]().union(*(detector.name_languages for detector in self._detectors))
        settings = asdict(config) | {"key_file": None, "keep": sorted(self._kept)}
        settings["detectors"] = [detector.name for detector in self._detectors]
        settings["code"] = code_digest()
        self.digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def clean(self, records: Sequence[tuple[Sequence[str], str]]) -> list[CleanedRecord | DroppedRecord]:
        """Cleans or drops each record, and returns the results in the same order.

        Calls each detector once, but the built-in one alone once for each record.

        Args:
            records: The texts and the language (ISO 639-1) of each record.
        """
        keep_all = self._config.unsupported_language == "keep"
        supported = [keep_all or language in self.name_languages for _, language in records]
        chosen = [record for record, is_supported in zip(records, supported, strict=True) if is_supported]
        spans = self._detect(chosen)
        return [
            self._apply(group, language, *next(spans)) if is_supported else DroppedRecord(UNSUPPORTED_LANGUAGE, {})
            for (group, language), is_supported in zip(records, supported, strict=True)
        ]

    def detect(self, records: Sequence[tuple[Sequence[str], str]]) -> list[list[list[Span]]]:
        """Returns the spans of each text of each record: those that drop the record or are replaced.

        Args:
            records: The texts and the language (ISO 639-1) of each record.
        """
        return [selected for selected, _ in self._detect(records)]

    def _detect(self, records: Sequence[tuple[Sequence[str], str]]) -> Iterator[tuple[list[list[Span]], Spans]]:
        """Yields the spans of each record like `detect`, and the spans of values that are public or to keep."""
        # The built-in detector needs no batches, and what is known of a text is cached until its record is done.
        size = 1 if all(detector.name.startswith(f"{BUILTIN} ") for detector in self._detectors) else len(records)
        batches = (records[start : start + size] for start in range(0, len(records), max(1, size)))
        found = (spans for batch in batches for spans in self._run_detectors(batch))
        for group, language in records:
            every = [next(found) for _ in group]
            spans = [self._without_kept(text, each) for text, each in zip(group, every, strict=True)]
            # Without word lists, nothing tells a private person from a public one.
            decides = self._config.names == "private" and language in LANGUAGES
            selected = select_private(group, spans, language) if decides else spans
            yield selected, [_without(each, private) for each, private in zip(every, selected, strict=True)]

    def _without_kept(self, text: str, spans: list[Span]) -> list[Span]:
        """Returns the spans whose values are not in the file `prompts.privacy.keep`."""
        return [span for span in spans if not self._kept or text[span.start : span.end].casefold() not in self._kept]

    def scan(self, texts: Sequence[str], languages: Sequence[str]) -> list[dict[str, int]]:
        """Returns the number of values of each kind in each text. `eyas respond` uses it for the target's answers.

        A surrogate that an answer repeats from its prompt is counted, too, except an e-mail address at example.com.

        Args:
            texts: The texts.
            languages: The language of each text (ISO 639-1).
        """
        spans = self.detect([((text,), language) for text, language in zip(texts, languages, strict=True)])
        return [_count_kinds(group[0]) for group in spans]

    def _run_detectors(self, records: Sequence[tuple[Sequence[str], str]]) -> list[list[Span]]:
        texts = [text for group, _ in records for text in group]
        languages = [language for group, language in records for _ in group]
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
            rule = detector.name.partition(" ")[0]
            # If another detector knows the names of a language, the built-in lists of other languages add wrong ones.
            foreign = self.name_languages - detector.name_languages if rule == BUILTIN else frozenset[str]()
            for spans, more, language in zip(found, results, languages, strict=True):
                ignored = ("PERSON", "LOCATION") if language in foreign else ()
                more = (span for span in more if span.kind not in ignored)
                spans += (span if span.rule else replace(span, rule=rule) for span in more)
        return [merge_spans(spans) for spans in found]

    def _apply(self, texts: Sequence[str], language: str, spans: Spans, public: Spans) -> CleanedRecord | DroppedRecord:
        """Drops the record, or replaces the values of the spans and their other mentions, as the recipe says.

        Args:
            texts: The texts of the record.
            language: The language of the record (ISO 639-1).
            spans: The detected spans, one list for each text.
            public: The spans whose values stay.
        """
        kinds = _count_kinds(span for group in spans for span in group)
        for kind in self._config.drop:
            if kind in kinds:
                return DroppedRecord(kind.lower(), kinds, tuple(tuple(map(FoundValue, group)) for group in spans))
        replaced = [[span for span in group if span.kind in self._config.replace] for group in spans]
        kept = [[*stay, *_without(group, gone)] for group, stay, gone in zip(spans, public, replaced, strict=True)]
        if not any(replaced):
            return CleanedRecord(tuple(texts), {}, tuple(tuple(map(FoundValue, group)) for group in kept))
        mentions = Mentions(texts, replaced)
        # No surrogate may be a word of the record.
        avoid = frozenset(word for text in texts for word in split_words(text).lowers) | mentions.roles.keys()

        @cache
        def find_surrogate(kind: str, value: str) -> str:
            if kind == "PERSON":
                return self._replace_name(value, language, mentions, avoid)
            return self._surrogates.replace_value(kind, value, language, avoid)

        cleaned, changed, found = [], list[Span](), list[tuple[FoundValue, ...]]()
        for text, group, rest in zip(texts, replaced, kept, strict=True):
            more = mentions.find(text, language, with_names="PERSON" in self._config.replace)
            stays = [span for span in rest if not self._without_kept(text, [span])]
            spans_to_replace = _without(_add_without_overlap([*group, *stays], more), stays)
            surrogates = {span: find_surrogate(span.kind, text[span.start : span.end]) for span in spans_to_replace}
            cleaned.append(_replace(text, (((span.start, span.end), new) for span, new in surrogates.items())))
            changed += spans_to_replace
            every = _add_without_overlap(spans_to_replace, rest)
            named = (span if span.rule else replace(span, rule=MENTION) for span in every)
            found.append(tuple(map(FoundValue, named, map(surrogates.get, every))))
        return CleanedRecord(tuple(cleaned), _count_kinds(changed), tuple(found))

    def _replace_name(self, value: str, language: str, mentions: Mentions, avoid: frozenset[str]) -> str:
        def replace_part(written: str) -> str:
            form = find_inflection(written, mentions.roles, language)
            role = mentions.roles.get((form.nominative if form else written).casefold(), FIRST)
            return self._surrogates.replace_name_part(written, role, language, avoid, mentions.roles)

        if value.casefold() in mentions.roles:
            return replace_part(value)
        if user_name := mentions.user_names.get(value.casefold()):
            joined = "".join(map(replace_part, user_name))
            return joined if value.islower() else joined.title()
        return _replace(value, ((part.span(), replace_part(part[0])) for part in name_parts(value)))


def build_detectors(names: Sequence[str]) -> tuple[Detector, ...]:
    """Builds the detectors of a recipe.

    Args:
        names: Values of `prompts.privacy.detectors`, for example "builtin" or "model:DIR".

    Raises:
        UsageError: A detector needs a package that is not installed.
        InputError: A detector's model cannot be loaded.
        StageError: There are no credentials of Google Cloud.
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
    from eyas.privacy.model_detectors import load_model_detector

    return load_model_detector(argument)


def _read_kept_values(path: str | None) -> frozenset[str]:
    """Returns the lines of a text file in lower case; an empty set without a file. Raises InputError."""
    if path is None:
        return frozenset()
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        problem = f"prompts.privacy.keep={path} cannot be read as UTF-8 text"
        raise InputError(problem, "Name a text file with one value a line") from None
    return frozenset(line.strip().casefold() for line in lines) - {""}


def _replace(text: str, parts: Iterable[tuple[tuple[int, int], str]]) -> str:
    """Returns the text with new parts. parts: the start and the end of each part, in order, and what replaces it."""
    pieces, done = [], 0
    for (start, end), new in parts:
        pieces += [text[done:start], new]
        done = end
    return "".join((*pieces, text[done:]))


def _add_without_overlap(spans: Sequence[Span], more: Iterable[Span]) -> list[Span]:
    """Returns all of `spans`, and those of `more` that overlap none of `spans`, sorted by position."""
    taken = sorted(spans, key=in_order)
    result, k = list(taken), 0
    for span in merge_spans(more):
        while k < len(taken) and taken[k].end <= span.start:
            k += 1
        if k == len(taken) or taken[k].start >= span.end:
            result.append(span)
    return sorted(result, key=in_order)


def _without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Returns the spans that are at no position of `others`."""
    places = {(span.start, span.end) for span in others}
    return [span for span in spans if (span.start, span.end) not in places]


def _count_kinds(spans: Iterable[Span]) -> dict[str, int]:
    counts = Counter(span.kind for span in spans)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}
