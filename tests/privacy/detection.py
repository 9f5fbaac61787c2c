"""What the tests share: the built-in detector, built once, and what it finds as text."""

from functools import cache

from eyas.privacy.builtin_detector import BuiltinDetector
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import PrivacyFilter

KEY = bytes(range(32))


@cache
def detector() -> BuiltinDetector:
    return BuiltinDetector()


def detect(text: str, language: str = "en") -> list[tuple[str, str]]:
    """(kind, what was found) in order."""
    return [(span.kind, text[span.start : span.end]) for span in detector().find([text], [language])[0]]


def detect_values(kind: str, text: str, language: str = "en") -> list[str]:
    return [value for each, value in detect(text, language) if each == kind]


def make_filter(key: bytes = KEY, **settings) -> PrivacyFilter:
    return PrivacyFilter(PrivacyConfig(**{"names": "all", **settings}), key, [detector()])


def find_private_names(text: str, language: str) -> list[str]:
    """The names that the mode "private" replaces, in order."""
    spans = make_filter(names="private").detect([((text,), language)])[0][0]
    return [text[span.start : span.end] for span in spans if span.kind == "PERSON"]
