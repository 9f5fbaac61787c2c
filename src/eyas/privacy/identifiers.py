"""Finds identifiers, payment cards, bank accounts and wallets of crypto currencies by their format.

Identifiers are social security numbers, MAC addresses, number plates, coordinates. Their formats are in
data/identifiers.toml; python-stdnum computes the checksums. A checksum of one digit is weak: every tenth random number
passes it. Therefore there are two groups of formats. A strong format is enough alone. A weak format needs a context
word near it, such as "passport". labeled_values.py finds any number after the name of an identifier.

Cards and accounts have a checksum, or a label beside them. Their formats are in data/numbers.toml.
"""

import importlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from stdnum import bitcoin, iban, luhn, numdb

from eyas.privacy.case_insensitive import lower_text
from eyas.privacy.labeled_values import UNITS, count_private_words, is_direct, label_before, labels_before
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.word_lists import read_by_language, read_data_file

_FUNCTION_WORDS = read_by_language("function_words")["en"]
_WORDS_BEFORE, _WORDS_BEHIND = 8, 5  # content words before a weak form, and from its own first group on
_REACH = 200  # characters in which those words are looked for
_VAGUE = ("id", "ref", "reference")  # of an order, or of a customer
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_REACH_OF_CARD, _REACH_BEHIND_CARD = 48, 24  # characters before and after a number in which "card" says that it is one
_REACH_OF_ACCOUNT = 32  # characters before an IBAN with a wrong checksum
_MIN_CARD = 12  # digits
_SURE_WALLETS = ("0x", "bc1", "ltc1", "addr1")
_PATTERNS = load_patterns("numbers")
_NEAR = 60  # characters around a weak form in which a context word in a script without spaces is looked for
_STARTS: dict[str, str] = read_data_file("data/identifiers")["starts"]


class _Form(NamedTuple):
    """A format of an identifier.

    Attributes:
        pattern: Matches the identifier.
        kind: The kind of its spans.
        check: Returns True if the checksum is right; None if the format has no checksum.
        context: The words of which one must stand near a weak format; empty for a strong format.
        is_personal: The format counts only in a text with other personal data, or about private life.
        test: A fast pattern. The format is searched only in texts that match it; None: in all texts.
    """

    pattern: re.Pattern[str]
    kind: str
    check: Callable[[str], bool] | None
    context: tuple[str, ...]
    is_personal: bool
    test: re.Pattern[str] | None


def find_identifiers(text: str, language: str, is_personal: bool) -> Iterator[Span]:
    """Yields the spans of identifiers: in a strong format, or in a weak format near a context word.

    Args:
        text: The text, with plain characters (`plain_text`).
        language: The language of the text (ISO 639-1).
        is_personal: Another detector found personal data in the text.
    """
    lower, forms = lower_text(text), _load_forms()
    for group in _STARTS:
        if not (first := forms[group][0].search(text)):
            continue
        start = max(0, first.start() - 1) if group != "scripts" else 0
        for form in forms[group][1]:
            if form.test and not form.test.search(text):
                continue
            if form.context and not any(word in lower for word in form.context):
                continue  # most texts hold no word of a weak form
            if form.is_personal and not (is_personal or count_private_words(text, language) > 0):
                continue
            for match in form.pattern.finditer(text, start):
                if (form.check is None or form.check(match[0])) and _has_context(lower, match, form):
                    yield Span(*match.span(), form.kind, 0.65 if form.context else 1.0, "builtin.identifier")


def _has_context(lower: str, match: re.Match[str], form: _Form) -> bool:
    """Returns True if a word near the match contains a context word of its format, or if the format has none.

    Near means: among the 8 content words before the match, or the 5 from its start on. Function words do not count.

    Args:
        lower: The text in lower case.
        match: The identifier.
        form: The format of the identifier.
    """
    context = form.context
    label = label_before(match.string, match.start(), _NEAR) if context or form.is_personal else None
    is_named = label is not None and lower[label.start : label.end] not in _VAGUE
    if label and is_named and label.kind == "OTHER" and is_direct(lower, label.end, match.start()):
        return False
    if not context:
        return not (form.is_personal and UNITS.match(lower, match.end()))
    near = lower[max(0, match.start() - _NEAR) : match.end() + _NEAR // 2]
    if any(word in near for word in context if not word.isascii()):
        return True
    before = [word[0] for word in _WORD.finditer(lower, max(0, match.start() - _REACH), match.start())]
    behind = [word[0] for word in _WORD.finditer(lower, match.start(), match.start() + _REACH)]
    beside = [word for word in reversed(before) if word not in _FUNCTION_WORDS][:_WORDS_BEFORE]
    beside += [word for word in behind if word not in _FUNCTION_WORDS][:_WORDS_BEHIND]
    return any(word in other for word in context for other in beside)


@cache
def _load_forms() -> dict[str, tuple[re.Pattern[str], list[_Form]]]:
    """Returns groups of formats (see _STARTS), each with one pattern that must match before they are searched."""
    groups: dict[str, list[_Form]] = {group: [] for group in _STARTS}
    for row in read_data_file("data/identifiers")["forms"].values():
        check = importlib.import_module(f"stdnum.{row['check']}").is_valid if "check" in row else None
        context = tuple(row.get("context", "").split())
        # \b is an edge of ASCII letters: Chinese and Japanese letters stand right beside a number.
        pattern = re.compile(row["pattern"], re.ASCII)
        test = re.compile(row["test"], re.ASCII) if "test" in row else None
        form = _Form(pattern, row.get("kind", "GOVERNMENT_ID"), check, context, row.get("personal", False), test)
        groups["weak" if context else "strong" if row["pattern"].isascii() else "scripts"].append(form)
    joined = {group: "|".join(form.pattern.pattern for form in groups[group]) for group in ("strong", "weak")}
    return {group: (re.compile(f"{start}(?:{joined.get(group, '')})", re.ASCII), groups[group])
            for group, start in _STARTS.items()}  # fmt: skip


# --- cards and accounts ---------------------------------------------------------------------------------------------


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
            if count := _count_card_groups(text, groups, first):
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
        label = label_before(text, start, _REACH_OF_CARD)
        behind = labels_before(text, right + _REACH_BEHIND_CARD, _REACH_BEHIND_CARD)
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
