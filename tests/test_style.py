"""The limits of CONTRIBUTING.md that the linter does not count."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for room in ("src", "tools", "benchmarks") for path in (ROOT / room).rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80


def is_kernel(path: Path) -> bool:
    return "kernels" in path.relative_to(ROOT).parts


def test_files_are_short() -> None:
    assert FILES, "no source found"
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES if not is_kernel(path)}
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    long = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_kernel(path):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = lines
    assert long == {}


def test_no_room_for_everything() -> None:
    assert [path.name for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")] == []
