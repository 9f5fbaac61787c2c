"""The recipe keys prompts.privacy.*: which detectors run, and what happens to a record for each kind of entity."""

from dataclasses import dataclass
from typing import Literal

from eyas.base.errors import UsageError
from eyas.privacy.span import DROPPED_BY_DEFAULT, EntityKind

BUILTIN = "builtin"
MODEL_DETECTORS = ("gliner", "transformers", "dlp")  # written as NAME:ARGUMENT


@dataclass(frozen=True)
class PrivacyConfig:
    """The recipe keys `prompts.privacy.*`. A kind that is neither in `drop` nor in `replace` is left as it is.

    Attributes:
        detectors: What searches for personal data: builtin (offline, no model), gliner:DIR or transformers:DIR (a model
            on disk), dlp:PROJECT (Google Sensitive Data Protection, which receives the raw prompts).
        drop: The kinds of personal data for which the whole record is dropped. All kinds: PERSON, LOCATION, ADDRESS,
            EMAIL, PHONE, CARD, ACCOUNT, GOVERNMENT_ID, SECRET, IP_ADDRESS.
        replace: The kinds of personal data that are replaced by surrogates.
        key_file: A file that holds the key of the surrogates; by default the key is in EYAS_PRIVACY_KEY, or it is
            made once for each user.
        unsupported_language: Drops or keeps a record in a language whose personal names no detector finds.
    """

    detectors: tuple[str, ...] = (BUILTIN,)
    drop: tuple[EntityKind, ...] = DROPPED_BY_DEFAULT
    replace: tuple[EntityKind, ...] = ("PERSON", "LOCATION", "EMAIL", "PHONE", "IP_ADDRESS")
    key_file: str | None = None
    unsupported_language: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        """Checks the values. Raises UsageError for an unknown detector, and for a value that stands twice."""
        if not self.detectors:
            raise UsageError("prompts.privacy.detectors is empty", 'Use ["builtin"]')
        for name in self.detectors:
            prefix, _, argument = name.partition(":")
            if name != BUILTIN and not (prefix in MODEL_DETECTORS and argument):
                problem = f"prompts.privacy.detectors has the unknown detector {name!r}"
                raise UsageError(problem, f"Use {BUILTIN}, gliner:DIR, transformers:DIR or dlp:PROJECT")
            if self.detectors.count(name) > 1:
                raise UsageError(f"prompts.privacy.detectors names {name} twice", "Name each detector once")
        for kind in sorted(set(self.drop) & set(self.replace)):
            problem = f"{kind} is both in prompts.privacy.drop and in prompts.privacy.replace"
            raise UsageError(problem, "Remove it from one of them")
