"""tools/check_style.py finds what breaks a rule, once, and nothing else."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from check_copies import COPYING_FUNCTIONS, find_copies
from check_style import (
    ROOT,
    check_docstrings,
    check_file,
    check_messages,
    code_lines,
    is_verb_first,
)

FUNCTION = 'def load_rows(path):\n    """{}"""\n'
CLASS = 'class RowStore:\n    """{}"""\n'
PROPERTY = 'class A:\n    @cached_property\n    def rows(self):\n        """{}"""\n'

WRONG_DOCSTRINGS = [
    ('"""What this is for."""', "starts with 'What'"),
    (CLASS.format("Whatever. "), None),
    (CLASS.format("Where rows are kept."), "starts with 'Where'"),
    (CLASS.format("Reads rows from a file."), "a class is a noun"),
    (CLASS.format("A row store."), "only repeats"),
    (PROPERTY.format("Whether there are rows."), "starts with 'Whether'"),
    (PROPERTY.format("The rows of a file, in order."), None),
    (FUNCTION.format("How many rows there are."), "starts with 'How'"),
    (FUNCTION.format("The rows of a file, in order."), "does not start with a verb"),
    (FUNCTION.format("Return the file content."), "does not start with a verb"),
    (FUNCTION.format("Rows of a file."), "does not start with a verb"),
    (FUNCTION.format("Counts of a file."), "does not start with a verb"),
    (FUNCTION.format("This reads a file."), "does not start with a verb"),
    (FUNCTION.format("Tokens, in order."), "does not start with a verb"),
    (FUNCTION.format("..."), "holds no words"),
    (FUNCTION.format("Loads rows from the path."), "only repeats"),
    (FUNCTION.format("Returns the content of a file, in order."), None),
]


@pytest.mark.parametrize(("source", "problem"), WRONG_DOCSTRINGS)
def test_docstrings(source, problem):
    found = [finding.text for finding in check_docstrings(Path("x.py"), ast.parse(source))]
    assert len(found) == (problem is not None), found
    assert problem is None or problem in found[0]


def test_verbs_and_plural_nouns_are_told_apart():
    verbs = ("Counts the rows", "Counts rows", "Names `x`", "Yields rows", "Checks that it is", "Loads random rows")
    verbs += ("Records a round", "Pours the rows", "Re-reads the file")
    nouns = ("Counts of rows", "Loads of rows", "Answers in order", "Names that are", "Rows of a file", "Records")
    nouns += ("Kettles with a lid", "Across all rows", "Status of a file")
    assert [text for text in verbs if not is_verb_first(text.split())] == []
    assert [text for text in nouns if is_verb_first(text.split())] == []


WRONG_MESSAGES = [
    ('UsageError("found 3 rows", "at most 2", "remove one")', "takes a problem and a fix"),
    ('UsageError("found a row that is none")', "say what is wrong"),
    ('InputError("a is empty; do fill it")', "say what is wrong"),
    (f'StageError("{"a" * 200}", "{"b" * 41}")', "over 240 characters"),
    (f'StageError(f"{{rows}} rows" + "{"c" * 230}")', "over 240 characters"),
    ('StorageError("The disk is full.")', "full stop"),
    ('InputError(problem="The file is empty", fix="Fill it.")', "full stop"),
    ('UsageError("n = 3, but at most 2 run at once", "Lower n")', None),
    ('UsageError(f"{path} holds no rows in {directory}")', None),
    ('ValueError("found nothing; expected something; do something.")', None),
]


@pytest.mark.parametrize(("call", "problem"), WRONG_MESSAGES)
def test_messages(call, problem):
    assert _messages(f"def f():\n    raise {call}\n") == ([] if problem is None else [problem])
    name, _, arguments = call.partition("(")
    if "=" not in arguments and "+" not in arguments and arguments.count(", ") == 0:
        through_a_name = f"def f():\n    text = {arguments.removesuffix(')')}\n    raise {name}(text)\n"
        assert _messages(through_a_name) == ([] if problem is None else [problem])


SHOWN = [
    ("ValueError", "{error}", True),
    ("(OSError, KeyError)", "{str(error)[:80]}", True),
    ("OSError", "{error.strerror}", False),
    ("InputError", "{error}", False),
    ("tomllib.TOMLDecodeError", "{error}", False),
    ("ValueError", "it", False),
]


@pytest.mark.parametrize(("kind", "shown", "is_wrong"), SHOWN)
def test_the_text_of_other_exceptions_is_not_shown(kind, shown, is_wrong):
    source = f'try:\n    f()\nexcept {kind} as error:\n    raise InputError(f"no: {shown}") from None\n'
    assert _messages(source) == (["raw text"] if is_wrong else [])


def _messages(source: str) -> list[str]:
    """Returns the part of WRONG_MESSAGES that each finding names."""
    known = ("takes a problem and a fix", "say what is wrong", "over 240 characters", "full stop", "raw text")
    found = [finding.text for finding in check_messages(Path("x.py"), ast.parse(source))]
    return [next(part for part in known if part in text) for text in found]


COPIES = [
    ("torch.tensor(ids, device=device)", "torch.tensor(..., device=...)"),
    ("torch.as_tensor(ids, dtype=kind, device=self.device)", "torch.as_tensor(..., device=...)"),
    ("torch.tensor(ids)", None),
    ("torch.arange(3, device=device)", None),
    ("numbers_X.to(device)", ".to(device)"),
    ("numbers_X.to(self.pool.kv.device, non_blocking=True)", ".to(device)"),
    ("numbers_X.to('cuda')", ".to(device)"),
    ("numbers_X.to('cpu', copy=True)", ".to(device)"),
    ("numbers_X.to(device=place)", ".to(device)"),
    ("numbers_X.to(torch.int32)", None),
    ("numbers_X.to(weight.dtype)", None),
    ("numbers_X.tolist()", ".tolist()"),
    ("lengths_B[b].item()", ".item()"),
    ("valid_BM[row].nonzero()[:, 0]", ".nonzero()"),
    ("numbers_X.cpu()", ".cpu()"),
    ("item()", None),
    ("self.lengths_R[req_slot] = length", "element of lengths_R"),
    ("self.seeds_R[0] = request.seed", "element of seeds_R"),
    ("self.lengths_R[req_slot].fill_(length)", None),
    ("self.lengths_R[req_slots_B] = ends_B", None),
    ("self.lengths_R[req_slot] = length_1", None),
    ("scores_BM[:, 0] = 0.0", None),
]


@pytest.mark.parametrize(("line", "problem"), COPIES)
def test_copies_in_launched_work(line, problem):
    for package in ("engine", "memory", "drafters", "tree", "server"):
        found = [text for _, text in find_copies(Path(f"eyas/{package}/x.py"), ast.parse(f"def f():\n    {line}\n"))]
        assert len(found) == (problem is not None and package in ("engine", "memory", "drafters")), (package, found)
        assert problem is None or all(problem in text for text in found)


def test_functions_that_may_copy_need_to():
    for name in COPYING_FUNCTIONS:
        path, _, function = name.partition(":")
        source = (ROOT / "src" / "eyas" / path).read_text()
        assert not [*find_copies(Path("eyas") / path, ast.parse(source))]
        renamed = ast.parse(source.replace(f"def {function}(", "def other("))
        assert [*find_copies(Path("eyas") / path, renamed)], f"{name} copies nothing"


@pytest.mark.parametrize(
    ("source", "found"),
    [("x = 1\n" * 400, []), ("x = 1\n" * 401, ["file of 401 lines"]),
     ("def f():\n" + "    x = 1\n" * 59, []), ("def f():\n" + "    x = 1\n" * 60, ["f has 61 lines"]),
     ("class A:\n" + "    x = 1\n" * 250, ["A has 251 lines"])],
)  # fmt: skip
def test_sizes(tmp_path, source, found):
    for place, expected in ((tmp_path, found), (tmp_path / "kernels", [])):
        place.mkdir(exist_ok=True)
        (place / "x.py").write_text(source)
        assert [finding.text for finding in check_file(place / "x.py")] == expected


def test_code_lines_leave_out_docstrings_comments_and_blank_lines():
    assert (
        code_lines('"""One.\n\nTwo."""\n\n# three\nx = """four\nfive"""  # six\n\n\ndef f():\n    """Seven."""\n') == 3
    )


def test_it_prints_each_finding_and_fails(tmp_path):
    (tmp_path / "x.py").write_text('"""What this is."""\n')
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "check_style.py"), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"{tmp_path}/x.py:1: docstring of x starts with 'What'" in done.stdout


def make_clone(directory: Path) -> Path:
    """Makes a repository with a long subject before the script was added and one after it."""
    (directory / "tools").mkdir(parents=True)
    git(directory, "init", "--quiet")
    git(directory, "commit", "--quiet", "--allow-empty", "--message", f"Before {'a' * 80}")
    for name in ("check_style.py", "check_copies.py"):
        shutil.copy(ROOT / "tools" / name, directory / "tools")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "--message", f"Add the script {'b' * 80}")
    git(directory, "commit", "--quiet", "--allow-empty", "--message", f"After {'c' * 80}")
    git(directory, "commit", "--quiet", "--allow-empty", "--message", "Short")
    return directory


def git(directory: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, capture_output=True)


def check_clone(directory: Path, path: str = os.environ["PATH"]) -> tuple[int, str]:
    command = [sys.executable, str(directory / "tools" / "check_style.py"), str(directory / "src")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": path})
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_commit_subjects_since_the_script_exists_are_checked(tmp_path):
    code, text = check_clone(make_clone(tmp_path / "full"))
    assert code == 1
    assert text == f"tools/check_style.py:1: commit subject of 86 characters: After {'c' * 80}\n"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_clone_is_checked_as_far_as_it_reaches(tmp_path, depth):
    source = make_clone(tmp_path / "full")
    git(tmp_path, "clone", "--quiet", f"--depth={depth}", f"file://{source}", "shallow")
    assert check_clone(tmp_path / "shallow") == (0, "")


def test_commits_are_not_checked_without_a_clone_or_git(tmp_path):
    (tmp_path / "tools").mkdir()
    for name in ("check_style.py", "check_copies.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")
    assert check_clone(tmp_path) == (0, "")
    assert check_clone(make_clone(tmp_path / "full"), path="/nowhere") == (0, "")
