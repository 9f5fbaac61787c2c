"""Reads the project's own texts for the privacy filter: one file of benchmarks/privacy_texts for each language.

The texts were written by people who did not know the filter. Each file holds ordinary prompts, texts for minimal pairs
(a private and a public text with the same name), templates with slots for private values, and words for the slots. The
folder `training` has more of each, which only serve to develop the filter.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from data_split import Half, balanced_half

FOLDER = Path(__file__).parent / "privacy_texts"
FIRST_LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv")
NEW_LANGUAGES = ("zh", "ja", "ko", "ar", "ru", "hi")
LANGUAGES = FIRST_LANGUAGES + NEW_LANGUAGES


@dataclass(frozen=True)
class NumberedText:
    """A text or a template. `group` names it in the split, for example "de ordinary 12"; `kind` may be empty."""

    group: str
    text: str
    kind: str = ""


@dataclass(frozen=True)
class TextSet:
    """The texts and words of one language that belong to one half."""

    language: str
    ordinary: tuple[NumberedText, ...]
    names: tuple[str, ...]  # full names, of known people and of nobody in particular
    private: tuple[NumberedText, ...]  # with the slot {name}
    public: tuple[NumberedText, ...]  # with the slot {name}
    planted: tuple[NumberedText, ...]  # with slots such as {card}
    words: dict[str, tuple[str, ...]]  # first_names, last_names, cities, streets, employers


@cache
def load_texts(language: str, part: Half) -> TextSet | None:
    """Loads one half of the texts of a language. Returns None if the language has no file.

    The texts of the folder `training` belong to the half for developing alone.
    """
    path = FOLDER / f"{language}.toml"
    if not path.is_file():
        return None
    content = tomllib.loads(path.read_text("utf-8"))
    assert content["language"] == language, path
    more: dict[str, list[str]] = _load_training(language) if part == "develop" else {}

    def numbered(use: str, texts: list[str | dict[str, str]]) -> tuple[NumberedText, ...]:
        made = []
        for number, entry in enumerate(texts):
            kind, text = (entry["kind"], entry["text"]) if isinstance(entry, dict) else ("", entry)
            made.append(NumberedText(f"{language} {use} {number}", text, kind))
        kinds = {one.kind for one in made}
        chosen = [balanced_half((one.group for one in made if one.kind == kind), part) for kind in kinds]
        extra = (NumberedText(f"{language} training {use} {k}", text) for k, text in enumerate(more.get(use, ())))
        return (*(one for one in made if any(one.group in groups for groups in chosen)), *extra)

    def of_half(use: str, words: list[str]) -> tuple[str, ...]:
        chosen = balanced_half(words, part)
        return (*(word for word in words if word in chosen), *more.get(use, ()))

    pairs, values = content["pairs"], content["values"]
    return TextSet(
        language,
        numbered("ordinary", content["ordinary"]),
        tuple(dict.fromkeys(of_half("known", pairs["known"]) + of_half("unknown", pairs["unknown"]))),
        numbered("private", pairs["private"]),
        numbered("public", pairs["public"]),
        numbered("planted", values["planted"]),
        {name: of_half(name, words) for name, words in values.items() if name != "planted"},
    )


def _load_training(language: str) -> dict[str, list[str]]:
    path = FOLDER / "training" / f"{language}.toml"
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def sets_of(languages: tuple[str, ...], part: Half) -> list[TextSet]:
    """Returns the sets of these languages that are there, in their order."""
    return [texts for language in languages if (texts := load_texts(language, part))]
