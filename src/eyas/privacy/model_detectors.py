"""Detectors that run a model from a directory or the hub: token classification with transformers, or GLiNER."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import digest_directory
from eyas.privacy.span import Span, split_windows
from eyas.privacy.word_lists import read_data_file, read_kinds

OVERLAP = 200  # characters that two windows share
STRIDE = 64  # tokens that two parts of a window share, if the model cannot read it at once
BATCH = 16
THRESHOLD = 0.5
# The entities that GLiNER is asked for, in the words its models were trained with.
GLINER_LABELS: list[str] = read_data_file("data/entity_labels")["gliner"]["entities"]
GLINER_CONFIG = "gliner_config.json"  # the file that makes a directory a GLiNER model
# The files in a model's directory that name its languages.
LANGUAGES_FILE, CARD = "languages.txt", "README.md"
HUB_MODEL = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})")
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", CARD, "pytorch_model.bin"]


def load_model_detector(name: str) -> "_ModelDetector":
    """Loads the model in a directory or on the hub. A GLiNER model is recognized by its configuration file.

    Args:
        name: A directory, or OWNER/NAME@COMMIT with the full commit of a model on the hub.

    Raises:
        InputError: The model does not exist or cannot be loaded.
        UsageError: It is a GLiNER model, and the package gliner is not installed.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        path = _download_model(name)
    return (GlinerDetector if (path / GLINER_CONFIG).is_file() else TransformersDetector)(path)


def _download_model(name: str) -> Path:
    """Returns the directory of a model in the hub's cache. Downloads it if it is not there."""
    from huggingface_hub import snapshot_download

    if (match := HUB_MODEL.fullmatch(name)) is None:
        problem = f"The detector model:{name} is no directory, and no model of the hub at a commit"
        raise InputError(problem, "Use model:DIR or model:OWNER/NAME@COMMIT (40 digits) in prompts.privacy.detectors")
    try:
        return Path(snapshot_download(match[1], revision=match[2], allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client raises many unrelated classes, all meaning "not available"
        problem = f"The hub does not provide the model {name} ({type(error).__name__})"
        fix = "Check the id, the commit and your access, or download the model and name its directory"
        raise InputError(problem, fix) from error


def _read_languages(path: Path) -> frozenset[str]:
    """Returns the languages in DIR/languages.txt. Without that file, returns those of the model's card."""
    from huggingface_hub import ModelCard

    if (path / LANGUAGES_FILE).is_file():
        return frozenset((path / LANGUAGES_FILE).read_text().split())
    card = ModelCard.load(path / CARD, ignore_metadata_errors=True).data if (path / CARD).is_file() else {}
    languages = card.get("language") or ()
    return frozenset([languages] if isinstance(languages, str) else languages)


def kind_of_label(label: str) -> str | None:
    """Returns the kind of a model's label: "B-PER" -> "PERSON". Returns None for a label that is no personal data."""
    return read_kinds("models").get(re.sub(r"^[BIESLU]-|[\W_]", "", label.upper()))


class _ModelDetector:
    """A detector that runs the model in a directory. Subclasses load and run the model.

    The file DIR/languages.txt names the languages in which the model finds names (ISO 639-1, separated by spaces).
    Without that file, the languages are those of the model's card, README.md. A model without languages still adds its
    spans to those of other detectors, but it makes no language supported.

    Attributes:
        window: The number of characters that the model reads at a time.
    """

    window = 1_000

    def __init__(self, kind: str, path: Path) -> None:
        self.path = path
        self.name = f"{kind} {digest_directory(path)}"  # a digest of the files: the same in any directory
        self.name_languages = _read_languages(path)

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns one list of spans for each text. The model reads a long text in windows."""
        windows = [(i, *part) for i, text in enumerate(texts) for part in split_windows(text, self.window, OVERLAP)]
        found: list[list[Span]] = [[] for _ in texts]
        entities = self._predict([window for *_, window in windows]) if windows else []
        for (i, offset, window), group in zip(windows, entities, strict=True):
            for entity in group:
                label, start, end = entity.get("entity_group") or entity["label"], entity["start"], entity["end"]
                # Some tokenizers count the spaces around a word to it.
                start += len(window[start:end]) - len(window[start:end].lstrip())
                end = start + len(window[start:end].rstrip())
                # A value at a cut through the text may be half a word. It is whole in the other window.
                is_cut = (start == 0 < offset) or (end == len(window) < len(texts[i]) - offset)
                kind = kind_of_label(label)
                score = min(float(entity["score"]), 1.0)
                if kind and score >= THRESHOLD and start < end and not (is_cut and end - start < OVERLAP):
                    found[i].append(Span(offset + start, offset + end, kind, score, f"model.{label}"))
        return found

    def _predict(self, windows: list[str]) -> Sequence[Sequence[Mapping[str, Any]]]:
        """Returns the entities of each window, each with "label" or "entity_group", "start", "end" and "score"."""
        raise NotImplementedError


class TransformersDetector(_ModelDetector):
    """A detector that runs a token classification model with transformers."""

    def __init__(self, path: Path) -> None:
        """Loads the model. Raises InputError if it cannot be loaded, or if none of its labels is personal data."""
        super().__init__("transformers", path)
        from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            model = AutoModelForTokenClassification.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError) as error:
            problem = f"transformers does not load a token classification model from {path} ({type(error).__name__})"
            raise InputError(problem, "Correct prompts.privacy.detectors") from None
        kinds = set(map(kind_of_label, model.config.id2label.values())) - {None}
        if not kinds or not tokenizer.is_fast:
            problem = f"The model in {path} has no label of personal data, such as B-PER, or no tokenizer.json"
            raise InputError(problem, "Use a model with both")
        if "PERSON" not in kinds:
            self.name_languages = frozenset()
        # A text of many tokens is read in parts; without `stride`, the pipeline drops what the model cannot read at
        # once. Two positions are reserved in models such as RoBERTa.
        positions = getattr(model.config, "max_position_embeddings", 514) - 2
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
        options = {"aggregation_strategy": "simple", "stride": min(STRIDE, positions // 4), "device": "cpu"}
        self._pipeline: Any = pipeline("token-classification", model=model, tokenizer=tokenizer, **options)

    def _predict(self, windows: list[str]) -> Sequence[Sequence[Mapping[str, Any]]]:
        return self._pipeline(windows, batch_size=BATCH)


class GlinerDetector(_ModelDetector):
    """A detector that runs a GLiNER model."""

    window = 350  # GLiNER drops what follows the first 384 words of a text; punctuation marks count as words

    def __init__(self, path: Path) -> None:
        """Loads the model. Raises UsageError if gliner is not installed, InputError if the model cannot be loaded."""
        super().__init__("gliner", path)
        try:
            from gliner import GLiNER  # pyright: ignore[reportMissingImports]
        except ImportError:
            problem = f"The GLiNER model in {path} needs the package gliner"
            raise UsageError(problem, "Run: pip install gliner") from None
        try:
            self._model: Any = GLiNER.from_pretrained(str(path), local_files_only=True)
        except (OSError, ValueError) as error:
            problem = f"gliner does not load a model from {path} ({type(error).__name__})"
            raise InputError(problem, "Save it with GLiNER.save_pretrained, so that it needs no other model") from None

    def _predict(self, windows: list[str]) -> Sequence[Sequence[Mapping[str, Any]]]:
        return [self._model.predict_entities(window, GLINER_LABELS, threshold=THRESHOLD) for window in windows]
