"""E-mail addresses, phone numbers and IP addresses."""

import ipaddress
import re
from collections.abc import Iterator

import phonenumbers

from eyas.privacy.case_insensitive import CaseInsensitivePattern
from eyas.privacy.span import Span

# Latin letters only: \w would swallow the kana that stand right behind an address in Japanese text.
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

# Digits in groups. What decides is the number library, the grouping and the words before it.
_PHONE = re.compile(
    r"(?<![A-Za-z0-9_À-ɏ.@/=&#-])(?<!\d[:,])(?:\+|\(\+?|00(?=[1-9 ]))?\d(?:[ \u00a0.\-–/()]{0,3}\d){5,18}"
    r"(?:(?: ?x|,? ?ext\.?:? ?| ?# ?| Durchwahl | poste | int\. | interno | ramal | toestel "
    r"| wewn\. )(?P<extension>\d{1,6}))?"
    r"(?![A-Za-z0-9_À-ɏ@]|[.,:]\d|[-/]\d)"
)
_PHONE_CUE = CaseInsensitivePattern(
    r"(?:\b(?:tel|telephone|telefon\w*|t[ée]l[ée]phone|tel[ée]fono|telefone|telefoon\w*|phone|phones|cell|mobile"
    r"|mob"
    r"|mobil\w*|m[óo]vil|cellulare|celular|portable|handy\w*|gsm|fax|whatsapp|signal|telegram|sms|call|called|calling"
    r"|text|texted|reach|ring|dial|hotline|rufnummer\w*|anrufen|ruf|erreichbar|erreichen|appeler|appelez|appelle"
    r"|joindre|joignable|llama\w*|ll[áa]me\w*|chiama\w*|contatt\w*|liga\w*|ligue|telem[óo]vel|contacto|bel|bellen"
    r"|bereikbaar"
    r"|zadzwo\w*|dzwo\w*|kom[óo]rk\w*|numer telefonu|ring|n[åa]s|mobilnummer|number|numbers|nummer|num[ée]ro"
    r"|n[úu]mero|numero"
    r"|numer|digits|contact|ph|t|m|f|p)\b|[☎📞📱✆])[^\n\d]{0,24}\Z"
)
_STRONG_CUE = CaseInsensitivePattern(
    r"(?:\b(?:tel|telephone|telefon\w*|t[ée]l[ée]phone|tel[ée]fono|telefone|telefoon\w*|phone|cell|mobile|mobil\w*"
    r"|m[óo]vil|cellulare|celular|handy\w*|gsm|fax|whatsapp|sms|call|text|rufnummer\w*|telem[óo]vel|kom[óo]rk\w*)\b"
    r"|[☎📞📱✆])[^\n\d]{0,24}\Z"
)
_NO_PHONE = CaseInsensitivePattern(
    r"\b(?:order|invoice|ticket|isbn|issn|ean|upc|sku|serial|version|timestamp|time|ts|epoch|unix|hash|commit|build"
    r"|pid|id|ids|uuid|ref|reference|tracking|case|batch|lot|port|bestellung|rechnung\w*|auftrag\w*|commande|facture"
    r"|pedido"
    r"|factura|fattura|ordine|fatura|bestelling|factuur|zam[óo]wieni\w*|faktur\w*|order\w*|seed|offset|bytes|size"
    r"|token|doi"
    r"|account|konto\w*|iban|cuenta|conto|conta|rekening)\b[^\n\w]{0,3}(?:(?:number|nr|no|id|num|nummer|num[ée]ro"
    r"|n[úu]mero|numero|numer|key|is|was)\b"
    r"[^\n\w]{0,3}){0,2}\Z"
)
_DATE = re.compile(
    r"(?:\d{1,2}[./-]\d{1,2}[./-](?:19|20)?\d\d|(?:19|20)\d\d[./-]\d{1,2}[./-]\d{1,2}|(?:19|20)\d\d ?[-–] ?(?:19"
    r"|20)\d\d)"
)
_DECIMAL = re.compile(r"\d+\.\d+\Z")  # "9283.530700": a time, a measurement
_UNIT = re.compile(
    r" ?(?:ms|µs|us|ns|s|sec|seconds?|kg|g|mg|km|cm|mm|m|kB|KB|MB|GB|TB|bytes?|Hz|kHz|MHz|GHz|W|kWh|V|%|€|\$)(?![\w])"
)
# Groupings that phone numbers have and other numbers hardly: (555) 123-4567, 06 12 34 56 78, 070-123 45 67.
_SHAPE = re.compile(
    r"(?:\+?1[ .-]?)?(?:\(\d{3}\) ?\d{3}[ .-]\d{4}|\d{3}([ .-])\d{3}\1\d{4})"
    r"|0\d(?:([ .-])\d\d)(?:\2\d\d){3}"
    r"|0\d{1,4}(?:[ /-]|[ ]?[/-][ ]?)\d{2,4}(?:[ -]?\d{2,4}){1,3}"
    r"|\(0\d{1,5}\)[ -]{0,2}\d{2,8}(?:[ -]\d{2,6}){0,3}|\(\+?\d{2,3}\) \d{2,3} \d{3} \d{3}"
    r"|0\d{2,4}[ /-]\d{5,9}|\(\d{2}\) ?9?\d{4}-\d{4}"
)
_REGIONS = {
    "en": ("US", "GB", "AU", "IN", "IE"),
    "de": ("DE", "AT", "CH"),
    "fr": ("FR", "BE", "CH", "CA"),
    "es": ("ES", "MX", "AR", "CO", "CL"),
    "it": ("IT", "CH"),
    "pt": ("PT", "BR"),
    "nl": ("NL", "BE"),
    "pl": ("PL",),
    "sv": ("SE", "FI"),
}
_ALL_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "PL")

