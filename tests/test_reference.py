"""docs/reference/ is what the code says now, and every recipe key has its sentence."""

import dataclasses
import importlib
import re

import make_reference
import pytest

PAGES = make_reference.build_pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name):
    written = (make_reference.PAGES_DIR / name).read_text(encoding="utf-8")
    assert written == PAGES[name], "run `make reference`"


def test_there_is_no_other_page():
    assert {path.name for path in make_reference.PAGES_DIR.iterdir()} == set(PAGES)


def test_every_recipe_key_is_on_a_page():
    both = "".join(PAGES[name] for name, _, _ in make_reference.RECIPE_PAGES)
    for key in (
        "target.model",
        "prompts.sources[].path",
        "respond.tasks.TASK.top_p",
        "bench.slo.tpot_ms",
        "client.ramp",
    ):
        assert f"| `{key}` |" in both
    meanings = [line.split(" | ")[3].removesuffix(" |") for line in both.splitlines() if line.startswith("| `")]
    assert len(meanings) > 180
    assert [meaning for meaning in meanings if not re.fullmatch(r"[A-Z\"`].*\.", meaning)] == []


@dataclasses.dataclass(frozen=True)
class Documented:
    """A table.

    Attributes:
        size: The size
            in bytes.

    Text after the section.
    """

    size: int = 3


@dataclasses.dataclass(frozen=True)
class Undocumented:
    """A table.

    Attributes:
        size: The size in bytes.
    """

    size: int = 3
    speed: float = 1.5


@dataclasses.dataclass(frozen=True)
class Removed:
    """A table.

    Attributes:
        size: The size in bytes.
        speed: The speed.
    """

    size: int = 3


def test_a_sentence_may_take_several_lines():
    table = make_reference.build_table(Documented, "table", Documented())
    assert table.keys == (make_reference.RecipeKey("table.size", "whole number", "`3`", "The size in bytes."),)


def test_an_undocumented_key_is_an_error():
    with pytest.raises(make_reference.UndocumentedKeyError, match=r"table\.speed has no line"):
        make_reference.build_table(Undocumented, "table", Undocumented())


def test_a_sentence_without_a_key_is_an_error():
    with pytest.raises(make_reference.UndocumentedKeyError, match="speed, which is no key"):
        make_reference.build_table(Removed, "table", Removed())


STAGES = "target|prompts|respond|capture|features|train|eval|bench|tune|plan|deploy|client"
NAMED_KEY = re.compile(rf"`((?:{STAGES})\.[a-z_.]*[a-z_])(?:=[^`]*)?`")
DOCS = make_reference.ROOT / "docs"
FILE_ENDINGS = (".json", ".jsonl", ".toml", ".py")


@pytest.mark.parametrize(
    "path", [make_reference.ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name
)
def test_a_key_that_a_page_names_exists(path):
    """A name with a dot is a recipe key, a table of keys, or a module or attribute below eyas."""
    keys = set(re.findall(r"`([a-z_.\[\]TASK]+)`", "".join(PAGES[name] for name, _, _ in make_reference.RECIPE_PAGES)))
    keys |= {".".join(key.split(".")[:length]) for key in keys for length in range(1, key.count(".") + 1)}
    named = {name for name in NAMED_KEY.findall(path.read_text(encoding="utf-8")) if not name.endswith(FILE_ENDINGS)}
    assert {name for name in named - keys if not is_attribute(name)} == set()


def is_attribute(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(("eyas", *parts[:length])))
        except ModuleNotFoundError:
            continue
        return all(hasattr(found, part) for part in parts[length : length + 1])
    return False


def test_paths_that_pages_name_exist():
    roots = (make_reference.ROOT, make_reference.ROOT / "src" / "eyas")
    pages = [make_reference.ROOT / "README.md", *DOCS.rglob("*.md")]
    named = {path for page in pages for path in re.findall(r"`([\w-]+/[\w./-]+\.(?:py|toml|c|sh))`", page.read_text())}
    assert len(named) > 20
    assert {path for path in named if not any((root / path).exists() for root in roots)} == set()
