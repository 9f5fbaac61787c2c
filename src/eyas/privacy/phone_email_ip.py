"""Finds e-mail addresses, phone numbers and IP addresses."""

import contextlib
import ipaddress
import re
from collections.abc import Iterator, Sequence

import phonenumbers

from eyas.privacy.labeled_values import is_direct, label_before, labels_before
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.word_lists import read_data_file

_EMAIL, _NUMBER = load_patterns("emails"), load_patterns("numbers")
_REACH_OF_LABEL = 40  # characters before "name at domain.com" in which a word such as "mail" stands
_NO_PERSON = frozenset(("git", "hg", "svn"))  # git@github.com:owner/name.git names no one

_REACH = 24  # characters between a label and a number
# Labels right before a number that is no phone number.
_OTHER_KINDS = ("OTHER", "ACCOUNT", "CARD", "GOVERNMENT_ID", "CUSTOMER_ID", "DEVICE_ID", "VEHICLE", "PIN")
_FORMS = read_data_file("data/numbers")
_REGIONS = {language: regions.split() for language, regions in _FORMS["phone_regions"].items()}
_MOBILE = {language: re.compile(pattern) for language, pattern in _FORMS["mobile_phones"].items()}
_RESOLVERS = _FORMS["ip_addresses"]["resolvers"].split()


def find_emails(text: str) -> Iterator[Span]:
    """Yields the spans of e-mail addresses. Takes linear time.

    Spelled-out addresses are found, too: "name (at) domain (dot) com", "name arroba domain punto es".
    """
    at = text.find("@")
    while at >= 0:
        local = _EMAIL["local_part"].search(text, max(0, at - 64), at)
        domain = _EMAIL["domain"].match(text, at + 1)
        if local and domain and any(map(str.isalnum, local[0])):
            start = local.start()
            while text[start] in "'`*/.=|{&-":  # quotes and marks before the address, key=value
                start += 1
            start = max(start, text.rfind("=", start, at) + 1)
            if start < at and text[start:at] not in _NO_PERSON:
                yield Span(start, domain.end(), "EMAIL")
        at = text.find("@", domain.end() if local and domain else at + 1)
    for match in _EMAIL.find(text, "spelt_out", "starred"):
        yield Span(*match.span(), "EMAIL", 0.7)
    for match in _EMAIL.find(text, "spoken"):
        labels = labels_before(text, match.start(), _REACH_OF_LABEL)
        is_spoken = match["dot"] != "." or (match["at"] == "AT" and not match[0].isupper())
        is_spoken = is_spoken or bool(_EMAIL["no_word"].search(match[0].partition(" at ")[0]))
        if is_spoken or any(label.kind == "EMAIL" for label in labels):
            yield Span(*match.span(), "EMAIL", 0.6)


def find_phone_numbers(text: str, language: str, is_personal: bool) -> Iterator[Span]:
    """Yields the spans of phone numbers.

    A phone number has a country code, a typical grouping such as "(555) 123-4567", or a word such as "phone" before it.
    A run of digits without these may be a Unix time. It is found only if it is a valid number in a country of the
    language and the text is personal.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
        is_personal: Another detector found personal data in the text.
    """
    for match in _NUMBER["phone"].finditer(text):
        number = text[match.start() : match.start("extension")].rstrip("xet .:,#") if match["extension"] else match[0]
        num_digits = sum(map(str.isdigit, number))
        if not 7 <= num_digits <= 15 or _NUMBER["date"].match(number) or _NUMBER["ipv4"].match(number):
            continue
        label = label_before(text, match.start(), _REACH, passing=("CONTACT", "EMAIL", "BORN"))
        is_direct_label = label is not None and is_direct(text, label.end, match.start())
        if label is not None and label.kind in _OTHER_KINDS and is_direct_label:
            continue
        if number.startswith(("+", "(+", "00")):
            plain = number.replace("(0)", "")
            plain = f"+{plain[2:]}" if plain.startswith("00") else plain.strip("()")
            score = float(_is_phone_number(plain, (None,), valid=False))
        elif _NUMBER["unit"].match(text, match.end()):
            continue
        else:
            kind = label.kind if label and _NUMBER["no_digits"].fullmatch(text, label.end, match.start()) else ""
            score = _rate_national(number, kind, language, is_personal)
        if score:
            yield Span(*match.span(), "PHONE", score)


def _rate_national(number: str, label: str, language: str, is_personal: bool) -> float:
    """Returns the score of a number without a country code; 0 if it is no phone number.

    Args:
        number: The number without its extension.
        label: The kind of the label before the number; empty if there is none.
        language: The language of the text (ISO 639-1).
        is_personal: Another detector found personal data in the text.
    """
    regions = _REGIONS.get(language, _REGIONS["other"])
    is_announced = label == "PHONE"
    is_grouped = not number.isdigit()
    if not is_announced and _NUMBER["decimal"].match(number):
        return 0.0
    if is_grouped and _NUMBER["phone_grouping"].fullmatch(number):
        return 0.9
    if not is_announced and _NUMBER["year"].match(number):
        return 0.0
    if is_announced or (language in _MOBILE and _MOBILE[language].fullmatch(number)):
        return 0.8
    if label in ("CONTACT", "HANDLE") and _is_phone_number(number, regions, valid=not is_grouped):
        return 0.8
    if not is_grouped and number[0] != "1" and is_personal and _is_phone_number(number, regions, valid=True):
        return 0.6
    if (is_grouped or number[0] == "0") and not _is_amount(number, language):
        has_groups = is_personal and len(re.findall(r"\d+", number)) > 2
        return 0.6 if _is_phone_number(number, regions, valid=not has_groups) else 0.0
    return 0.0


def _is_amount(number: str, language: str) -> bool:
    """Returns True if the grouping is that of an amount ("1 732 098") or of a part number ("12345-67890").

    In Spanish, Portuguese and Polish, three groups of three digits are a phone number instead.
    """
    groups = re.split(r"[ .]", number)
    if number[0] == "0":  # a trunk prefix
        return groups[-1] == "000"
    if groups[-1] == "000" or (len(groups) == 1 and "-" in number):
        return True
    if len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:]):
        return len(groups) != 3 or len(groups[0]) != 3 or language not in ("es", "pt", "pl")
    return len({len(group) for group in groups}) == 1


def _is_phone_number(number: str, regions: Sequence[str | None], valid: bool) -> bool:
    """Returns True if the number is a phone number of one of the countries.

    Args:
        number: The number.
        regions: Codes of countries, such as "US"; None for a number with a country code.
        valid: Checks that the country uses the prefix; otherwise only the length is checked.
    """
    test = phonenumbers.is_valid_number if valid else phonenumbers.is_possible_number
    for region in regions:
        with contextlib.suppress(phonenumbers.NumberParseException):
            if test(phonenumbers.parse(number, region)):
                return True
    return False


def find_ip_addresses(text: str) -> Iterator[Span]:
    """Yields the spans of public IP addresses. Private, loopback and documentation addresses identify nobody."""
    for match in _NUMBER["ipv4"].finditer(text):
        before = text[max(0, match.start() - 12) : match.start()]
        if not _NUMBER["version"].search(before) and _is_public(match[0]):
            yield Span(*match.span(), "IP_ADDRESS", 0.9)
    if text.count(":") >= 2:
        for match in _NUMBER["ipv6"].finditer(text):
            if len(match[0]) > 6 and _is_public(match[0]):
                yield Span(*match.span(), "IP_ADDRESS", 0.9)


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global and address not in _RESOLVERS
    except ValueError:
        return False
