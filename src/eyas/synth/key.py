"""The key of surrogates: the same value gets the same surrogate only under the same key. Never kept with the data."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from eyas.base.errors import InputError
from eyas.base.provenance import writing

VARIABLE = "EYAS_PRIVACY_KEY"
LEAST_BYTES = 16


def surrogate_key(key_file: str | None) -> bytes:
    """Of the file, of the variable, else of this user: made once and kept in $XDG_DATA_HOME/eyas (~/.local/share/eyas).

    Processes on several machines need one key: give them the variable or the file. InputError for a short or unreadable
    one.
    """
    if key_file is not None:
        return _read(Path(key_file).expanduser(), "prompts.privacy.key_file")
    if VARIABLE in os.environ:
        return _long_enough(os.environ[VARIABLE].strip().encode(), VARIABLE)
    root = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    path = Path(root) / "eyas" / "privacy.key"
    if not path.exists():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(secrets.token_hex(32) + "\n")
            except FileExistsError:  # another process was first
                pass
    return _read(path, str(path))


def key_id(key: bytes) -> str:
    """What may be written down of a key: whether two runs had the same one."""
    return hmac.new(key, b"eyas: which key is this", hashlib.sha256).hexdigest()[:16]


def _read(path: Path, name: str) -> bytes:
    try:
        return _long_enough(path.read_bytes().strip(), name)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}", "a readable file with a key", "make one") from None


def _long_enough(key: bytes, name: str) -> bytes:
    if len(key) < LEAST_BYTES:
        do = "make one with `openssl rand -hex 32`"
        raise InputError(f"{name} with {len(key)} bytes", f"a key of {LEAST_BYTES} bytes at least", do)
    return key
