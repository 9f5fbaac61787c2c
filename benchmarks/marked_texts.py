"""Reads public texts with marked names and numbers from the directory that `--data` names, split into halves."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_split import Half, half
from public_prompts import read_records
from text_sets import FOLDER

# Marks of presidio-research and of MEDDOCAN, as the kinds of the filter. Other marks are not private data.
RESEARCH_KINDS = {
    "PERSON": "PERSON", "STREET_ADDRESS": "ADDRESS", "PHONE_NUMBER": "PHONE", "EMAIL_ADDRESS": "EMAIL",
    "CREDIT_CARD": "CARD", "US_SSN": "GOVERNMENT_ID", "US_DRIVER_LICENSE": "GOVERNMENT_ID", "IBAN_CODE": "ACCOUNT",
    "IP_ADDRESS": "IP_ADDRESS",
}  # fmt: skip
MEDICAL_KINDS = {
    "NOMBRE_SUJETO_ASISTENCIA": "PERSON", "NOMBRE_PERSONAL_SANITARIO": "PERSON", "ID_SUJETO_ASISTENCIA": "ID",
    "ID_ASEGURAMIENTO": "ID", "ID_TITULACION_PERSONAL_SANITARIO": "ID", "ID_CONTACTO_ASISTENCIAL": "ID",
    "CALLE": "PLACE", "TERRITORIO": "PLACE",
}  # fmt: skip
NEWS = (
    "ner-en-pud", "ner-en-ewt", "ner-de-pud", "ner-fr-europeana", "ner-pt-pud", "ner-pt-bosque", "ner-nl-europeana",
    "ner-pl-kpwr", "ner-sv-pud", "ner-sv-talbanken", "ner-zh-pud", "ner-zh-gsd", "ner-ja-wikipedia", "ner-ko-klue",
    "ner-ar-anercorp", "ner-ru-pud", "ner-hi-hiner",
)  # fmt: skip
OWN_NEWS = ("news-it", "news-es")  # written for eyas: no public set of these languages was found


@dataclass(frozen=True)
class Mark:
    """The position and the kind of a value in a text."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class MarkedText:
    """A text and its marks. `id` names it in its file."""

    id: str
    language: str
    text: str
    marks: tuple[Mark, ...]


def make_mark(span: Sequence[Any], kinds: dict[str, str]) -> Mark:
    """Makes a mark of the start, the end and the source's kind. A kind that is not in `kinds` keeps its name."""
    kind: str = span[2]
    return Mark(span[0], span[1], kinds.get(kind, kind))


def research_sentences(data: Path, part: Half) -> list[MarkedText]:
    """Reads the filled sentences of presidio-research. All sentences of a template are in one half."""
    made = []
    for record in read_records(data, "presidio-research-synth"):
        if half(f"presidio {record['template_id']}") == part:
            spans = ((span["start_position"], span["end_position"], span["entity_type"]) for span in record["spans"])
            marks = tuple(make_mark(span, RESEARCH_KINDS) for span in spans)
            made.append(MarkedText(str(record["id"]), "en", record["full_text"], marks))
    return made


def medical_notes(data: Path, part: Half) -> list[MarkedText]:
    """Reads the Spanish case reports of MEDDOCAN."""
    return [
        _marked(record, "es", MEDICAL_KINDS)
        for record in read_records(data, "meddocan-es")
        if half(f"meddocan {record['id']}") == part
    ]


def news_sentences(data: Path, part: Half, name: str) -> list[MarkedText]:
    """Reads a file of sentences from news or encyclopedias. A sentence of PUD is in one half in all languages."""
    if name in OWN_NEWS:
        return _own_news(part, name)
    group = "pud" if name.endswith("-pud") else name
    records = (record for record in read_records(data, name) if half(f"{group} {record['id']}") == part)
    return [_marked(record, name.split("-")[1], {"PER": "PERSON"}) for record in records]


def _own_news(part: Half, name: str) -> list[MarkedText]:
    """Reads the project's own news sentences, in which [[ ]] marks a person."""
    language = name.split("-")[1]
    made = []
    for number, line in enumerate((FOLDER / "news" / f"{language}.txt").read_text("utf-8").splitlines()):
        if line.startswith("#") or half(f"{name} {number}") != part:
            continue
        text, marks = "", list[Mark]()
        for place, piece in enumerate(re.split(r"\[\[|\]\]", line)):
            if place % 2:
                marks.append(Mark(len(text), len(text) + len(piece), "PERSON"))
            text += piece
        made.append(MarkedText(str(number), language, text, tuple(marks)))
    return made


def _marked(record: dict[str, object], language: str, kinds: dict[str, str]) -> MarkedText:
    entities = record["entities"]
    assert isinstance(entities, list)
    marks = tuple(make_mark(entity, kinds) for entity in entities)
    return MarkedText(str(record["id"]), language, str(record["text"]), marks)
