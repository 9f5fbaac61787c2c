"""Reads the templates of benchmarks/pii."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent / "pii"


@dataclass(frozen=True)
class Template:
    """A template. `use` is planted, clean or famous; `case` is lower, upper or empty."""

    use: str
    name: str
    case: str
    text: str


def read_templates(path: Path) -> list[Template]:
    """Reads the templates of a file. A line `== use name [case]` precedes each text."""
    found = []
    for block in ("\n" + path.read_text("utf-8")).split("\n== ")[1:]:
        head, _, text = block.partition("\n")
        use, name, *case = head.split()
        found.append(Template(use, name, "".join(case), text.strip("\n")))
    return found


@cache
def templates(language: str) -> tuple[Template, ...]:
    """Reads the templates of benchmarks/pii/LANGUAGE.txt."""
    return tuple(read_templates(HERE / f"{language}.txt"))


@cache
def snippets() -> Mapping[str, tuple[str, ...]]:
    """Returns code, logs and data for texts of any language, by kind."""
    found: dict[str, tuple[str, ...]] = {}
    for template in read_templates(HERE / "snippets.txt"):
        found[template.use] = (*found.get(template.use, ()), template.text)
    return found
