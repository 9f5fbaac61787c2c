"""docs/architecture.md follows a request through the engine by name: every name must exist."""

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
PACKAGES = "|".join(sorted(path.stem for path in (PAGE.parents[1] / "src" / "eyas").iterdir() if path.stem[0] != "_"))
NAME = re.compile(rf"`((?:{PACKAGES})\.[A-Za-z_0-9.]+)`")


def test_every_name_on_the_page_exists() -> None:
    names = sorted(set(NAME.findall(PAGE.read_text())))
    assert len(names) > 25, "the page names what it explains"
    missing = [name for name in names if not exists(name)]
    assert not missing


def exists(name: str) -> bool:
    """Returns True if the name is a module below eyas, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(("eyas", *parts[:length])))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            fields = getattr(found, "__annotations__", {})
            if not hasattr(found, attribute) and attribute not in fields:
                return False
            found = getattr(found, attribute, None)
        return True
    return False
