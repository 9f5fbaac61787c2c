"""Finds payment cards, bank accounts and wallets of crypto currencies by checksum, or by the labels beside them."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from stdnum import bitcoin, iban, luhn, numdb

from eyas.privacy.labeled_values import is_direct
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.value_labels import label_before, labels_before

_MIN_CARD = 12  # digits
_EXACT = load_patterns("numbers").exact
_REACH, _REACH_BEHIND = 48, 24  # characters before and after a number in which "card" says that it is one
_MIN_IBAN_DIGITS = 8  # of an IBAN with a wrong checksum


def find_cards(text: str) -> Iterator[Span]:
    """Yields the spans of card numbers, grouped by spaces, hyphens, dots or line ends.

    A card number has the prefix of an issuer and a valid Luhn checksum, and does not stand after "order id". Beside the
    word "card" any number with a valid checksum is one; right after it, also a number with a wrong checksum.
    """
    for run in _EXACT["run_of_digits"].finditer(text):
        if run.end() - run.start() < _MIN_CARD:
            continue
        groups = [match.span() for match in _EXACT["group"].finditer(text, *run.span())]
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
        if not is_valid or is_fraction or not _EXACT["issuer"].fullmatch(number):
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
    for match in _EXACT["sort_code"].finditer(text):
        yield Span(*match.span(), "ACCOUNT", 0.7)
    for match in _EXACT["wallet"].finditer(text):
        is_sure = match[0].startswith(("0x", "bc1", "ltc1", "addr1")) or bitcoin.is_valid(match[0])
        if is_sure or _is_beside_wallet(text, match):
            yield Span(*match.span(), "ACCOUNT", 0.9)
    for match in _EXACT["any_wallet"].finditer(text):
        if any(map(str.isdigit, match[0])) and _is_beside_wallet(text, match):
            yield Span(*match.span(), "ACCOUNT", 0.7)


def _is_beside_wallet(text: str, match: re.Match[str]) -> bool:
    return any(label.kind in ("WALLET", "ADDRESS") for label in labels_before(text, match.start(), 60))


def _find_ibans(text: str) -> Iterator[Span]:
    for match in _EXACT["iban"].finditer(text):
        places = [k for k in range(*match.span()) if text[k].isalnum()]
        compact = "".join(text[k] for k in places).upper()
        longest = min(34, len(compact)) if _has_ibans(compact[:2]) else 0
        # The pattern may include the words after: the longest beginning that is an IBAN counts.
        lengths = (length for length in range(longest, 14, -1) if iban.is_valid(compact[:length], check_country=False))
        length = next(lengths, 0)
        if length:
            yield Span(match.start(), places[length - 1] + 1, "ACCOUNT")
        elif (
            longest
            and sum(map(str.isdigit, compact)) >= _MIN_IBAN_DIGITS
            and any(label.kind == "ACCOUNT" for label in labels_before(text, match.start(), 32))
        ):
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
