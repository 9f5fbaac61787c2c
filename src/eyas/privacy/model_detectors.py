"""Models that find names: token classification by transformers, or GLiNER. Both read a directory on disk only."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError, UsageError
from eyas.privacy.span import Span

WINDOW = 1_000  # characters that a model sees at a time: below the 512 tokens that most of them take
OVERLAP = 200
BATCH = 16
THRESHOLD = 0.5
# What models call things (CoNLL, OntoNotes, models for personal data), without the B- and I- of the tagging.
KIND_OF_LABEL = {
    "PER": "PERSON", "PERSON": "PERSON", "NAME": "PERSON", "FIRSTNAME": "PERSON", "GIVENNAME": "PERSON",
    "LASTNAME": "PERSON", "SURNAME": "PERSON", "MIDDLENAME": "PERSON", "PATIENT": "PERSON", "DOCTOR": "PERSON",
    "STAFF": "PERSON", "HCW": "PERSON", "USERNAME": "PERSON",
    "LOC": "LOCATION", "LOCATION": "LOCATION", "GPE": "LOCATION", "CITY": "LOCATION", "STATE": "LOCATION",
    "COUNTY": "LOCATION",
    "ADDRESS": "ADDRESS", "STREET": "ADDRESS", "STREETADDRESS": "ADDRESS", "BUILDINGNUM": "ADDRESS",
    "BUILDINGNUMBER": "ADDRESS", "SECONDARYADDRESS": "ADDRESS", "ZIPCODE": "ADDRESS", "POSTCODE": "ADDRESS",
    "EMAIL": "EMAIL", "EMAILADDRESS": "EMAIL",
    "PHONE": "PHONE", "PHONENUMBER": "PHONE", "TELEPHONENUM": "PHONE", "MOBILEPHONENUMBER": "PHONE",
    "CREDITCARD": "CARD", "CREDITCARDNUMBER": "CARD", "CREDITDEBITCARD": "CARD",
    "IBAN": "ACCOUNT", "ACCOUNTNUM": "ACCOUNT", "ACCOUNTNUMBER": "ACCOUNT", "BANKACCOUNTNUMBER": "ACCOUNT",
    "BITCOINADDRESS": "ACCOUNT", "ETHEREUMADDRESS": "ACCOUNT", "LITECOINADDRESS": "ACCOUNT",
    "SSN": "GOVERNMENT_ID", "SOCIALNUM": "GOVERNMENT_ID", "SOCIALSECURITYNUMBER": "GOVERNMENT_ID",
    "IDCARDNUM": "GOVERNMENT_ID", "IDENTITYCARDNUMBER": "GOVERNMENT_ID", "TAXNUM": "GOVERNMENT_ID",
    "PASSPORTNUMBER": "GOVERNMENT_ID", "DRIVERLICENSENUM": "GOVERNMENT_ID", "DRIVERSLICENSENUMBER": "GOVERNMENT_ID",
    "PASSWORD": "SECRET", "PIN": "SECRET", "APIKEY": "SECRET",
    "IP": "IP_ADDRESS", "IPADDRESS": "IP_ADDRESS", "IPV4": "IP_ADDRESS", "IPV6": "IP_ADDRESS",
}  # fmt: skip
# What GLiNER is asked for, in the words its models were trained with.
GLINER_LABELS = (
    "person", "city", "address", "email", "phone number", "credit card number", "bank account number",
    "social security number", "passport number", "identity card number", "password", "ip address",
)  # fmt: skip
# Multilingual models name their languages in the card's metadata; a directory says it in this file.
LANGUAGES_FILE = "languages.txt"


def kind_of_label(label: str) -> str | None:
    """The kind of a model's label ("B-PER", "phone number"); None for what is none of ours."""
    plain = label.upper()
    plain = plain[2:] if plain[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") else plain
    return KIND_OF_LABEL.get("".join(char for char in plain if char.isalnum()))


class TransformersDetector:
    """A token classification model of transformers, from a directory.

    Its languages stand in DIR/languages.txt (ISO 639-1, separated by spaces); without that file it counts for none, so
    that it adds to what other detectors find but makes no language supported.
    """

    def __init__(self, directory: str) -> None:
        path = _directory(directory, "transformers")
        from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            model = AutoModelForTokenClassification.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}, which transformers does not load ({type(error).__name__})",
                "a token classification model with its tokenizer",
                "check prompts.privacy.detectors",
            ) from None
        kinds = {kind_of_label(label) for label in model.config.id2label.values()} - {None}
        if not kinds:
            raise InputError(
                f"no label of {path} that names personal data", "labels such as B-PER", "take another model"
            )
        self._pipeline: Any = pipeline(
            "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple", device="cpu"
        )
        self.name = f"transformers {_digest(path)}"
        self.name_languages = _languages(path)

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Spans for each text; long texts in windows."""
        places = [(index, begin, part) for index, text in enumerate(texts) for begin, part in windows(text)]
        found: list[list[Span]] = [[] for _ in texts]
        answers = self._pipeline([part for *_, part in places], batch_size=BATCH) if places else []
        for (index, begin, part), answer in zip(places, answers, strict=True):
            for group in answer:
                kind, score = kind_of_label(group["entity_group"]), float(group["score"])
                left, right = _trimmed(part, int(group["start"]), int(group["end"]))
                if kind and score >= THRESHOLD and left < right:
                    found[index].append(Span(begin + left, begin + right, kind, min(score, 1.0)))
        return found


class GlinerDetector:
    """A GLiNER model from a directory; its languages as in TransformersDetector."""

    def __init__(self, directory: str) -> None:
        path = _directory(directory, "gliner")
        try:
            from gliner import GLiNER  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UsageError(
                "the detector gliner without its package", "the package gliner", "run: pip install gliner"
            ) from None
        self._model: Any = GLiNER.from_pretrained(str(path), local_files_only=True)
        self.name = f"gliner {_digest(path)}"
        self.name_languages = _languages(path)

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Spans for each text; long texts in windows."""
        found: list[list[Span]] = [[] for _ in texts]
        for index, text in enumerate(texts):
            for begin, part in windows(text):
                for entity in self._model.predict_entities(part, list(GLINER_LABELS), threshold=THRESHOLD):
                    kind = kind_of_label(entity["label"])
                    left, right = _trimmed(part, entity["start"], entity["end"])
                    if kind and left < right:
                        found[index].append(Span(begin + left, begin + right, kind, min(float(entity["score"]), 1.0)))
        return found


def windows(text: str) -> Iterator[tuple[int, str]]:
    """The text in overlapping windows, each with its place: a name at an edge stands whole in the other window."""
    for begin in range(0, max(1, len(text) - OVERLAP), WINDOW - OVERLAP):
        part = text[begin : begin + WINDOW]
        if part.strip():
            yield begin, part


def _trimmed(text: str, begin: int, end: int) -> tuple[int, int]:
    """Without the spaces that some tokenizers count to a word."""
    while begin < end and text[begin].isspace():
        begin += 1
    while end > begin and text[end - 1].isspace():
        end -= 1
    return begin, end


def _directory(directory: str, kind: str) -> Path:
    path = Path(directory)
    if not path.is_dir():
        raise InputError(f"no directory {path}", "a model on disk", f"download it, then name it in {kind}:DIR")
    return path


def _languages(path: Path) -> frozenset[str]:
    file = path / LANGUAGES_FILE
    return frozenset(file.read_text().split()) if file.is_file() else frozenset()


def _digest(path: Path) -> str:
    """What the model is, wherever it lies: the names and bytes of its files."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            digest.update(str(file.relative_to(path)).encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]
