"""Makes payment cards (ISO/IEC 7812), IBANs (ISO 13616) and domestic account numbers."""

from collections.abc import Callable
from random import Random

from planted.checks import draw, grouped, luhn_digit, mod_97, weighted_sum

# Scheme: prefixes and lengths, by the schemes' public pages.
CARDS = (
    (("4",), (16, 16, 16, 13, 19)),  # Visa
    (("51", "52", "53", "54", "55", "2221", "2450", "2720"), (16,)),  # Mastercard
    (("34", "37"), (15,)),  # American Express
    (("6011", "644", "65"), (16,)),  # Discover
    (("36", "300", "305"), (14,)),  # Diners Club
    (("3528", "3550", "3589"), (16,)),  # JCB
    (("620", "622848", "625"), (16, 19)),  # UnionPay
    (("5018", "6304", "6759"), (16, 18)),  # Maestro
    (("2200", "2204"), (16,)),  # Mir
    (("6071", "8178", "508"), (16,)),  # RuPay
)
UNASSIGNED = ("0", "1", "70", "83", "90", "99")  # prefixes of no scheme above


def card(rng: Random, is_called: bool) -> str:
    """Makes a payment card.

    Args:
        rng: The source of chance.
        is_called: True if the text calls the number a card. Then it may have a prefix of no issuer, an unusual length
            or, as a typing error, a wrong check digit.
    """
    prefixes, lengths = rng.choice(CARDS[:2] if rng.random() < 0.5 else CARDS)
    prefix, length = rng.choice(prefixes), rng.choice(lengths)
    kind = rng.random() if is_called else 1.0
    if kind < 0.15:
        prefix, length = rng.choice(UNASSIGNED), rng.choice((15, 16, 16, 16, 18))
    number = prefix + draw(rng, "#" * (length - len(prefix) - 1))
    check = int(luhn_digit(number))
    if 0.15 <= kind < 0.25:
        check = (check + rng.randint(1, 9)) % 10
    number += str(check)
    sizes = {15: (4, 6, 5), 14: (4, 6, 4)}.get(length, (4,))
    return grouped(number, sizes, rng.choice((" ", " ", "-", "", "")))


# Country: the structure of the BBAN in the public IBAN registry (SWIFT): # digit, @ letter, * both.
BBANS = {
    "AE": "#" * 19, "AT": "#" * 16, "BE": "#" * 12, "BR": "#" * 23 + "@*", "CH": "#" * 5 + "*" * 12, "CZ": "#" * 20,
    "DE": "#" * 18, "DK": "#" * 14, "EG": "#" * 25, "ES": "#" * 20, "FI": "#" * 14, "FR": "#" * 10 + "*" * 11 + "##",
    "GB": "@" * 4 + "#" * 14, "GR": "#" * 7 + "*" * 16, "IE": "@" * 4 + "#" * 14, "IT": "@" + "#" * 10 + "*" * 12,
    "NL": "@" * 4 + "#" * 10, "NO": "#" * 11, "PL": "#" * 24, "PT": "#" * 21, "SA": "##" + "*" * 18, "SE": "#" * 20,
    "TR": "#" * 5 + "0" + "*" * 16,
}  # fmt: skip


def iban(rng: Random, country: str, is_called: bool) -> str:
    """Makes an IBAN that is valid by ISO 13616. Its national check digits are drawn like the rest.

    Args:
        rng: The source of chance.
        country: The usual country; one in three comes from another one.
        is_called: True if the text says IBAN. Then one in twelve has a typing error.
    """
    if country not in BBANS or rng.random() < 0.33:
        country = rng.choice(sorted(BBANS))
    bban = draw(rng, BBANS[country])
    check = 98 - mod_97(bban + country + "00")
    if is_called and rng.random() < 1 / 12:
        check = 2 + (check - 2 + rng.randint(1, 96)) % 97
    text = f"{country}{check:02d}{bban}"
    if rng.random() < 0.6:
        text = grouped(text, (4,), rng.choice((" ", " ", " ", "-")))
    return text.lower() if rng.random() < 0.1 else text


