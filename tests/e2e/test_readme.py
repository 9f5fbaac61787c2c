"""What the README names exists; its commands run in test_docs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_links_and_packages_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    tree = README.split("## The map of the repository")[1].split("```")[1]
    packages = re.findall(r"^  ([a-z]+)/ ", tree, re.MULTILINE)
    assert set(packages) == {path.name for path in (ROOT / "src" / "eyas").iterdir() if path.is_dir()} - {"__pycache__"}
    for name in re.findall(r"^([a-z]+)/ ", tree, re.MULTILINE):
        assert (ROOT / name).is_dir(), name
