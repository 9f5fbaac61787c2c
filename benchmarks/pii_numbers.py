"""Makes random identifiers with valid check digits: cards, accounts, wallets, identity numbers of nine countries.

All are random; none belongs to a person on purpose. The check digits are computed here, from the public descriptions of
the formats, so that the set does not depend on a library that a filter may use.
"""

import hashlib
from datetime import date, timedelta
from random import Random

DIGITS = "0123456789"
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CONSONANTS = "BCDFGLMNPRSTVZ"
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

# (prefix, length) of the numbers that issuers assign
CARD_PREFIXES = (
    *(("4", 16),) * 4,
    *((str(prefix), 16) for prefix in (51, 52, 53, 54, 55, 2221, 2540, 2720)),
    ("34", 15),
    ("37", 15),
    ("6011", 16),
    ("65", 16),
    ("36", 14),
    ("3530", 16),
)


def digits(rng: Random, count: int) -> str:
    """Returns `count` random digits."""
    return "".join(rng.choices(DIGITS, k=count))


def birth(rng: Random) -> date:
    """Returns the date of birth of an adult."""
    return date(1941, 1, 1) + timedelta(days=rng.randrange(23_000))


def _weighted(number: str, weights: tuple[int, ...]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(number, weights, strict=True))


def luhn(number: str) -> str:
    """Returns the check digit of the Luhn formula."""
    doubled = (int(digit) * (2 - place % 2) for place, digit in enumerate(reversed(number)))
    return str(-sum(value - 9 if value > 9 else value for value in doubled) % 10)


def card(rng: Random) -> str:
    """Returns a card number, with spaces, hyphens or neither."""
    prefix, length = rng.choice(CARD_PREFIXES)
    number = prefix + digits(rng, length - len(prefix) - 1)
    number += luhn(number)
    groups = {16: (4, 4, 4, 4), 15: (4, 6, 5), 14: (4, 6, 4)}[length]
    return rng.choice((" ", " ", "-", "", "")).join(_cut(number, groups))


def _cut(text: str, groups: tuple[int, ...]) -> list[str]:
    starts = [sum(groups[:place]) for place in range(len(groups))]
    return [text[start : start + size] for start, size in zip(starts, groups, strict=True)]


# --- accounts -------------------------------------------------------------------------------------------------------


def _as_number(text: str) -> int:
    return int("".join(str(int(char, 36)) for char in text))


def _spain(rng: Random) -> str:
    bank, number = digits(rng, 8), digits(rng, 10)
    weights = (1, 2, 4, 8, 5, 10, 9, 7, 3, 6)
    check = "".join(
        str({10: 1, 11: 0}.get(c, c)) for c in (11 - _weighted(n, weights) % 11 for n in ("00" + bank, number))
    )
    return bank + check + number


def _france(rng: Random) -> str:
    number = digits(rng, 5) + digits(rng, 5) + digits(rng, 11)
    return f"{number}{97 - int(number) * 100 % 97:02d}"


def _italy(rng: Random) -> str:
    number = digits(rng, 10) + digits(rng, 12)
    odd = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21)
    total = sum(odd[int(digit)] if place % 2 == 0 else int(digit) for place, digit in enumerate(number))
    return UPPER[total % 26] + number


def _portugal(rng: Random) -> str:
    number = digits(rng, 19)
    return f"{number}{98 - int(number) * 100 % 97:02d}"


def _netherlands(rng: Random) -> str:
    while True:
        number = digits(rng, 9)
        check = -_weighted(number, (10, 9, 8, 7, 6, 5, 4, 3, 2)) % 11
        if check < 10:
            return rng.choice(("INGB", "RABO", "ABNA", "SNSB", "TRIO")) + number + str(check)


def _poland(rng: Random) -> str:
    bank = digits(rng, 7)
    return bank + str(-_weighted(bank, (3, 9, 7, 1, 3, 9, 7)) % 10) + digits(rng, 16)


def _belgium(rng: Random) -> str:
    number = rng.choice(("001", "063", "363", "734", "979")) + digits(rng, 7)  # banks that exist
    return f"{number}{int(number) % 97 or 97:02d}"


