"""Secrets, e-mail addresses and card numbers, found by pattern. It says that there is one, never which.

Every pattern takes time linear in the text: repeats are bounded, possessive, or begin at a word's edge only.
"""

import re
from collections.abc import Iterable, Iterator

_WORD = r"(?<![A-Za-z0-9_-])"  # where a word of key characters begins
_SECRET_NAMES = (
    r"(?:password|passwd|passphrase|passwort|pwd|secret(?:[_-]?(?:access[_-]?)?key)?|private[_-]?key"
    r"|api[_-]?key|(?:access|auth|api|bearer|refresh)[_-]?token|client[_-]?secret)"
)
# What code writes behind `password =` without giving one away.
_NO_VALUE = r"(?!(?:none|null|nil|true|false|str|string|bytes|int|self|undefined|optional)\b)"

PATTERNS: dict[str, re.Pattern[str]] = {
    "secret_private_key": re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY"),
    "secret_aws_key": re.compile(
        r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"
        r"|(?i:aws.{0,20}(?:secret|key).{0,20}[\s=:\"'][A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=]))"
    ),
    "secret_github_token": re.compile(
        r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22}|glpat-[A-Za-z0-9_-]{20})"
    ),
    "secret_google_key": re.compile(r"(?<![A-Za-z0-9])(?:AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{20})"),
    "secret_slack_token": re.compile(
        r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10}|hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9]"
    ),
    # A digit among them tells a key from a hyphenated name ("sk-fading-circle-of-dots").
    "secret_api_key": re.compile(
        _WORD + r"sk-(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{20}"
        r"|(?<![A-Za-z0-9])(?:[rs]k_(?:live|test)_[A-Za-z0-9]{16}|hf_[A-Za-z0-9]{30}|npm_[A-Za-z0-9]{36})"
    ),
    "secret_jwt": re.compile(_WORD + r"eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8}"),
    # password="...", password: '...', password=word, password: w0rd. Not: password = input(...), "password: see below".
    "secret_password": re.compile(
        rf"(?i){_SECRET_NAMES}[\"'`]?\s{{0,3}}"
        r"(?:(?::=|=>|[:=])(?!=)\s{0,3}([\"'`])(?!\1)[^\s\"'`]{4}"
        rf"|=(?!=)\s{{0,3}}{_NO_VALUE}[^\s\"'`(){{}}\[\]<>$,;=]{{4,}}+(?![(\[{{])"
        rf"|:\s{{0,3}}(?=[^\s0-9]{{0,40}}[0-9]){_NO_VALUE}[^\s\"'`(){{}}\[\]<>$,;=]{{6,}}+(?![(\[{{]))"
    ),
    # ASCII on purpose: \w would swallow the kana that stand right behind an address in Japanese text.
    "email": re.compile(r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"),
}
CARD_NUMBER = "card_number"
REASONS = (*PATTERNS, CARD_NUMBER)

# Digits in groups, one space or hyphen between two groups; not the digits of a decimal fraction.
_DIGITS = re.compile(r"(?<!\d)(?<!\d\.)\d++(?:[ -]\d++)*+")
# First digits of payment card issuers (ISO/IEC 7812): a Unix time in milliseconds begins with 1 and is none.
_CARD = re.compile(r"(?:[2-6]|8[12])\d{12,18}")


def find(texts: Iterable[str]) -> str | None:
    """The first reason of REASONS for which one of the texts must not be used; None where all may."""
    texts = list(texts)
    for reason, pattern in PATTERNS.items():
        if any(pattern.search(text) for text in texts):
            return reason
    return CARD_NUMBER if any(_has_card_number(text) for text in texts) else None


def _has_card_number(text: str) -> bool:
    return any(_is_card(number) for run in _DIGITS.findall(text) for number in _numbers(re.split("[ -]", run)))


def _numbers(groups: list[str]) -> Iterator[str]:
    """Neighbouring groups joined, where they come to 13 to 19 digits: "12 4111 1111 1111 1111" holds such a number.

    Groups of one or two digits separate numbers: lists of small numbers would pass the checksum one time in ten.
    """
    for start in range(len(groups)):
        number = ""
        for group in groups[start : start + 6]:
            number += group
            if len(group) < 3 or len(number) > 19:
                break
            if len(number) >= 13:
                yield number


def _is_card(number: str) -> bool:
    """Issuer digit, length and the Luhn checksum (ISO/IEC 7812-1, annex B)."""
    if not _CARD.fullmatch(number) or not number.isascii():
        return False
    digits = [int(digit) for digit in reversed(number)]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0
