"""docs/results/: every row has its keys, and every page says which command made its figures and at which commit."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
PAGES = sorted(path for path in RESULTS.glob("*.md") if path.name != "README.md")
FILES = sorted(RESULTS.glob("*.json"))
BELOW = sorted(path for path in DOCS.rglob("*.md") if path.parent != DOCS)  # the others: tests/e2e/test_docs.py
SCRIPT = re.compile(r"`python (benchmarks/\w+\.py)[^`]*`")
TARGET = re.compile(r"`make ([a-z-]+)[^`]*`")
COMMIT = re.compile(r"[0-9a-f]{7}")
REQUIRED = {"name", "figure", "target", "ok", "commit"}


def test_every_page_has_its_rows():
    assert PAGES
    assert [path.stem for path in PAGES] == [path.stem for path in FILES]
    index = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in PAGES if f"]({path.name})" not in index] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_a_list_of_rows(path):
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert rows
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        assert set(row) >= REQUIRED, row
        assert isinstance(row["figure"], int | float)
        assert (row["target"] is None) == (row["ok"] is None)
        assert row["ok"] in (True, False, None)
        assert COMMIT.fullmatch(row["commit"])
        low, high = row.get("interval", (row["figure"], row["figure"]))
        assert low <= row["figure"] <= high, row


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_names_its_command_and_its_commits(path):
    text = path.read_text(encoding="utf-8")
    (command,) = re.findall(r"^\| command \| (.+) \|$", text, re.MULTILINE)
    scripts, targets = SCRIPT.findall(command), TARGET.findall(command)
    assert scripts or targets
    assert all((ROOT / script).is_file() for script in scripts)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    (written,) = re.findall(r"^\| written down at \| (.+) \|$", text, re.MULTILINE)
    rows = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert {row["commit"] for row in rows} <= set(COMMIT.findall(written))


@pytest.mark.parametrize("path", BELOW, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (path.parent / link).exists(), link


def test_no_page_is_longer_than_200_lines():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in pages}
    assert {name: count for name, count in lines.items() if count > 200} == {}


def test_links_with_an_anchor_lead_to_a_heading():
    broken = []
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for link, anchor in re.findall(r"\]\(([^)#\s:]+\.md)#([^)]+)\)", path.read_text(encoding="utf-8")):
            headings = re.findall(r"^#+ (.+)$", (path.parent / link).read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            if anchor not in slugs:
                broken.append(f"{path.relative_to(ROOT)}: {link}#{anchor}")
    assert broken == []
