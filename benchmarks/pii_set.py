"""Makes the labeled set that `make prove-data` measures a privacy filter with: prompts with and without planted values.

Planted values are personal data and secrets; all are invented. The set comes from its own templates
(benchmarks/pii/<language>.txt), which were written before any filter was tuned and are not changed. A test checks the
digest of everything that determines the set.
"""

from dataclasses import dataclass
from random import Random

from pii_slots import SlotFiller, TextPiece
from pii_templates import Template, templates

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv")
PER_LANGUAGE = 240  # texts with planted values, and as many without
FAMOUS_EVERY = 25  # one clean text in 25 contains a word that looks like a name
# case of a text -> kinds whose values may change case; values of other kinds would become invalid
CASELESS = {
    "lower": ("PERSON", "LOCATION", "ADDRESS", "EMAIL"),
    "upper": ("PERSON", "LOCATION", "ADDRESS", "GOVERNMENT_ID"),
}


@dataclass(frozen=True)
class Planted:
    """A value that must not survive. `listed`, for a PERSON: True if Faker's lists contain every word of it."""

    kind: str
    value: str
    listed: bool | None = None


@dataclass(frozen=True)
class LabeledText:
    """One text; `fixed` is the text without the planted values."""

    id: str
    text: str
    language: str
    template: str
    planted: tuple[Planted, ...]
    fixed: str

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of the planted values."""
        return frozenset(planted.kind for planted in self.planted)


def build_set(seed: int) -> list[LabeledText]:
    """Builds the set. The same seed gives the same texts."""
    return [labeled for language in LANGUAGES for labeled in _of_language(language, seed)]


def _of_language(language: str, seed: int) -> list[LabeledText]:
    by_use = {use: [t for t in templates(language) if t.use == use] for use in ("planted", "clean", "famous")}
    found: list[LabeledText] = []
    seen: set[str] = set()
    for use in ("planted", "clean"):
        for number in range(PER_LANGUAGE):
            some = by_use["famous"] if use == "clean" and number % FAMOUS_EVERY == 0 else by_use[use]
            turn = number // FAMOUS_EVERY if some is by_use["famous"] else number
            found.append(_text(some[turn % len(some)], language, f"{seed}:{use}:{language}:{number}", seen))
            seen.add(found[-1].text)
    return found


def _text(template: Template, language: str, seed: str, seen: set[str]) -> LabeledText:
    """Fills the template, again if the text was made before."""
    for attempt in range(1000):
        pieces = SlotFiller(Random(f"{seed}:{attempt}"), language).fill(template.text)
        pieces = [_cased(piece, template.case) for piece in pieces]
        text = "".join(piece.text for piece in pieces)
        if text not in seen:
            break
    else:
        raise AssertionError(f"template {language} {template.name} varies too little")
    planted = (Planted(piece.kind, piece.text, piece.listed) for piece in pieces if piece.kind)
    fixed = "\n".join(piece.text for piece in pieces if not piece.kind)
    use, number = ("p" if template.use == "planted" else "c"), seed.rsplit(":", 1)[1]
    return LabeledText(
        f"{use}-{language}-{number}", text, language, template.name, tuple(dict.fromkeys(planted)), fixed
    )


def _cased(piece: TextPiece, case: str) -> TextPiece:
    if not case or (piece.kind and piece.kind not in CASELESS[case]):
        return piece
    # Lower case of the Turkish capital İ would be two characters.
    text = piece.text.replace("İ", "I").lower() if case == "lower" else piece.text.upper()
    return TextPiece(text, piece.kind, piece.listed)
