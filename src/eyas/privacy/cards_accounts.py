"""Finds payment cards, bank accounts and wallets of crypto currencies by checksum, or by the labels beside them."""

from collections.abc import Iterator
from functools import cache

from stdnum import bitcoin, iban, luhn, numdb

from eyas.privacy.labeled_values import is_direct, label_before, labels_before
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span

_MIN_CARD = 12  # digits
_PATTERNS = load_patterns("numbers")
_REACH, _REACH_BEHIND = 48, 24  # characters before and after a number in which "card" says that it is one
_REACH_OF_ACCOUNT = 32  # characters before an IBAN with a wrong checksum
_SURE_WALLETS = ("0x", "bc1", "ltc1", "addr1")


def find_cards(text: str) -> Iterator[Span]:
    """Yields the spans of card numbers, grouped by spaces, hyphens, dots or line ends.

    A card number has the prefix of an issuer and a valid Luhn checksum, and does not stand after "order id". Beside the
    word "card" any number with a valid checksum is one; right after it, also a number with a wrong checksum.
    """
    for run in _PATTERNS["run_of_digits"].finditer(text):
        if run.end() - run.start() < _MIN_CARD:
            continue
        groups = [match.span() for match in _PATTERNS["group"].finditer(text, *run.span())]
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
    is_fraction = text[start - 1 : start] == "." and text[start - 2 : start - 1].isdigit()  # 0.4111111111111111
    number, sizes, called = "", [], (False, 0)  # called: the best count after the word "card", valid ones first
    for count, (left, right) in enumerate(groups[first : first + 10], start=1):
        number += text[left:right]
        sizes.append(right - left)
        if len(number) > 19:
            break
        if len(number) < _MIN_CARD:
            continue
        is_valid, is_usual = luhn.is_valid(number), _is_usual_grouping(sizes)
        is_whole = first + count == len(groups) or count == 1 or sizes == [4] * 4
        if not is_valid and (not is_whole or len(number) == _MIN_CARD):
            continue
        label = label_before(text, start, _REACH)
        behind = labels_before(text, right + _REACH_BEHIND, _REACH_BEHIND)
        is_announced = label is not None and label.kind == "CARD"
        is_direct_label = label is not None and is_direct(text, label.end, start)
        if is_announced or (is_valid and any(other.kind == "CARD" and other.start >= right for other in behind)):
            is_long = len(number) > _MIN_CARD
            if (is_valid and (is_whole or is_long)) or (is_announced and is_long and (is_usual or is_direct_label)):
                called = max(called, (is_valid, count))
            continue
        if not is_valid or is_fraction or not _PATTERNS["issuer"].fullmatch(number):
            continue
        if is_usual and (len(number) > _MIN_CARD or sizes == [4] * 3):
            return count
        is_other = label is not None and label.kind == "OTHER" and is_direct_label
        if count == 1 and len(number) > _MIN_CARD and not is_other:
            return count
    return called[1]


def _is_usual_grouping(sizes: list[int]) -> bool:
    """Returns True if cards group their digits like this: 4-4-4-4, 4-6-5, 4-4-4-4-3. sizes: digits of each group."""
    if len(sizes) < 2 or min(sizes[:-1]) < 3:  # small groups separate numbers
        return False
    return sizes[:-1] == [4] * (len(sizes) - 1) or sizes[0] in (3, 4, 6, 8)


def find_accounts(text: str) -> Iterator[Span]:
    """Yields the spans of IBANs and of crypto wallets. labeled_values.py finds the numbers of other accounts."""
    yield from _find_ibans(text)
    for match in _PATTERNS["sort_code"].finditer(text):
        yield Span(*match.span(), "ACCOUNT", 0.7)
    for match in _PATTERNS["wallet"].finditer(text):
        if match[0].startswith(_SURE_WALLETS) or bitcoin.is_valid(match[0]):
            yield Span(*match.span(), "ACCOUNT", 0.9)


def _find_ibans(text: str) -> Iterator[Span]:
    for match in _PATTERNS["iban"].finditer(text):
        places = [k for k in range(*match.span()) if text[k].isalnum()]
        compact = "".join(text[k] for k in places).upper()
        length = _iban_length(compact[:2])
        if not length or len(compact) < length:
            continue
        # The pattern may include the words after the IBAN.
        is_valid = iban.is_valid(compact[:length], check_country=False)
        if is_valid or any(label.kind == "ACCOUNT" for label in labels_before(text, match.start(), _REACH_OF_ACCOUNT)):
            yield Span(match.start(), places[length - 1] + 1, "ACCOUNT", 1.0 if is_valid else 0.8)


@cache
def _iban_length(country: str) -> int:
    """Returns the number of characters of a country's IBANs; 0 if it has none. country: two capital letters."""
    structure = numdb.get("iban").info(country)[0][1].get("bban", "")
    sizes = [int(size) for size in _PATTERNS["group"].findall(structure)]
    return sum(sizes) + len("DE00") if sizes else 0
