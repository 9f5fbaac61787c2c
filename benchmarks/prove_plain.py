"""`make prove-plain`: size, structure, texts and speed of the source, one JSON object a row; exit 1 if one misses.

    python benchmarks/prove_plain.py [--only structure|speed] [--before DIR] [--pairs N]

The rows of speed and of moved lines compare with the commit before the packages were split (BEFORE_COMMIT). DIR is a
checkout of that commit with its own .venv; `make prove-plain` creates it. Both commits run side by side in rotated
pairs, so the machine should do nothing else. About 25 minutes on two cores, one minute without the speed.
"""

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grimp
from plain_speed import measure_speed
from result_rows import Row, print_rows

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import check_style  # noqa: E402  a script of tools/, which is no package

SOURCE = ROOT / "src" / "eyas"
BEFORE_COMMIT = "97c9d91"
MAX_CODE_LINES, MAX_MOVED_LINES, MAX_FILES, MAX_SMALL_FILES, SMALL_FILE_LINES = 26_500, 1_500, 255, 12, 40
MOVED_SHARE = 0.8  # of the words of a line that a data file has
TEMPLATE_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
# Templates, the modules that wrote their texts at BEFORE_COMMIT, and the modules that render them today.
TEMPLATE_ORIGINS = {
    "cli/arguments.toml": (["cli/*.py"], ["cli/*.py"]),
    "bench/*.jinja": (
        [f"bench/{name}.py" for name in ("report", "figures", "load_page", "charts", "curves", "numbers")],
        ["bench/report*.py", "bench/charts.py"],
    ),
    "data/ledger/templates/*.jinja": (["synth/card.py", "synth/croissant.py"], ["data/ledger/cards.py"]),
    "export_readme.md.jinja": (["export.py", "export_card.py"], ["export.py"]),
    "train/head_card.md.jinja": (["train/card.py"], []),
}
DATA_SUFFIXES = (".toml", ".jinja", ".md")
IMPORT_TEST = "tests/e2e/test_serve_imports.py"