_IPV4 = re.compile(r"\d(?<![\w.-]\d)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_VERSION = CaseInsensitivePattern(r"(?:\bv|version|release|firmware|build|==|>=|<=|~=)[^\n\w]{0,3}\Z")
# Resolvers that anybody names: no person's address.
_PUBLIC = frozenset(("8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "208.67.222.222", "208.67.220.220"))


def find_emails(text: str) -> Iterator[Span]:
    """E-mail addresses; "name (at) domain (dot) com" and "name at domain dot com" as well. Linear in the text."""
    at = text.find("@")
    while at >= 0:
        local = _LOCAL.search(text, max(0, at - 64), at)
        domain = _DOMAIN.match(text, at + 1)
        if local and domain and _is_local(text, local.start(), at):
            begin = local.start()
            while text[begin] in "'`*/.=|{&-":  # quotes and marks before the address, key=value
                begin += 1
            begin = max(begin, text.rfind("=", begin, at) + 1)
            if begin < at and text[begin:at] not in _NO_PERSON:
                yield Span(begin, domain.end(), "EMAIL")
        at = text.find("@", domain.end() if local and domain else at + 1)
    lower = text.lower()
    if "at)" in lower or "at]" in lower or "at}" in lower or "at>" in lower or " @ " in lower:
        yield from (Span(m.start(), m.end(), "EMAIL", 0.7) for m in _SPELT_OUT.finditer(text))
    if " at " in lower:
        yield from (Span(m.start(), m.end(), "EMAIL", 0.6) for m in _SPOKEN.finditer(text) if " dot " in m[0].lower())


def _is_local(text: str, begin: int, at: int) -> bool:
    return any(char.isalnum() for char in text[begin:at])


def find_phone_numbers(text: str, language: str, personal: bool) -> Iterator[Span]:
    """Phone numbers: with a country code, in a shape that only they have, or behind a word that announces one.

    A bare run of digits is none without such a word, it may be a Unix time; but for a number that is valid in the
    language's countries, where something else in the text is personal.
    """
    regions = _REGIONS.get(language, _ALL_REGIONS)
    for match in _PHONE.finditer(text):
        number = text[match.start() : match.start("extension")].rstrip("xet .:,#") if match["extension"] else match[0]
        digits = sum(char.isdigit() for char in number)
        before = text[max(0, match.start() - 48) : match.start()]
        if digits < 7 or digits > 15 or _DATE.match(number) or _IPV4.match(number) or _NO_PHONE.search(before):
            continue
        if number.startswith(("+", "(+", "00")):
            if _is_possible(number.replace("(0)", ""), None):
                yield Span(match.start(), match.end(), "PHONE")
            continue
        if (_DECIMAL.match(number) and not _STRONG_CUE.search(before)) or _UNIT.match(text, match.end()):
            continue
        grouped = not number.isdigit()
        if grouped and _SHAPE.fullmatch(number):
            yield Span(match.start(), match.end(), "PHONE", 0.9)
        elif re.match(r"(?:19|20)\d\d[-/ ]", number) and not _STRONG_CUE.search(before):
            continue  # a year and a running number
        elif _STRONG_CUE.search(before) or (
            _PHONE_CUE.search(before) and _is_phone(number, regions, valid=not grouped)
        ):
            yield Span(match.start(), match.end(), "PHONE", 0.8)
        elif (
            not grouped
            and (personal or _is_alone(text, match))
            and _is_phone(number, regions, valid=True)
            and number[0] != "1"
        ) or (
            (grouped or number.startswith("0"))
            and _is_phone(number, regions, valid=not (personal and len(re.findall(r"\d+", number)) > 2))
            and not _is_amount(number, language)
        ):
            yield Span(match.start(), match.end(), "PHONE", 0.6)


def _is_alone(text: str, match: re.Match[str]) -> bool:
    """Whether the number fills its line, in a text of more lines: a signature, a form."""
    before, after = text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 1]
    return (before == "\n" and after in ("\n", "")) and "@" in text


def _is_amount(number: str, language: str) -> bool:
    """Whether the groups are those of a large number ("1 732 098") or of a part's number ("12345-67890").

    Three groups of three are a phone number in Spain, Portugal and Poland.
    """
    groups = re.split(r"[ \u00a0.]", number)
    if len(groups) == 1 and "-" in number and number[0] != "0":
        return True  # 12345-67890: a part number as well
    if groups[-1] == "000":
        return True
    threes = all(len(group) == 3 for group in groups[1:]) and len(groups[0]) <= 3
    if threes and number[0] != "0":
        return len(groups) != 3 or len(groups[0]) != 3 or language not in ("es", "pt", "pl")
    return len({len(group) for group in groups}) == 1 and number[0] != "0"


def _is_possible(number: str, region: str | None) -> bool:
    try:
        text = "+" + number[2:] if number.startswith("00") else number.strip("()")
        return phonenumbers.is_possible_number(phonenumbers.parse(text, region))
    except phonenumbers.NumberParseException:
        return False


def _is_phone(number: str, regions: tuple[str, ...], valid: bool) -> bool:
    for region in regions:
        try:
            parsed = phonenumbers.parse(number, region)
        except phonenumbers.NumberParseException:
            return False
        if phonenumbers.is_valid_number(parsed) or (not valid and phonenumbers.is_possible_number(parsed)):
            return True
    return False


def find_ip_addresses(text: str) -> Iterator[Span]:
    """Addresses of the public internet; those of private networks, loops and examples name no one."""
    for match in _IPV4.finditer(text):
        if not _VERSION.search(text[max(0, match.start() - 12) : match.start()]) and _is_public(match[0]):
            yield Span(match.start(), match.end(), "IP_ADDRESS", 0.9)
    if text.count(":") >= 2:
        for match in _IPV6.finditer(text):
            if len(match[0]) > 6 and _is_public(match[0]):
                yield Span(match.start(), match.end(), "IP_ADDRESS", 0.9)


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global and address not in _PUBLIC
    except ValueError:
        return False
