"""Models that find names: token classification by transformers, or GLiNER. Both read a directory on disk only."""

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
# The card of a multilingual model names its languages; a directory names them in this file.
LANGUAGES_FILE = "languages.txt"


def kind_of_label(label: str) -> str | None:
    """Returns the kind of a model's label ("B-PER", "phone number"); None for one that is no personal data."""
    plain = label.upper()
    plain = plain[2:] if plain[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") else plain
    return read_kinds("models").get("".join(char for char in plain if char.isalnum()))


class _ModelDetector:
    """A model in a directory.

    Its languages are in DIR/languages.txt (ISO 639-1, separated by spaces). Without that file it counts for none: it
    adds to the findings of other detectors but makes no language supported.
    """

    def __init__(self, kind: str, directory: str) -> None:
        path = Path(directory)
        languages = path / LANGUAGES_FILE
        self.path = path
        self.name = f"{kind} {digest_directory(path)}"  # of the names and bytes of its files, wherever it is stored
        self.name_languages = frozenset(languages.read_text().split()) if languages.is_file() else frozenset[str]()

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns the spans of each text; the model reads long texts in windows."""
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
        """Returns the entities of each window: "label" or "entity_group", "start", "end" and "score"."""
        raise NotImplementedError


class TransformersDetector(_ModelDetector):
    """A token classification model of transformers."""

    def __init__(self, directory: str) -> None:
        """Loads the model. Raises InputError where the directory holds none with labels of personal data."""
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
            raise InputError(problem, "Use another one")
        self._pipeline: Any = pipeline(
            "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple", device="cpu"
        )

    def _predict(self, windows: list[str]) -> Sequence[Sequence[Mapping[str, Any]]]:
        return self._pipeline(windows, batch_size=BATCH)


class GlinerDetector(_ModelDetector):
    """A GLiNER model."""

    def __init__(self, directory: str) -> None:
        """Loads the model. Raises UsageError where the package gliner is not installed."""
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
