"""Finds payment cards, bank accounts and wallets of crypto currencies by checksum, or by the words before them."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from stdnum import bitcoin, iban, luhn, numdb
from stdnum.us import rtn

from eyas.privacy.case_insensitive import CaseInsensitivePattern
from eyas.privacy.span import Span

_MIN_CARD = 12  # digits
# Digits with at most two separators between two of them; not the digits of a decimal fraction. The lookbehinds stand
# after the first digit: the engine then stops at digits only.
_DIGITS = re.compile(r"\d(?<![\d\w]\d)(?<!\d[.,]\d)(?:[ \u00a0\t\r\n._*·–-]{0,2}\d)*+(?![A-Za-z])")
_LETTER = re.compile(r"[^\W\d_]")
_GROUP = re.compile(r"\d+")
# Issuer ranges of ISO/IEC 7812 as the networks publish them: first digits and number of digits.
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|(?:6011|64[4-9]\d|65\d\d)\d{12,15}"  # Discover
    r"|62\d{14,17}|81\d{14,17}"  # UnionPay
    r"|35\d{14,17}|(?:2131|1800)\d{11}"  # JCB
    r"|3(?:0[0-59]|[689]\d)\d{11,16}"  # Diners Club
    r"|(?:50|5[6-9]|6[0-9])\d{10,17}"  # Maestro, RuPay
    r"|220[0-4]\d{12,15}|9792\d{12}"  # Mir, Troy
)
_CARD_CUE = CaseInsensitivePattern(
    r"(?:\bcards?\b|credit|debit|visa\b|master ?card|amex|american express|\bpan\b|kreditkarte\w*|karte\w*|carte\b"
    r"|bancaire|tarjeta|carta\b|cart[ãa]o|creditcard|kaart\w*|kart[aąęy]\w*|kort\w*|maestro|discover|\bcc\b|ccnum"
    r"|cc_num|card_?num\w*|cardnumber)[^\n]{0,40}\Z"
)
_CARD_LABEL = CaseInsensitivePattern(
    r"(?:card (?:number|no|nr|num|#)|card_?number|cardno|cc_?num\w*|credit ?card|debit ?card|kreditkarte(?:nnummer)?"
    r"|kartennummer|num[ée]ro de (?:la )?carte|carte bancaire|n[úu]mero de (?:la )?tarjeta|tarjeta de cr[ée]dito"
    r"|numero (?:di|della) carta|carta di credito|n[úu]mero do cart[ãa]o|cart[ãa]o de cr[ée]dito|kaartnummer"
    r"|numer karty|kortnummer|kontokort)[^\w\n]{0,6}(?:(?:is|ist|est|es|è|é|to|[äa]r)\b[^\w\n]{0,3})?\Z"
)
_OTHER_LABEL = CaseInsensitivePattern(
    r"\b(?:order|id|ref|reference|tracking|shipment|invoice|ticket|serial|sku|timestamp|ts|transaction|txn|trace|span"
    r"|request|session|seed|nonce|imei|iccid|ean|upc|isbn|gtin|bestell\w*|auftrag\w*|sendung\w*|rechnung\w*|commande"
    r"|colis|pedido|env[íi]o|ordine|spedizione|encomenda|bestelling|zending|zam[óo]wieni\w*|przesy[łl]k\w*"
    r"|f[öo]rs[äa]ndelse\w*|build|job|run|pid|hash|key|offset|cursor|snowflake|tweet|message|user|customer|event|node"
    r"|order_id|orderid)\b(?:[ _-]?(?:id|ids|number|no|nr|num|ref|code|n[°º]))?[^\w\n]{0,4}\Z"
)
_IBAN = re.compile(r"(?i)(?<![A-Za-z0-9])[A-Z]{2}[ -]?\d{2}(?:[ \u00a0.-]{0,2}[A-Z0-9]){11,30}")
_IBAN_LABEL = CaseInsensitivePattern(r"\biban\b[^\n]{0,16}\Z")
_ACCOUNT_LABEL = CaseInsensitivePattern(
    r"(?:\b(?:bank |checking |savings |current |giro |deposit |brokerage )?(?:account|acct|acc|a/c)\b(?! id| manager)"
    r"|\brouting\b|\baba\b|\brtn\b|\bsort[ _-]?code\b|\bbsb\b|konto(?:nummer|nr|inhaber)?\b|\bktonr\b|\bkto\b"
    r"|bankleitzahl\b|\bblz\b|\bcompte\b(?![ -](?:rendu|tenu|rond))|\brib\b|\bcuenta\b|\bccc\b|\bclabe\b|\bcbu\b"
    r"|\bconto(?: corrente)?\b|\bc/c\b|\bconta\b|\bnib\b|\bag[êe]ncia\b|rekening(?:nummer)?\b|bankrekening\w*"
    r"|\bnumer rachunku\b|\brachun\w*|\bkont[oa]\b|bankgiro\w*|plusgiro\w*|kontonummer\b|clearing(?:nummer)?\b"
    r"|account_?n(?:umber|o|r)\b|accountnumber\b|iban\b|\bdemat\b|\bifsc\b|transit)[^\n\d]{0,32}\Z"
)
_ACCOUNT = re.compile(r"\d(?<![\w.@]\d)(?:[ \u00a0./-]{0,2}\d){5,29}(?![\w@]|[.,]\d)")
# Between the name of an account and the number: "the account holder's phone 555-0100".
_PHONE_WORD = CaseInsensitivePattern(
    r"\b(?:tel|t[ée]l[ée]ph|phone|mobil|m[óo]vil|handy|cell|portable|fax|sms|call|whatsapp)"
)
_SORT_CODE = re.compile(r"\d(?<![\d-]\d)\d-\d{2}-\d{2}(?![\d-])(?=[^\n]{0,40}?(?<!\d)\d{8}(?!\d))")
_AMOUNT = re.compile(r"(?i)[ ]?(?:€|\$|£|euro?s?\b|usd\b|dollars?\b|kr\b|z[łl]\b|pln\b|sek\b|gbp\b|%)")
_WALLETS = re.compile(
    r"(?<![A-Za-z0-9])(?:0x[0-9a-fA-F]{40}|(?:bc1|tb1|ltc1)[a-z0-9]{25,87}|[13][1-9A-HJ-NP-Za-km-z]{25,34}"
    r"|T[1-9A-HJ-NP-Za-km-z]{33}|[LMD][1-9A-HJ-NP-Za-km-z]{33}|r[1-9A-HJ-NP-Za-km-z]{24,34}|addr1[a-z0-9]{50,100}"
    r"|4[0-9AB][1-9A-HJ-NP-Za-km-z]{93}|cosmos1[a-z0-9]{38})(?![A-Za-z0-9])"
)
_WALLET_LABEL = CaseInsensitivePattern(
    r"(?:wallet|btc|bitcoin|eth(?:ereum)?|crypto|ltc|litecoin|doge|xmr|monero|tron|trx|usdt|xrp|ripple|solana|\bsol\b"
    r"|cardano|\bada\b|deposit|donat\w*|send|pay|address|adresse|portafoglio|carteira|cartera|portefeuille|portfel"
    r"|pl[åa]nbok)[^\n]{0,60}\Z"
)
_ANY_WALLET = re.compile(r"(?<![A-Za-z0-9])[1-9A-HJ-NP-Za-km-z]{32,44}(?![A-Za-z0-9])")
_WALLET_WORD = CaseInsensitivePattern(r"(?:wallet|solana|\bsol\b|crypto|phantom)[^\n]{0,40}\Z")


def find_cards(text: str) -> Iterator[Span]:
    """Yields the spans of card numbers with a valid Luhn checksum, grouped by spaces, hyphens, dots or line ends.

    After "card number:", a number with a wrong checksum is found, too. A run of digits after "order id" is no card.
    """
    for run in _DIGITS.finditer(text):
        if run.end() - run.start() < _MIN_CARD:
            continue
        groups = [match.span() for match in _GROUP.finditer(text, *run.span())]
        first = 0
        while first < len(groups):
            count = _count_card_groups(text, groups, first)
            if count:
                yield Span(groups[first][0], groups[first + count - 1][1], "CARD")
            first += count or 1


def _count_card_groups(text: str, groups: list[tuple[int, int]], first: int) -> int:
    """Returns how many groups of digits form a card number: "4111 1111 1111 1111" -> 4. Returns 0 for no card.

    Args:
        text: The text.
        groups: The start and the end of each group of digits.
        first: Index of the group at which the card number must start.
    """
    start = groups[first][0]
    before = text[max(0, start - 64) : start]
    is_fraction = before[-1:] == "." and before[-2:-1].isdigit()  # 0.4111111111111111
    has_words = _LETTER.search(before) is not None  # deep in a run of numbers no word announces a card
    is_labeled: bool | None = None  # searched when needed: most runs are no numbers of that length
    number, sizes = "", []
    for count, (left, right) in enumerate(groups[first : first + 10], start=1):
        number += text[left:right]
        sizes.append(right - left)
        if len(number) > 19:
            return 0
        if len(number) < _MIN_CARD or not number.isascii():
            continue
        if is_labeled is None:
            is_labeled = has_words and bool(_CARD_LABEL.search(before))
        whole = first + count == len(groups) or count == 1 or sizes == [4] * 4
        if is_labeled and len(number) > _MIN_CARD and (whole or luhn.is_valid(number)):
            return count
        is_usual = _is_usual_grouping(sizes)
        if not (count == 1 or is_usual or has_words) or not _ISSUERS.fullmatch(number) or not luhn.is_valid(number):
            continue
        if (has_words and _CARD_CUE.search(before)) or (is_usual and (len(number) > _MIN_CARD or sizes == [4] * 3)):
            return count
        if count == 1 and len(number) > _MIN_CARD and not is_fraction and not _OTHER_LABEL.search(before):
            return count
    return 0


def _is_usual_grouping(sizes: list[int]) -> bool:
    """Returns True if cards group their digits like this: 4-4-4-4, 4-6-5, 4-4-4-4-3. sizes: digits of each group."""
    if len(sizes) < 2 or min(sizes[:-1]) < 3:  # small groups separate numbers
        return False
    return sizes[:-1] == [4] * (len(sizes) - 1) or sizes[0] in (3, 4, 6, 8)


def find_accounts(text: str) -> Iterator[Span]:
    """Yields the spans of IBANs, of account numbers after words such as "account", and of crypto wallets."""
    yield from _find_ibans(text)
    last = 0
    for match in _ACCOUNT.finditer(text):
        label = _ACCOUNT_LABEL.search(text[max(0, match.start() - 64, last - 40) : match.start()])
        digits = re.sub(r"\D", "", match[0])
        is_other = not label or _PHONE_WORD.search(label[0]) or _AMOUNT.match(text, match.end())
        if not is_other and len(digits) >= 6:
            yield Span(*match.span(), "ACCOUNT", 0.9 if rtn.is_valid(digits) else 0.8)
            last = match.end()
    for match in _SORT_CODE.finditer(text):
        yield Span(*match.span(), "ACCOUNT", 0.7)
    for match in _WALLETS.finditer(text):
        before = text[max(0, match.start() - 80) : match.start()]
        is_sure = match[0].startswith(("0x", "bc1", "ltc1", "addr1")) or bitcoin.is_valid(match[0])
        if is_sure or _WALLET_LABEL.search(before):
            yield Span(*match.span(), "ACCOUNT", 0.9)
    for match in _ANY_WALLET.finditer(text):
        if _WALLET_WORD.search(text[max(0, match.start() - 60) : match.start()]) and any(map(str.isdigit, match[0])):
            yield Span(*match.span(), "ACCOUNT", 0.7)


def _find_ibans(text: str) -> Iterator[Span]:
    for match in _IBAN.finditer(text):
        places = [k for k in range(*match.span()) if text[k].isalnum()]
        compact = "".join(text[k] for k in places).upper()
        longest = min(34, len(compact)) if _has_ibans(compact[:2]) else 0
        # The pattern may include the words after: the longest beginning that is an IBAN counts.
        lengths = (length for length in range(longest, 14, -1) if iban.is_valid(compact[:length]))
        length = next(lengths, 0)
        if length:
            yield Span(match.start(), places[length - 1] + 1, "ACCOUNT")
        elif _IBAN_LABEL.search(text[max(0, match.start() - 32) : match.start()]):
            yield Span(match.start(), _end_of_digit_groups(text, places), "ACCOUNT", 0.8)


@cache
def _has_ibans(country: str) -> bool:
    """Returns True if a country has IBANs. country: its code of two letters, in capitals."""
    return bool(numdb.get("iban").info(country)[0][1])


def _end_of_digit_groups(text: str, places: list[int]) -> int:
    """Returns the end of an IBAN whose checksum is wrong: the position after its last digit or adjacent letter.

    Args:
        text: The text.
        places: The positions of the letters and digits that the pattern matched, words after the IBAN included.
    """
    end = places[0]
    for place, following in pairwise((*places, places[-1] + 2)):
        if text[place].isdigit() or following == place + 1:
            end = place + 1
    return end