BBANS = {
    "DE": lambda rng: digits(rng, 18),
    "FR": _france,
    "ES": _spain,
    "IT": _italy,
    "PT": _portugal,
    "NL": _netherlands,
    "PL": _poland,
    "SE": lambda rng: digits(rng, 20),
    "GB": lambda rng: rng.choice(("NWBK", "BARC", "LOYD", "HBUK", "MIDL")) + digits(rng, 14),
    "BE": _belgium,
    "AT": lambda rng: digits(rng, 16),
    "CH": lambda rng: digits(rng, 17),
}


def iban(rng: Random, country: str | None = None) -> str:
    """Returns an IBAN with or without spaces: of the country, or (30 %) of any country."""
    if country is None or rng.random() < 0.3:
        country = rng.choice(sorted(BBANS))
    bban = BBANS[country](rng)
    text = f"{country}{98 - _as_number(bban + country + '00') % 97:02d}{bban}"
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4)) if rng.random() < 0.65 else text


def routing(rng: Random) -> str:
    """Returns a US routing number: nine digits, the last one computed with the weights of the ABA."""
    number = rng.choice(("01", "02", "03", "05", "06", "07", "08", "09", "10", "11", "12")) + digits(rng, 6)
    return number + str(-_weighted(number, (3, 7, 1, 3, 7, 1, 3, 7)) % 10)


def us_account(rng: Random) -> str:
    """Returns a US account number: nine to twelve digits without a check digit."""
    return rng.choice("123456789") + digits(rng, rng.randint(8, 11))


def wallet(rng: Random) -> str:
    """Returns a wallet address: Bitcoin in base58 or bech32, or Ethereum."""
    kind = rng.choice(("p2pkh", "p2sh", "bech32", "ethereum"))
    payload = rng.randbytes(20)
    if kind == "ethereum":
        return "0x" + payload.hex()
    if kind == "bech32":
        return _bech32(payload)
    raw = (b"\x00" if kind == "p2pkh" else b"\x05") + payload
    raw += hashlib.sha256(hashlib.sha256(raw).digest()).digest()[:4]
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        text = BASE58[rest] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\x00"))) + text


def _bech32(program: bytes) -> str:
    """Encodes a witness program of 20 bytes with version 0 (BIP 173)."""
    bits = "".join(f"{byte:08b}" for byte in program)
    data = [0] + [int(bits[i : i + 5], 2) for i in range(0, len(bits), 5)]
    check = _polymod([3, 3, 0, 2, 3, *data, 0, 0, 0, 0, 0, 0]) ^ 1  # "bc", spread out
    return "bc1" + "".join(BECH32[value] for value in data + [check >> 5 * (5 - i) & 31 for i in range(6)])


def _polymod(values: list[int]) -> int:
    check = 1
    for value in values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for place, term in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= term if top >> place & 1 else 0
    return check


# --- identity numbers -----------------------------------------------------------------------------------------------


def ssn(rng: Random) -> str:
    """Returns a social security number of the USA."""
    area = rng.choice([n for n in range(1, 900) if n != 666])
    parts = (f"{area:03d}", f"{rng.randint(1, 99):02d}", f"{rng.randint(1, 9999):04d}")
    return rng.choice(("-", "-", "-", " ", "")).join(parts)


def nhs(rng: Random) -> str:
    """Returns a number of the UK health service."""
    while True:
        number = rng.choice("4679") + digits(rng, 8)
        check = 11 - _weighted(number, (10, 9, 8, 7, 6, 5, 4, 3, 2)) % 11
        if check != 10:
            return rng.choice((" ", " ", "")).join(_cut(number + str(check % 11), (3, 3, 4)))


def nino(rng: Random) -> str:
    """Returns a UK national insurance number."""
    while True:
        first, second = rng.choice("ABCEGHJKLMNPRSTWXYZ"), rng.choice("ABCEGHJKLMNPRSTWXYZ")
        if first + second not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ"):
            break
    number = digits(rng, 6)
    return rng.choice((" ", "")).join((first + second, *_cut(number, (2, 2, 2)), rng.choice("ABCD")))


def idnr(rng: Random) -> str:
    """Returns a German tax number. One of the first ten digits occurs twice and one is missing."""
    while True:
        body = rng.sample(DIGITS, 9)
        body.insert(rng.randrange(10), rng.choice(body))
        if body[0] != "0":
            break
    check = 10
    for digit in body:
        check = ((check + int(digit)) % 10 or 10) * 2 % 11
    number = "".join(body) + str((11 - check) % 10)
    return rng.choice((" ", " ", "")).join(_cut(number, (2, 3, 3, 3)))


