"""The recipe keys prompts.privacy.*: which detectors look, and what happens to a record for each kind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eyas.base.errors import InputError, UsageError
from eyas.privacy.span import KINDS

BUILTIN = "builtin"
PREFIXES = ("gliner:", "transformers:", "dlp:")
MIN_KEY_BYTES = 16


@dataclass(frozen=True)
class PrivacyConfig:
    """What is found and what is done. A kind that is neither in drop nor in replace is left as it is."""

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
        if not self.detectors:
            raise UsageError("no prompts.privacy.detectors", "at least one detector", 'write ["builtin"]')
        for name in self.detectors:
            prefix, _, rest = name.partition(":")
            if name != BUILTIN and not (f"{prefix}:" in PREFIXES and rest):
                raise UsageError(
                    f"prompts.privacy.detectors={name}",
                    f"{BUILTIN}, gliner:DIR, transformers:DIR or dlp:PROJECT",
                    "name one of them",
                )
        if len(set(self.detectors)) < len(self.detectors):
            raise UsageError("a detector named twice in prompts.privacy.detectors", "each once", "leave one out")
        for key, kinds in (("drop", self.drop), ("replace", self.replace)):
            for kind in kinds:
                if kind not in KINDS:
                    raise UsageError(
                        f"the kind {kind} in prompts.privacy.{key}", f"kinds of {', '.join(KINDS)}", "name one of them"
                    )
        both = sorted(set(self.drop) & set(self.replace))
        if both:
            raise UsageError(
                f"{', '.join(both)} both in prompts.privacy.drop and in prompts.privacy.replace",
                "one action for a kind",
                "leave it in one of them",
            )
        if self.unsupported_language not in ("drop", "keep"):
            raise UsageError(
                f"prompts.privacy.unsupported_language={self.unsupported_language}", "drop or keep", "write one of them"
            )


def read_key(path: str) -> bytes:
    """The bytes of a key file. Raises InputError where it is missing or shorter than 16 bytes."""
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable key file", "check prompts.privacy.key_file") from None
    if len(key) < MIN_KEY_BYTES:
        raise InputError(
            f"a key of {len(key)} bytes in {path}",
            f"at least {MIN_KEY_BYTES}",
            "make one, for example with: openssl rand -hex 32",
        )
    return key
