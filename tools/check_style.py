"""Checks the rules of CONTRIBUTING.md that ruff does not know: docstrings, error messages, sizes, commit subjects. It
also calls check_copies.py.

    python tools/check_style.py [PATH ...]

Prints one line for each finding and exits 1 if there is one. Without a path it checks src/eyas, tools and benchmarks.
`make check` runs it, tests/test_style.py calls `check_sizes`, and tests/test_check_style.py shows what each rule finds.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from check_copies import find_copies

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "eyas"

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CLASS_LINES = 250
MAX_MESSAGE_CHARS = 240
MAX_SUBJECT_CHARS = 72
PLACEHOLDER = "." * 12  # stands for a value that is put into a message; its length is assumed

BANNED_OPENERS = ("What", "Whether", "Who", "Where", "Of", "As", "How")
# Third-person verbs. A verb that is missing here is still known by the word behind it ("Pours the ...").
VERBS = set(
    """
    accepts acquires adapts adds admits advances aligns allocates allows answers appends applies asks asserts
    assigns attaches averages blocks buffers builds calculates calls cancels captures carries chains checks chooses
    clamps classifies cleans clears clips closes collects combines compacts compares compiles completes computes
    concatenates configures confirms connects consumes contains continues converts copies corrects costs counts
    covers creates decides decodes decreases deduplicates defines deletes delivers deploys describes detects
    determines disables discards dispatches divides does downloads drains draws drives drops dumps duplicates embeds
    emits enables encodes encrypts ends enforces ensures enters enumerates erases escapes estimates evaluates evicts
    executes exits expands expires explains exports extends extracts falls feeds fetches fills filters finds
    finishes fits flags flattens flushes follows forgets formats forwards freezes gathers generates gets gives
    grants groups grows guarantees guards guesses handles hashes hides holds identifies ignores implements imports
    increases indexes infers informs initializes inserts inspects installs interleaves interpolates interrupts
    invalidates iterates joins judges keeps keys knows labels launches learns leaves lets limits links listens lists
    loads locks logs looks lowers makes maps marks masks matches materializes measures merges mixes monitors moves
    multiplies names negotiates normalizes notes notifies observes obtains omits opens orders overrides packs pads
    pairs parses partitions passes patches pauses peeks performs permutes picks places plans plots pops predicts
    preempts prepares preserves presses prevents prints processes produces projects promotes proposes protects
    proves provides publishes pulls pushes puts quantizes queries queues quotes raises ranks reaches reads rebuilds
    receives recognizes recomputes records redirects reduces refers refreshes refuses registers rejects releases
    reloads remembers removes renames renders reopens repeats replaces replays reports represents requests requires
    rescales resets reshapes resolves responds restarts restores restricts resumes retires retries returns reuses
    reverses rewinds rewrites rolls rotates rounds routes runs samples saves says scales scatters schedules scores
    screens searches seeds selects sends separates serializes serves sets shards shares shifts shows shrinks
    shuffles shuts signals simulates skips sleeps solves sorts spawns splits spreads squares stacks starts states
    steps stops stores streams strips submits subtracts summarizes sums supplies swaps switches synchronizes
    synthesizes tags takes talks tallies tells tests throws times tokenizes trains transfers transforms translates
    transposes traverses tries trims truncates tunes turns unloads unpacks unrolls unwraps updates uploads uses
    validates verifies visits waits walks warms warns weighs widens works wraps writes yields zeroes
    """.split()
)
# Nouns more often than verbs: a verb only where an object follows ("Counts rows", but not "Counts of rows").
OFTEN_NOUNS = set(
    """
    answers blocks calls costs counts groups keys labels lists marks names notes orders pairs places plans processes
    queries queues records reports requests rounds samples scores seeds sets shards shares signals starts states
    steps stores streams tests times turns
    """.split()
)
NEVER_VERBS = set("across as always class less plus minus status this thus its unless process perhaps series".split())
OBJECT_OPENERS = set(
    """
    a all an another any both each either every half how its no one only several some the their them these this those
    three two what whether
    """.split()
)
STOP_WORDS = set(
    """
    a all an and are as at be been by each every for from given has have if in into is it its no none not of on one
    only or other returns return same some than that the their them then there these they this those to used uses was
    were what when which whole with
    """.split()
)
READABLE_EXCEPTIONS = ("TOMLDecodeError",)  # their text is written for users and names the line
OLD_FRAME = re.compile(r"^found \b|\bfound\b.*; expected\b|; do \b")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        """Returns `path:line: text`, with the path below the repository where it lies there."""
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.text}"


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


# --- docstrings ------------------------------------------------------------------------------------------------------


def check_docstrings(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yields docstrings that start with the wrong kind of word, and docstrings that only repeat a name."""
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, Documented) else None
        if not isinstance(node, Documented) or not text:
            continue
        line = 1 if isinstance(node, ast.Module) else node.lineno
        name = path.stem if isinstance(node, ast.Module) else node.name
        if problem := _docstring_problem(node, text):
            yield Finding(path, line, f"docstring of {name} {problem}")


