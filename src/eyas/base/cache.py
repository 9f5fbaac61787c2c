"""Where things are kept that can always be made again: built operators, compiled forwards, measured costs."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/eyas, ~/.cache/eyas without the variable. It may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "eyas"


def keep_newest(directory: Path, pattern: str, count: int) -> None:
    """Remove all but the `count` files of this pattern that were used last; what cannot be removed stays."""

    def used_s(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:  # somebody else removed it meanwhile
            return 0.0

    for path in sorted(directory.glob(pattern), key=used_s, reverse=True)[count:]:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            continue
