"""Finds e-mail addresses, phone numbers and IP addresses."""

import ipaddress
import re
from collections.abc import Iterator, Sequence

import phonenumbers

from eyas.privacy.case_insensitive import CaseInsensitivePattern
from eyas.privacy.span import Span

# Latin letters only: \w would swallow the kana that stand right after an address in Japanese text.
_LOCAL = re.compile(r"[A-Za-z0-9À-ɏ!#$%&'*+/=?^_`{|}~.-]+\Z")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9À-ɏ_-]{1,63}\.){1,8}[A-Za-z]{2,24}")
_SPELT_OUT = re.compile(
    r"(?i)(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{2,64}(?: ?[\[({<] ?at ?[\])}>] ?| @ )"
    r"[A-Za-z0-9-]{1,63} ?(?:(?:[\[({<] ?(?:dot|punkt|point) ?[\])}>]|\.) ?[A-Za-z0-9-]{2,30}){1,4}"
)
_SPOKEN = CaseInsensitivePattern(
    r"(?<![\w.])[A-Za-z0-9_%+-]{2,40}(?:(?: dot |\.)[A-Za-z0-9_%+-]{2,40}){0,3} at [A-Za-z0-9-]{2,40}"
    r"(?: dot |\.)(?:com|org|net|de|fr|es|it|pt|nl|pl|se|io|edu|gov|co\.uk|eu)\b"
)
_NO_PERSON = frozenset(("git", "hg", "svn"))  # git@github.com:owner/name.git names no one

# Digits in groups. The number library, the grouping and the words before it decide whether it is a phone number.
_PHONE = re.compile(
    r"(?<![A-Za-z0-9_À-ɏ.@/=&#-])(?<!\d[:,])(?:\+|\(\+?|00(?=[1-9 ]))?\d(?:[ \u00a0.\-–/()]{0,3}\d){5,18}(?:(?: ?x"
    r"|,? ?ext\.?:? ?| ?# ?| Durchwahl | poste | int\. | interno | ramal | toestel "
    r"| wewn\. )(?P<extension>\d{1,6}))?(?![A-Za-z0-9_À-ɏ@]|[.,:]\d|[-/]\d)"
)
_SURE_WORDS = (
    r"tel|telephone|telefon\w*|t[ée]l[ée]phone|tel[ée]fono|telefone|telefoon\w*|phone|cell|mobile|mobil\w*|m[óo]vil"
    r"|cellulare|celular|handy\w*|gsm|fax|whatsapp|sms|call|text|rufnummer\w*|telem[óo]vel|kom[óo]rk\w*"
)
_SURE_CUE = CaseInsensitivePattern(rf"(?:\b(?:{_SURE_WORDS})\b|[☎📞📱✆])[^\n\d]{{0,24}}\Z")
_CUE = CaseInsensitivePattern(
    rf"(?:\b(?:{_SURE_WORDS}|phones|mob|portable|signal|telegram|called|calling|texted|reach|ring|dial|hotline|anrufen"
    r"|ruf|erreichbar|erreichen|appeler|appelez|appelle|joindre|joignable|llama\w*|ll[áa]me\w*|chiama\w*|contatt\w*"
    r"|liga\w*|ligue|contacto|bel|bellen|bereikbaar|zadzwo\w*|dzwo\w*|numer telefonu|n[åa]s|number|numbers|nummer"
    r"|num[ée]ro|n[úu]mero|numer|digits|contact|ph|t|m|f|p)\b|[☎📞📱✆])[^\n\d]{0,24}\Z"
)
_NO_PHONE = CaseInsensitivePattern(
    r"\b(?:order|invoice|ticket|isbn|issn|ean|upc|sku|serial|version|timestamp|time|ts|epoch|unix|hash|commit|build"
    r"|pid|id|ids|uuid|ref|reference|tracking|case|batch|lot|port|bestellung|rechnung\w*|auftrag\w*|commande|facture"
    r"|pedido|factura|fattura|ordine|fatura|bestelling|factuur|zam[óo]wieni\w*|faktur\w*|order\w*|seed|offset|bytes"
    r"|size|token|doi|account|konto\w*|iban|cuenta|conto|conta|rekening)\b[^\n\w]{0,3}(?:(?:number|nr|no|id|num|nummer"
    r"|num[ée]ro|n[úu]mero|numero|numer|key|is|was)\b[^\n\w]{0,3}){0,2}\Z"
)
_DATE = re.compile(
    r"\d{1,2}[./-]\d{1,2}[./-](?:19|20)?\d\d|(?:19|20)\d\d(?:[./-]\d{1,2}[./-]\d{1,2}| ?[-–] ?(?:19|20)\d\d)"
)
_YEAR = re.compile(r"(?:19|20)\d\d[-/ ]")  # and a running number
_DECIMAL = re.compile(r"\d+\.\d+\Z")  # "9283.530700": a time, a measurement
_UNIT = re.compile(
    r" ?(?:ms|µs|us|ns|s|sec|seconds?|kg|g|mg|km|cm|mm|m|kB|KB|MB|GB|TB|bytes?|Hz|kHz|MHz|GHz|W|kWh|V|%|€|\$)(?![\w])"
)
# Groupings that phone numbers have and other numbers hardly: (555) 123-4567, 06 12 34 56 78, 070-123 45 67.
_SHAPE = re.compile(
    r"(?:\+?1[ .-]?)?(?:\(\d{3}\) ?\d{3}[ .-]\d{4}|\d{3}([ .-])\d{3}\1\d{4})|0\d(?:([ .-])\d\d)(?:\2\d\d){3}"
    r"|0\d{1,4}(?:[ /-]|[ ]?[/-][ ]?)\d{2,4}(?:[ -]?\d{2,4}){1,3}|\(0\d{1,5}\)[ -]{0,2}\d{2,8}(?:[ -]\d{2,6}){0,3}"
    r"|\(\+?\d{2,3}\) \d{2,3} \d{3} \d{3}|0\d{2,4}[ /-]\d{5,9}|\(\d{2}\) ?9?\d{4}-\d{4}"
)
# Countries whose national numbers are read in a text of this language.
_REGIONS = {
    "en": "US GB AU IN IE", "de": "DE AT CH", "fr": "FR BE CH CA", "es": "ES MX AR CO CL", "it": "IT CH",
    "pt": "PT BR", "nl": "NL BE", "pl": "PL", "sv": "SE FI",
}  # fmt: skip
_OTHER_REGIONS = "US GB DE FR ES IT PL"