def _docstring_problem(node: Documented, text: str) -> str | None:
    words = re.findall(r"[A-Za-z_`][\w`'-]*", text)
    if not words:
        return "holds no words"
    if words[0] in BANNED_OPENERS:
        return f"starts with {words[0]!r}"
    if isinstance(node, FUNCTIONS) and not _is_property(node) and not is_verb_first(words):
        return f"does not start with a verb: {' '.join(words[:4])!r}"
    if isinstance(node, ast.ClassDef) and words[0].lower() in VERBS - OFTEN_NOUNS:
        return f"starts with a verb: {' '.join(words[:4])!r}; a class is a noun"
    if not isinstance(node, ast.Module) and _repeats_name(text, node):
        return "only repeats its name and parameters"
    return None


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_verb_first(words: Sequence[str]) -> bool:
    """Returns True if a docstring of these words starts with a verb in the third person."""
    first, second = words[0].lower(), words[1] if len(words) > 1 else ""
    if not re.fullmatch(r"[A-Z][a-z]*(-[a-z]+)*s", words[0]) or first in NEVER_VERBS:
        return False
    # "Tokens of ..." is a noun with an s, "Reads the ..." a verb: the second word tells them apart.
    if second in OBJECT_OPENERS:
        return True
    if first not in VERBS or second in ("of", "which", "whose"):
        return False
    is_object = second[:1] and (not second[0].islower() or (second[-1] == "s" and second not in ("as", "is", "was")))
    return bool(is_object) or first not in OFTEN_NOUNS


def _repeats_name(text: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Returns True if each content word of the docstring stands in the name or in the parameters."""
    names = [node.name]
    if isinstance(node, FUNCTIONS):
        names += [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    parts = (part for name in names for part in re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_"))
    known = {_stem(part) for part in parts}
    content = {_stem(word) for word in re.findall(r"[a-z]+", text.lower()) if word not in STOP_WORDS}
    return content <= known


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if len(word) > len(ending) + 2 and word.endswith(ending):
            return word.removesuffix(ending)
    return word


# --- error messages --------------------------------------------------------------------------------------------------


@cache
def error_classes() -> frozenset[str]:
    """Returns the names of EyasError and of all classes below src/eyas that derive from it."""
    bases: dict[str, set[str]] = {}
    for path in python_files([SOURCE]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    found = {"EyasError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(found)


def check_messages(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yields errors in the old form, too long ones, and those that end with a full stop or show a raw exception."""
    for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))]:
        own = list(_walk_own(function))
        texts = _assigned_texts(own)
        for node in own:
            if isinstance(node, ast.Call) and _called_name(node) in error_classes():
                for problem in _message_problems(node, texts):
                    yield Finding(path, node.lineno, f"{_called_name(node)}{problem}")
            if isinstance(node, ast.ExceptHandler) and node.name is not None:
                yield from _raw_exceptions(path, node, node.name)


def _assigned_texts(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Returns the text of each variable that is set to a string."""
    texts: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            texts[node.targets[0].id] = _text(node.value, texts) or ""
    return texts


def _walk_own(function: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a function, without those of the functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from _walk_own(child)


def _called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _message_problems(node: ast.Call, texts: Mapping[str, str]) -> Iterator[str]:
    arguments = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in ("problem", "fix", "do"))]
    parts = [text for argument in arguments if (text := _text(argument, texts)) is not None]
    if len(arguments) > 2:
        yield " takes a problem and a fix"
    elif any(OLD_FRAME.search(part) for part in parts):
        yield ": say what is wrong, not 'found ...; expected ...'"
    if sum(map(len, parts)) > MAX_MESSAGE_CHARS:
        yield f": over {MAX_MESSAGE_CHARS} characters"
    if any(part.endswith(".") and not part.endswith(PLACEHOLDER) for part in parts):
        yield ": the final full stop is added when the error is printed"


def _text(node: ast.expr, texts: Mapping[str, str]) -> str | None:
    """Returns the text of a string expression, placeholders filled with dots; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, texts), _text(node.right, texts)
        return None if left is None and right is None else (left or PLACEHOLDER) + (right or PLACEHOLDER)
    if isinstance(node, ast.IfExp):
        return max(_text(node.body, texts) or "", _text(node.orelse, texts) or "", key=len) or None
    return (texts.get(node.id) or None) if isinstance(node, ast.Name) else None


def _raw_exceptions(path: Path, handler: ast.ExceptHandler, name: str) -> Iterator[Finding]:
    """Yields errors that put the text of an exception which is not ours into their message."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    kinds = {ast.unparse(kind).rpartition(".")[2] for kind in caught if kind is not None}
    if kinds <= {*error_classes(), *READABLE_EXCEPTIONS}:
        return
    for call in ast.walk(handler):
        if isinstance(call, ast.Call) and _called_name(call) in error_classes():
            shown = (value.value for value in ast.walk(call) if isinstance(value, ast.FormattedValue))
            if any(_shows(value, name) for value in (*shown, *call.args)):
                yield Finding(path, call.lineno, f"{_called_name(call)} shows the raw text of an exception")


def _shows(node: ast.expr, name: str) -> bool:
    """Returns True for `error`, `str(error)` and parts of them, but not for an attribute such as `error.strerror`."""
    if isinstance(node, ast.Subscript):
        return _shows(node.value, name)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _shows(node.func.value, name)
    if isinstance(node, ast.Call) and _called_name(node) in ("str", "repr") and node.args:
        return _shows(node.args[0], name)
    return isinstance(node, ast.Name) and node.id == name


# --- sizes, commits --------------------------------------------------------------------------------------------------


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
    yield from (Finding(path, line, text) for line, text in find_copies(path, tree))
    yield from check_sizes(path, tree, source)


def check_commits() -> Iterator[Finding]:
    """Yields subjects that are too long, of the commits since this file exists.

    Yields nothing without git and outside a clone. A shallow clone is checked from its oldest commit on.
    """
    me = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
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