def personalausweis(rng: Random) -> str:
    """Returns the number of a German identity card with its check digit."""
    letters = "CFGHJKLMNPRTVWXYZ"
    number = rng.choice("LMNPRTVWXY") + "".join(rng.choices(letters + DIGITS, k=8))
    return number + str(sum(int(char, 36) * (7, 3, 1)[place % 3] for place, char in enumerate(number)) % 10)


def nir(rng: Random) -> str:
    """Returns a French social security number with its key."""
    born = birth(rng)
    number = f"{rng.choice('12')}{born:%y%m}{rng.randint(1, 89):02d}{rng.randint(1, 900):03d}{rng.randint(1, 990):03d}"
    if number[5:7] == "20":  # Corsica is written 2A and 2B
        number = number[:5] + "21" + number[7:]
    number += f"{97 - int(number) % 97:02d}"
    return rng.choice((" ", " ", "")).join(_cut(number, (1, 2, 2, 2, 3, 3, 2)))


def dni(rng: Random) -> str:
    """Returns a Spanish identity number."""
    number = digits(rng, 8)
    return number + rng.choice(("", "", "-")) + "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23]


def nie(rng: Random) -> str:
    """Returns a Spanish identity number of a foreigner."""
    number = rng.choice("012") + digits(rng, 7)
    dash = rng.choice(("", "", "-"))
    return "XYZ"[int(number[0])] + dash + number[1:] + dash + "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23]


def codice_fiscale(rng: Random) -> str:
    """Returns an Italian tax code of a person."""
    odd = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
    born = birth(rng)
    day = born.day + rng.choice((0, 40))
    code = "".join(rng.choices(CONSONANTS, k=6)) + f"{born:%y}{'ABCDEHLMPRST'[born.month - 1]}{day:02d}"
    code += rng.choice("ABCDEFGHIL") + digits(rng, 3)
    values = [int(char) if char.isdigit() else UPPER.index(char) for char in code]
    return code + UPPER[sum(odd[value] if place % 2 == 0 else value for place, value in enumerate(values)) % 26]


def nif(rng: Random) -> str:
    """Returns a Portuguese tax number of a person."""
    number = rng.choice("12") + digits(rng, 7)
    check = 11 - _weighted(number, (9, 8, 7, 6, 5, 4, 3, 2)) % 11
    return rng.choice((" ", "", "")).join(_cut(number + str(check if check < 10 else 0), (3, 3, 3)))


def bsn(rng: Random) -> str:
    """Returns a Dutch citizen service number."""
    while True:
        number = rng.choice("12") + digits(rng, 7)
        check = _weighted(number, (9, 8, 7, 6, 5, 4, 3, 2)) % 11
        if check < 10:
            return rng.choice((".", "", "")).join(_cut(number + str(check), (4, 2, 3)))


def pesel(rng: Random) -> str:
    """Returns a Polish resident number."""
    number = f"{birth(rng):%y%m%d}" + digits(rng, 4)
    return number + str(-_weighted(number, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)) % 10)


def personnummer(rng: Random) -> str:
    """Returns a Swedish personal number, with or without the century."""
    born = birth(rng)
    number = f"{born:%y%m%d}" + digits(rng, 3)
    century = rng.choice(("", f"{born:%Y}"[:2]))
    dash = "-" if not century else rng.choice(("-", "-", ""))
    return century + number[:6] + dash + number[6:] + luhn(number)


def passport(rng: Random, language: str) -> str:
    """Returns a passport number in the form of a country of the language."""

    def letters(count: int) -> str:
        return "".join(rng.choices("BCDFGHKLMNPRTVXYZ", k=count))

    if language == "de":
        number = "C" + "".join(rng.choices("CFGHJKLMNPRTVWXYZ" + DIGITS, k=8))
        return number + str(sum(int(char, 36) * (7, 3, 1)[place % 3] for place, char in enumerate(number)) % 10)
    forms = {"en": (0, 9), "es": (3, 6), "it": (2, 7), "pt": (2, 6), "nl": (3, 6), "pl": (2, 7), "sv": (0, 8)}
    if language == "fr":
        return digits(rng, 2) + letters(2) + digits(rng, 5)
    num_letters, num_digits = forms[language]
    return letters(num_letters) + rng.choice("123456789") + digits(rng, num_digits - 1)
