"""The recipe keys prompts.privacy.*: which detectors run, and what happens to a record for each kind of entity."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eyas.base.errors import InputError, UsageError
from eyas.privacy.span import KINDS

BUILTIN = "builtin"
MODEL_DETECTORS = ("gliner", "transformers", "dlp")  # written as NAME:ARGUMENT
MIN_KEY_BYTES = 16


@dataclass(frozen=True)
class PrivacyConfig:
    """The recipe keys `prompts.privacy.*`. A kind that is neither in `drop` nor in `replace` is left as it is.

    Attributes:
        detectors: What searches for personal data: builtin (offline, no model), gliner:DIR or transformers:DIR (a model
            on disk), dlp:PROJECT (Google Sensitive Data Protection, which receives the raw prompts).
        drop: The kinds of personal data for which the whole record is dropped. All kinds: PERSON, LOCATION, ADDRESS,
            EMAIL, PHONE, CARD, ACCOUNT, GOVERNMENT_ID, SECRET, IP_ADDRESS.
        replace: The kinds of personal data that are replaced by surrogates.
        key_file: A file whose bytes key the surrogates; by default a key is made for the run and held in memory only.
        unsupported_language: Drops or keeps a record in a language whose personal names no detector finds.
    """

    # "builtin" (offline, no model), "gliner:DIR" and "transformers:DIR" (a model on disk), "dlp:PROJECT" (Google
    # Sensitive Data Protection: the raw prompts go to that service).
    detectors: tuple[str, ...] = (BUILTIN,)
    drop: tuple[str, ...] = ("SECRET", "CARD", "ACCOUNT", "GOVERNMENT_ID", "ADDRESS")
    replace: tuple[str, ...] = ("PERSON", "LOCATION", "EMAIL", "PHONE", "IP_ADDRESS")
    # A file whose bytes key the surrogates; None: the caller makes a key for the run and holds it in memory only.
    key_file: str | None = None
    # A language whose personal names no detector finds: the record is dropped and counted, or kept all the same.
    unsupported_language: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        """Checks the values. Raises UsageError for one that is unknown or in two places."""
        if not self.detectors:
            raise UsageError("prompts.privacy.detectors is empty", 'Use ["builtin"]')
        for name in self.detectors:
            prefix, _, argument = name.partition(":")
            if name != BUILTIN and not (prefix in MODEL_DETECTORS and argument):
                raise UsageError(
                    f"prompts.privacy.detectors has the unknown detector {name!r}",
                    f"Use {BUILTIN}, gliner:DIR, transformers:DIR or dlp:PROJECT",
                )
            if self.detectors.count(name) > 1:
                raise UsageError(f"prompts.privacy.detectors names {name} twice", "Name each detector once")
        for key, kinds in (("drop", self.drop), ("replace", self.replace)):
            for kind in set(kinds) - set(KINDS):
                raise UsageError(f"prompts.privacy.{key} has the unknown kind {kind!r}", f"Use {', '.join(KINDS)}")
        for kind in sorted(set(self.drop) & set(self.replace)):
            raise UsageError(
                f"{kind} is both in prompts.privacy.drop and in prompts.privacy.replace", "Remove it from one of them"
            )
        if self.unsupported_language not in ("drop", "keep"):
            raise UsageError(
                f"prompts.privacy.unsupported_language={self.unsupported_language!r} is unknown", "Use drop or keep"
            )


def read_key(path: str) -> bytes:
    """Returns the bytes of a key file. Raises InputError where it is missing or shorter than 16 bytes."""
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise InputError(
            f"The key file {path} cannot be read: {error.strerror}", "Correct prompts.privacy.key_file"
        ) from None
    if len(key) < MIN_KEY_BYTES:
        raise InputError(
            f"The key in {path} has {len(key)} bytes and needs at least {MIN_KEY_BYTES}",
            f"Make one with: openssl rand -hex 32 > {path}",
        )
    return key
