"""Checks the rules of CONTRIBUTING.md that ruff does not know: docstrings, error messages, sizes, commit subjects.

    python tools/check_style.py [PATH ...]

Prints one line for each finding and exits 1 if there is one. Without a path it checks src/eyas, tools and benchmarks.
`make check` runs it; benchmarks/prove_plain.py counts with the same functions.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "eyas"

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CLASS_LINES = 250
MAX_MESSAGE_CHARS = 240
MAX_SUBJECT_CHARS = 72
PLACEHOLDER_CHARS = 12  # assumed length of a value that is put into a message

ERRORS = ("EyasError", "UsageError", "InputError", "StageError", "StorageError", "ApiError", "QueueFull", "Draining")
BANNED_OPENERS = ("What", "Whether", "Who", "Where", "Of", "As", "How")
# "Tokens of ..." is a noun with an s, "Reads the ..." a verb: the second word tells them apart.
AFTER_NOUNS = """of that which with in by for from as and where whose behind over under per at on it""".split()
PLURAL_NOUNS = """
    always answers arms bytes costs counts digests errors figures heads ids its keys lines logits messages names nodes
    pairs places prompts records requests rounds rows seconds spans texts this times tokens trees turns us values
    weights words
""".split()
VERBS_LIKE_NOUNS = """answers counts costs lines names places records requests rounds times""".split()
STOP_WORDS = """
    a all an and are as at be been by each every for from given has have if in into is it its no none not of on one
    only or other returns return same some than that the their them then there these they this those to used uses was
    were what when which whole with
""".split()
OLD_FRAME = re.compile(r"\bfound\b.*; expected\b|; do \b")


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return (
            f"{self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path}:{self.line}: {self.text}"
        )


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_kernel(path: Path) -> bool:
    """Returns True in the packages whose files may be long."""
    return "kernels" in path.parts


def python_files(paths: Sequence[Path]) -> list[Path]:
    """Returns the Python files at or below `paths`, sorted."""
    found = {file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))}
    return sorted(found)


def code_lines(source: str) -> int:
    """Returns the number of lines that are not blank, not a comment and not part of a docstring."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documentation.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    layout = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def check_docstrings(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yields docstrings that start with a banned word, functions without a verb first, and mere repetitions."""
    for node in ast.walk(tree):
        if not isinstance(node, Documented):
            continue
        text = ast.get_docstring(node)
        line = 1 if isinstance(node, ast.Module) else node.lineno
        name = path.stem if isinstance(node, ast.Module) else node.name
        if not text:
            continue
        words = re.findall(r"[A-Za-z_`][\w`'-]*", text)
        if not words:
            yield Finding(path, line, f"docstring of {name} holds no words")
        elif words[0] in BANNED_OPENERS:
            yield Finding(path, line, f"docstring of {name} starts with {words[0]!r}")
        elif isinstance(node, FUNCTIONS):
            if not _is_property(node) and not _is_verb_first(words):
                yield Finding(path, line, f"docstring of {name} does not start with a verb: {' '.join(words[:4])!r}")
            elif _repeats(text, node):
                yield Finding(path, line, f"docstring of {name} only repeats its name and parameters")


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_verb_first(words: Sequence[str]) -> bool:
    first, second = words[0], words[1].lower() if len(words) > 1 else ""
    if not re.fullmatch(r"[A-Z][a-z-]*s", first):
        return False
    if first.lower() in PLURAL_NOUNS and first.lower() not in VERBS_LIKE_NOUNS:
        return False
    return second not in AFTER_NOUNS or (first.lower() not in PLURAL_NOUNS and second not in ("of", "that", "which"))


def _repeats(text: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Returns True if each content word of the docstring stands in the function's name or parameters."""
    arguments = node.args
    parameters = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    known = {_stem(part) for name in (node.name, *parameters) for part in name.lower().split("_")}
    content = {_stem(word) for word in re.findall(r"[a-z]+", text.lower()) if word not in STOP_WORDS}
    return content <= known


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if len(word) > len(ending) + 2 and word.endswith(ending):
            return word.removesuffix(ending)
    return word


def check_messages(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yields error messages in the old frame, with too many characters or with three parts."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in ERRORS:
            continue
        texts = [_literal(argument) for argument in node.args]
        told = [text for text in texts if text is not None]
        if name in ERRORS[:5] and len(node.args) > 2:
            yield Finding(path, node.lineno, f"{name} takes a problem and a fix")
        if sum(map(len, told)) > MAX_MESSAGE_CHARS:
            yield Finding(path, node.lineno, f"{name}: over {MAX_MESSAGE_CHARS} characters")
        if any(OLD_FRAME.search(text) for text in told) or any(text.startswith("found ") for text in told):
            yield Finding(path, node.lineno, f"{name}: say what is wrong, not 'found ...; expected ...'")


def _literal(node: ast.expr) -> str | None:
    """Returns the text of a string expression, placeholders filled with dots; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "." * PLACEHOLDER_CHARS for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _literal(node.left), _literal(node.right)
        return None if left is None or right is None else left + right
    return None


def check_sizes(path: Path, tree: ast.Module, source: str) -> Iterator[Finding]:
    """Yields files, classes and functions that are too long."""
    if is_kernel(path):
        return
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        yield Finding(path, 1, f"file of {lines} lines")
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            most = MAX_CLASS_LINES if isinstance(node, ast.ClassDef) else MAX_FUNCTION_LINES
            if length > most:
                yield Finding(path, node.lineno, f"{node.name} has {length} lines")


def check_file(path: Path) -> Iterator[Finding]:
    """Yields every finding of one file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    yield from check_docstrings(path, tree)
    yield from check_messages(path, tree)
    yield from check_sizes(path, tree, source)


def check_commits() -> Iterator[Finding]:
    """Yields subjects that are too long, of the commits since this file exists. Yields nothing outside a clone."""
    me = Path(__file__)

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    since = git("log", "--diff-filter=A", "--format=%h", "-1", "--", str(me.relative_to(ROOT)))
    for subject in git("log", "--no-merges", "--format=%s", f"{since}..HEAD").splitlines() if since else ():
        if len(subject) > MAX_SUBJECT_CHARS:
            yield Finding(me, 1, f"commit subject of {len(subject)} characters: {subject}")


def main() -> int:
    """Prints the findings and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[SOURCE, ROOT / "tools", ROOT / "benchmarks"])
    findings = [finding for path in python_files(parser.parse_args().paths) for finding in check_file(path.resolve())]
    findings += check_commits()
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
