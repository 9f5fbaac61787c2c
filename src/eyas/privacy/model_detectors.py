"""Detectors that run a model from a local directory: token classification with transformers, or GLiNER."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import digest_directory
from eyas.privacy.span import Span, split_windows
from eyas.privacy.word_lists import read_kinds

WINDOW = 1_000  # characters that a model reads at a time: below the 512 tokens that most of them take
OVERLAP = 200
BATCH = 16
THRESHOLD = 0.5
# The entities that GLiNER is asked for, in the words its models were trained with.
GLINER_LABELS = (
    "person", "city", "address", "email", "phone number", "credit card number", "bank account number",
    "social security number", "passport number", "identity card number", "password", "ip address",
)  # fmt: skip
# The file in a model's directory that names its languages.
LANGUAGES_FILE = "languages.txt"


def kind_of_label(label: str) -> str | None:
    """Returns the kind of a model's label: "B-PER" -> "PERSON". Returns None for a label that is no personal data."""
    plain = label.upper()
    plain = plain[2:] if plain[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") else plain
    return read_kinds("models").get("".join(char for char in plain if char.isalnum()))


class _ModelDetector:
    """A detector that runs the model in a directory. Subclasses load and run the model.

    The file DIR/languages.txt names the languages in which the model finds names (ISO 639-1, separated by spaces).
    Without that file, the model still adds its spans to those of other detectors. But it makes no language supported.
    """

    def __init__(self, kind: str, directory: str) -> None:
        path = Path(directory)
        languages = path / LANGUAGES_FILE
        self.path = path
        self.name = f"{kind} {digest_directory(path)}"  # a digest of the files: the same in any directory
        self.name_languages = frozenset(languages.read_text().split()) if languages.is_file() else frozenset[str]()

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns one list of spans for each text. The model reads a long text in windows of 1,000 characters."""
        windows = [(i, *window) for i, text in enumerate(texts) for window in split_windows(text, WINDOW, OVERLAP)]
        found: list[list[Span]] = [[] for _ in texts]
        entities = self._predict([window for *_, window in windows]) if windows else []
        for (i, offset, window), group in zip(windows, entities, strict=True):
            for entity in group:
                label, start, end = entity.get("entity_group") or entity["label"], entity["start"], entity["end"]
                # Some tokenizers count the spaces around a word to it.
                start += len(window[start:end]) - len(window[start:end].lstrip())
                end = start + len(window[start:end].rstrip())
                kind = kind_of_label(label)
                score = min(float(entity["score"]), 1.0)
                if kind and score >= THRESHOLD and start < end:
                    found[i].append(Span(offset + start, offset + end, kind, score))
        return found

    def _predict(self, windows: list[str]) -> Sequence[Sequence[Mapping[str, Any]]]:
        """Returns the entities of each window, each with "label" or "entity_group", "start", "end" and "score"."""
        raise NotImplementedError


class TransformersDetector(_ModelDetector):
    """A detector that runs a token classification model with transformers."""

    def __init__(self, directory: str) -> None:
        """Loads the model. Raises InputError if it cannot be loaded, or if none of its labels is personal data."""
        super().__init__("transformers", directory)
        from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.path, local_files_only=True)
            model = AutoModelForTokenClassification.from_pretrained(self.path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise InputError(
                f"transformers does not load a token classification model from {self.path} ({type(error).__name__})",
                "Correct prompts.privacy.detectors",
            ) from None
        if not any(map(kind_of_label, model.config.id2label.values())):
            problem = f"The model in {self.path} has no label of personal data, such as B-PER"
            raise InputError(problem, "Use a model with such labels")
        self._pipeline: Any = pipeline(
            "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple", device="cpu"
        )

    def _predict(self, windows: list[str]) -> Sequence[Sequence[Mapping[str, Any]]]:
        return self._pipeline(windows, batch_size=BATCH)


class GlinerDetector(_ModelDetector):
    """A detector that runs a GLiNER model."""

    def __init__(self, directory: str) -> None:
        """Loads the model. Raises UsageError if the package gliner is not installed."""
        super().__init__("gliner", directory)
        try:
            from gliner import GLiNER  # pyright: ignore[reportMissingImports]
        except ImportError:
            problem = f"The detector gliner:{directory} needs the package gliner"
            raise UsageError(problem, "Run: pip install gliner") from None
        self._model: Any = GLiNER.from_pretrained(str(self.path), local_files_only=True)

    def _predict(self, windows: list[str]) -> Sequence[Sequence[Mapping[str, Any]]]:
        labels = list(GLINER_LABELS)
        return [self._model.predict_entities(window, labels, threshold=THRESHOLD) for window in windows]
