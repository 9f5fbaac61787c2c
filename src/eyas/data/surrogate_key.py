"""Loads the key of surrogates: equal values get equal surrogates under one key. It is never stored with the data."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from eyas.base.errors import InputError
from eyas.base.storage import convert_write_errors
from eyas.privacy.config import MIN_KEY_BYTES, read_key

VARIABLE = "EYAS_PRIVACY_KEY"


def load_surrogate_key(key_file: str | None) -> bytes:
    """Returns the key of the file, of the variable, or of this user.

    The user's key is created once, in $XDG_DATA_HOME/eyas (~/.local/share/eyas). Processes on several machines need one
    key: give them the variable or the file.

    Raises:
        InputError: The key is too short or cannot be read.
    """
    if key_file is not None:
        return read_key(key_file)
    if VARIABLE in os.environ:
        key = os.environ[VARIABLE].strip().encode()
        if len(key) < MIN_KEY_BYTES:
            raise InputError(
                f"{VARIABLE} has {len(key)} bytes, and a key needs at least {MIN_KEY_BYTES}",
                "Create one with: openssl rand -hex 32",
            )
        return key
    root = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    path = Path(root) / "eyas" / "privacy.key"
    if not path.exists():
        with convert_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(secrets.token_hex(32) + "\n")
            except FileExistsError:  # another process was first
                pass
    return read_key(str(path))


def key_id(key: bytes) -> str:
    """Returns an id that tells keys apart and may be written down."""
    return hmac.new(key, b"eyas: which key is this", hashlib.sha256).hexdigest()[:16]
