"""The limits of CONTRIBUTING.md that the linter does not count."""

import ast
from pathlib import Path

from check_style import check_sizes

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("src", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def test_files_classes_and_functions_are_short() -> None:
    assert FILES, "no source found"
    sources = {path: path.read_text() for path in FILES}
    assert [
        str(finding) for path, source in sources.items() for finding in check_sizes(path, ast.parse(source), source)
    ] == []


def test_no_module_for_everything() -> None:
    assert [path.name for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")] == []