_IPV4 = re.compile(r"\d(?<![\w.-]\d)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_VERSION = CaseInsensitivePattern(r"(?:\bv|version|release|firmware|build|==|>=|<=|~=)[^\n\w]{0,3}\Z")
# No person's address.
_PUBLIC_RESOLVERS = ("8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "208.67.222.222", "208.67.220.220")


def find_emails(text: str) -> Iterator[Span]:
    """Yields the spans of e-mail addresses. Takes linear time.

    Spelled-out addresses are found, too: "name (at) domain (dot) com", "name at domain dot com".
    """
    at = text.find("@")
    while at >= 0:
        local = _LOCAL.search(text, max(0, at - 64), at)
        domain = _DOMAIN.match(text, at + 1)
        if local and domain and any(map(str.isalnum, local[0])):
            start = local.start()
            while text[start] in "'`*/.=|{&-":  # quotes and marks before the address, key=value
                start += 1
            start = max(start, text.rfind("=", start, at) + 1)
            if start < at and text[start:at] not in _NO_PERSON:
                yield Span(start, domain.end(), "EMAIL")
        at = text.find("@", domain.end() if local and domain else at + 1)
    lower = text.lower()
    if any(mark in lower for mark in ("at)", "at]", "at}", "at>", " @ ")):
        yield from (Span(*match.span(), "EMAIL", 0.7) for match in _SPELT_OUT.finditer(text))
    if " at " in lower:
        spoken = (match for match in _SPOKEN.finditer(text) if " dot " in match[0].lower())
        yield from (Span(*match.span(), "EMAIL", 0.6) for match in spoken)


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
    for match in _PHONE.finditer(text):
        number = text[match.start() : match.start("extension")].rstrip("xet .:,#") if match["extension"] else match[0]
        before = text[max(0, match.start() - 48) : match.start()]
        num_digits = sum(map(str.isdigit, number))
        if not 7 <= num_digits <= 15 or _DATE.match(number) or _IPV4.match(number) or _NO_PHONE.search(before):
            continue
        if number.startswith(("+", "(+", "00")):
            score = 1.0 if _is_possible(number.replace("(0)", "")) else 0.0
        elif _UNIT.match(text, match.end()):
            continue
        else:
            score = _score_national(text, match, number, before, language, is_personal)
        if score:
            yield Span(*match.span(), "PHONE", score)


def _score_national(
    text: str, match: re.Match[str], number: str, before: str, language: str, is_personal: bool
) -> float:
    """Returns the score of a number without a country code; 0 if it is no phone number.

    Args:
        text: The text.
        match: The match of the number, with its extension.
        number: The number without its extension.
        before: The 48 characters before the number.
        language: The language of the text (ISO 639-1).
        is_personal: Another detector found personal data in the text.
    """
    regions = _REGIONS.get(language, _OTHER_REGIONS).split()
    is_announced = bool(_SURE_CUE.search(before))
    is_grouped = not number.isdigit()
    if not is_announced and _DECIMAL.match(number):
        return 0.0
    if is_grouped and _SHAPE.fullmatch(number):
        return 0.9
    if not is_announced and _YEAR.match(number):
        return 0.0
    if is_announced or (_CUE.search(before) and _is_phone_number(number, regions, valid=not is_grouped)):
        return 0.8
    is_expected = not is_grouped and number[0] != "1" and (is_personal or _is_signature(text, match))
    if is_expected and _is_phone_number(number, regions, valid=True):
        return 0.6
    if (is_grouped or number[0] == "0") and not _is_amount(number, language):
        has_groups = is_personal and len(re.findall(r"\d+", number)) > 2
        return 0.6 if _is_phone_number(number, regions, valid=not has_groups) else 0.0
    return 0.0


def _is_signature(text: str, match: re.Match[str]) -> bool:
    """Returns True if the number is alone on its line in a text with an "@", as in the signature of an e-mail."""
    before, after = text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 1]
    return before == "\n" and after in ("\n", "") and "@" in text


def _is_amount(number: str, language: str) -> bool:
    """Returns True if the grouping is that of an amount ("1 732 098") or of a part number ("12345-67890").

    In Spanish, Portuguese and Polish, three groups of three digits are a phone number instead.
    """
    groups = re.split(r"[ \u00a0.]", number)
    has_trunk = number[0] == "0"
    if len(groups) == 1 and "-" in number and not has_trunk:
        return True
    if groups[-1] == "000":
        return True
    threes = all(len(group) == 3 for group in groups[1:]) and len(groups[0]) <= 3
    if threes and not has_trunk:
        return len(groups) != 3 or len(groups[0]) != 3 or language not in ("es", "pt", "pl")
    return len({len(group) for group in groups}) == 1 and not has_trunk


def _is_possible(number: str) -> bool:
    """Returns True if a number with a country code has a length that its country uses."""
    parsed = _parse("+" + number[2:] if number.startswith("00") else number.strip("()"), None)
    return parsed is not None and phonenumbers.is_possible_number(parsed)


def _is_phone_number(number: str, regions: Sequence[str], valid: bool) -> bool:
    """Returns True if the number is a phone number of one of the countries.

    Args:
        number: A number without a country code.
        regions: Codes of countries, such as "US".
        valid: Checks that the country uses the prefix; otherwise only the length is checked.
    """
    test = phonenumbers.is_valid_number if valid else phonenumbers.is_possible_number
    return any(parsed is not None and test(parsed) for parsed in (_parse(number, region) for region in regions))


def _parse(number: str, region: str | None) -> phonenumbers.PhoneNumber | None:
    try:
        return phonenumbers.parse(number, region)
    except phonenumbers.NumberParseException:
        return None


def find_ip_addresses(text: str) -> Iterator[Span]:
    """Yields the spans of public IP addresses. Private, loopback and documentation addresses identify nobody."""
    for match in _IPV4.finditer(text):
        if not _VERSION.search(text[max(0, match.start() - 12) : match.start()]) and _is_public(match[0]):
            yield Span(*match.span(), "IP_ADDRESS", 0.9)
    if text.count(":") >= 2:
        for match in _IPV6.finditer(text):
            if len(match[0]) > 6 and _is_public(match[0]):
                yield Span(*match.span(), "IP_ADDRESS", 0.9)


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global and address not in _PUBLIC_RESOLVERS
    except ValueError:
        return False