def _rib(rng: Random) -> str:
    """Makes a French RIB: bank, branch, account and the key 97 - (89 b + 15 g + 3 c) mod 97."""
    bank, branch, number = (draw(rng, "#" * size) for size in (5, 5, 11))
    key = 97 - (89 * int(bank) + 15 * int(branch) + 3 * int(number)) % 97
    return f"{bank} {branch} {number} {key:02d}"


def _ccc(rng: Random) -> str:
    """Makes a Spanish CCC: bank and branch, two check digits (weights 1, 2, 4, ... modulo 11), account."""
    bank, number = draw(rng, "########"), draw(rng, "##########")
    weights = (1, 2, 4, 8, 5, 10, 9, 7, 3, 6)
    checks = ""
    for part in ("00" + bank, number):
        check = 11 - weighted_sum(part, weights) % 11
        checks += str({10: 1, 11: 0}.get(check, check))
    return rng.choice((f"{bank[:4]} {bank[4:]} {checks} {number}", bank + checks + number))


def clabe(rng: Random) -> str:
    """Makes a Mexican CLABE: 17 digits and a check digit (weights 3, 7, 1 modulo 10 of each product)."""
    number = draw(rng, "0" + "#" * 16)
    total = sum(int(digit) * (3, 7, 1)[place % 3] % 10 for place, digit in enumerate(number))
    return number + str(-total % 10)


def _nrb(rng: Random) -> str:
    """Makes a Polish account number: an IBAN without its country."""
    bban = draw(rng, "#" * 24)
    return grouped(f"{98 - mod_97(bban + 'PL00'):02d}{bban}", (2, 4), rng.choice((" ", "")))


def _routed(rng: Random) -> str:
    return draw(rng, rng.choice(("########", "########", "##########", "############")))


ACCOUNTS: dict[str, Callable[[Random], str]] = {
    "en": _routed,
    "de": lambda rng: draw(rng, rng.choice(("##########", "#######", "## ### ###", "### ### ## ##"))),
    "fr": _rib,
    "es": _ccc,
    "it": lambda rng: draw(rng, rng.choice(("0000########", "000010######", "@ ##### ##### ############"))),
    "pt": lambda rng: draw(rng, rng.choice(("####.####.###########.##", "#" * 21, "00##########"))),
    "nl": lambda rng: draw(rng, rng.choice(("##.##.##.###", "#########", "#######"))),
    "pl": _nrb,
    "sv": lambda rng: draw(rng, rng.choice(("### ### ###-#", "#######", "##########", "## ## ##-#"))),
    "zh": lambda rng: grouped(draw(rng, rng.choice(("6217" + "#" * 15, "6228" + "#" * 15, "11" + "#" * 15))),
                              (4,), rng.choice((" ", ""))),
    "ja": lambda rng: draw(rng, "#######"),
    "ko": lambda rng: draw(rng, rng.choice(("352-####-####-##", "###-######-##-###", "###-##-######", "#" * 14))),
    "ar": lambda rng: draw(rng, rng.choice(("###############", "68##########", "####-######-###"))),
    "ru": lambda rng: rng.choice((str, lambda text: grouped(text, (5, 3, 1, 4, 7))))(draw(rng, "40817810#" + "#" * 11)),
    "hi": lambda rng: draw(rng, rng.choice(("3##########", "50###########", "################"))),
}  # fmt: skip


def account(rng: Random, language: str, context: str) -> str:
    """Makes a domestic account number of the language's usual country, or a CLABE where the text calls it so."""
    if "CLABE" in context:
        return clabe(rng)
    if "giro" in context and language == "nl":
        return draw(rng, "#######")
    return ACCOUNTS[language](rng)
