"""The recipe keys `prompts.privacy.*`: which detectors run, and which kinds of data are dropped or replaced."""

import re
from dataclasses import dataclass
from typing import Literal

from eyas.base.errors import UsageError
from eyas.privacy.span import DROPPED_BY_DEFAULT, REPLACED_BY_DEFAULT, EntityKind

BUILTIN = "builtin"
DETECTOR = re.compile(r"builtin|model:.+|dlp(:[^/?]+(/[a-z0-9-]+)?(\?template=[\w./-]+)?)?")


@dataclass(frozen=True)
class PrivacyConfig:
    """The recipe keys `prompts.privacy.*`. Values of a kind that is neither in `drop` nor in `replace` stay unchanged.

    Attributes:
        detectors: The detectors of personal data: builtin (offline, no model); model:DIR or model:OWNER/NAME@COMMIT (a
            token classification model of transformers or a GLiNER model, on disk or on the hub);
            dlp:PROJECT[/REGION][?template=NAME] (Google Sensitive Data Protection, which receives the raw prompts).
        names: "private" replaces the names and places of private persons only; public figures, characters and invented
            names stay. "all" replaces every name of a person that a detector finds.
        keep: A text file with one name or word a line. The detectors leave these values unchanged.
        drop: A record with a value of one of these kinds is dropped as a whole. All kinds: PERSON, LOCATION, ADDRESS,
            EMAIL, PHONE, CARD, ACCOUNT, GOVERNMENT_ID, SECRET, IP_ADDRESS, DEVICE_ID, VEHICLE, COORDINATES,
            CUSTOMER_ID, HANDLE, BIRTH_DATE.
        replace: The kinds of personal data whose values are replaced by surrogates (made-up values).
        key_file: A file with the secret key that selects the surrogates. By default, the environment variable
            EYAS_PRIVACY_KEY holds the key; if it is not set, eyas creates a key once for each user.
        unsupported_language: What happens to a record in a language in which no detector finds personal names.
    """

    detectors: tuple[str, ...] = (BUILTIN,)
    names: Literal["private", "all"] = "private"
    keep: str | None = None
    drop: tuple[EntityKind, ...] = DROPPED_BY_DEFAULT
    replace: tuple[EntityKind, ...] = REPLACED_BY_DEFAULT
    key_file: str | None = None
    unsupported_language: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        """Checks the values. Raises UsageError for an unknown or repeated detector, or a kind in both lists."""
        if not self.detectors:
            raise UsageError("prompts.privacy.detectors is empty", 'Use ["builtin"]')
        for name in self.detectors:
            if not DETECTOR.fullmatch(name):
                problem = f"prompts.privacy.detectors has the unknown detector {name!r}"
                fix = "Use builtin, model:DIR, model:OWNER/NAME@COMMIT or dlp:PROJECT[/REGION][?template=NAME]"
                raise UsageError(problem, fix)
            if self.detectors.count(name) > 1:
                raise UsageError(f"prompts.privacy.detectors names {name} twice", "Name each detector once")
        for kind in sorted(set(self.drop) & set(self.replace)):
            problem = f"{kind} is both in prompts.privacy.drop and in prompts.privacy.replace"
            raise UsageError(problem, "Remove it from one of them")