def main() -> int:
    """Prints the rows that were asked for and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["structure", "speed"], help="the rows to run (default: all)")
    parser.add_argument("--before", type=Path, help=f"a checkout of {BEFORE_COMMIT} with its own .venv")
    parser.add_argument("--pairs", type=int, default=11, help="pairs of runs behind each speed row")
    parsed = parser.parse_args()
    if parsed.before is None or not (parsed.before / ".venv").is_dir():
        parser.error(f"--before needs a checkout of {BEFORE_COMMIT} with a .venv; `make prove-plain` creates it")
    return print_rows(_rows(parsed))


def _rows(parsed: argparse.Namespace) -> Iterator[Row]:
    if parsed.only != "speed":
        yield from measure_size(SOURCE, parsed.before / "src" / "eyas")
        yield from measure_imports()
        yield from measure_texts()
    if parsed.only != "structure":
        yield from measure_speed(parsed.before, ROOT, parsed.pairs)


# --- size ------------------------------------------------------------------------------------------------------------


def measure_size(source: Path, before: Path) -> Iterator[Row]:
    """Yields the rows of lines and files. before: the same package at the commit to compare with."""
    files = {path: path.read_text(encoding="utf-8") for path in check_style.python_files([source])}
    lines, moved = sum(map(check_style.code_lines, files.values())), count_moved_lines(source, before)
    yield at_most("code lines of src/eyas", lines, MAX_CODE_LINES)
    excess = max(moved - MAX_MOVED_LINES, 0)
    yield Row("lines moved from Python to data files and templates", moved, "reported", ok=True)
    name = f"code lines of src/eyas, moved lines beyond {MAX_MOVED_LINES} counted as code"
    yield at_most(name, lines + excess, MAX_CODE_LINES)
    yield at_most("Python files", len(files), MAX_FILES)
    small = [p for p, text in files.items() if p.name != "__init__.py" and text.count("\n") < SMALL_FILE_LINES]
    yield at_most(f"files below {SMALL_FILE_LINES} lines", len(small), MAX_SMALL_FILES)
    found = [
        finding for path, text in files.items() for finding in check_style.check_sizes(path, ast.parse(text), text)
    ]
    yield _no_findings("functions over 60, classes over 250 and files over 400 lines, outside kernels/", found)


def count_moved_lines(source: Path, before: Path) -> int:
    """Returns how many lines left Python for data files and templates.

    Lists: the lines of word lists and tables in Python whose words now stand in new data files. Templates: the lines of
    the new templates, but not more than the modules lost that wrote these texts before.
    """
    new = _new_data_files(source, before)
    templates = [path for pattern in TEMPLATE_ORIGINS for path in source.glob(pattern)]
    tables = [path for path in new if path not in templates]
    words = {word for path in tables for word in _words(path.read_text(encoding="utf-8"))}
    today = {line.strip() for path in source.rglob("*.py") for line in path.read_text(encoding="utf-8").splitlines()}
    moved = 0
    for line in (line for path in before.rglob("*.py") for line in _list_lines(path)):
        own = _words(line)
        moved += line.strip() not in today and bool(own) and len(own & words) >= MOVED_SHARE * len(own)
    for pattern, (old_modules, new_modules) in TEMPLATE_ORIGINS.items():
        lost = _code_lines_of(before, old_modules) - _code_lines_of(source, new_modules)
        moved += min(sum(map(_count_template_lines, source.glob(pattern))), lost)
    return moved


def _code_lines_of(source: Path, patterns: Sequence[str]) -> int:
    paths = [path for pattern in patterns for path in source.glob(pattern)]
    return sum(check_style.code_lines(path.read_text(encoding="utf-8")) for path in paths)


def _count_template_lines(path: Path) -> int:
    text = TEMPLATE_COMMENT.sub("", path.read_text(encoding="utf-8"))
    return sum(1 for line in text.splitlines() if line.strip() and not line.startswith("# "))


def _new_data_files(source: Path, before: Path) -> list[Path]:
    old = {path.name for path in before.rglob("*")}
    return sorted(path for path in source.rglob("*") if path.suffix in DATA_SUFFIXES and path.name not in old)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]{2,}", text.lower()))


def _list_lines(path: Path) -> list[str]:
    """Returns the lines of module-level assignments of two lines or more that consist mostly of strings."""
    text = path.read_text(encoding="utf-8")
    lines: list[str] = []
    for node in ast.parse(text).body:
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if value is None or node.end_lineno is None or node.end_lineno == node.lineno:
            continue
        strings = (one.value for one in ast.walk(value) if isinstance(one, ast.Constant) and isinstance(one.value, str))
        if sum(map(len, strings)) > 0.4 * len(ast.get_source_segment(text, value) or ""):
            lines += text.splitlines()[node.lineno - 1 : node.end_lineno]
    return lines


# --- imports ---------------------------------------------------------------------------------------------------------


def measure_imports() -> Iterator[Row]:
    """Yields the rows of import direction, import circles and what a server imports."""
    graph = grimp.build_graph("eyas", exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    layers = _read_layers()
    upward = [(one, other) for one in imports for other in imports[one] if _points_up(one, other, layers)]
    yield _no_findings("imports that point up", upward)
    yield _no_findings("import circles between files", find_circles(imports))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", IMPORT_TEST], cwd=ROOT, stdout=sys.stderr, check=False)
    yield Row("import test of a ready server: exit code", done.returncode, "0", done.returncode == 0)


def _read_layers() -> dict[str, int]:
    """Returns the layer of each package from import-linter's contract, 0 on top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers")
    return {name.strip(): index for index, layer in enumerate(layers) for name in layer.split("|")}


def _points_up(importer: str, imported: str, layers: Mapping[str, int]) -> bool:
    """Returns True if the imported package is in a higher layer, or is another package of the same layer."""
    packages = [name.split(".")[1] for name in (importer, imported) if "." in name]
    if len(packages) < 2 or packages[0] == packages[1]:
        return False
    return layers[packages[1]] <= layers[packages[0]]


def find_circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in imports.get(module, ()):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                circles.append(sorted(stack[start:]))
            del stack[start:]

    for module in imports:
        if module not in order:
            visit(module)
    return circles


# --- texts -----------------------------------------------------------------------------------------------------------


def measure_texts() -> Iterator[Row]:
    """Yields the rows of docstrings and error messages."""
    docstrings: list[object] = []
    messages: list[object] = []
    for path in check_style.python_files([SOURCE, ROOT / "tools", ROOT / "benchmarks"]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings += check_style.check_docstrings(path, tree)
        messages += check_style.check_messages(path, tree)
    yield _no_findings("docstrings that are not verb-first or a noun, or only repeat a name", docstrings)
    yield _no_findings("error messages in the old frame, over 240 characters or with raw exception text", messages)
    yield _no_findings("commit subjects over 72 characters", list(check_style.check_commits()))


# --- rows ------------------------------------------------------------------------------------------------------------


def at_most(name: str, figure: int, bound: int) -> Row:
    """Returns a row that is met up to `bound`."""
    return Row(name, figure, f"at most {bound}", figure <= bound)


def _no_findings(name: str, findings: Sequence[object]) -> Row:
    for finding in findings:
        print(finding, file=sys.stderr)
    return at_most(name, len(findings), 0)


if __name__ == "__main__":
    sys.exit(main())
