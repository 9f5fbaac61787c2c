"""Makes national identity, tax and insurance numbers of Europe by the public rules of their registries."""

from collections import Counter
from random import Random

from planted.checks import (
    DIGITS,
    LETTERS,
    birth,
    draw,
    grouped,
    icao_digit,
    luhn_digit,
    mod_11_10_digit,
    weighted_sum,
)

NOT_ISSUED = ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")  # prefixes of UK National Insurance numbers
DNI_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
MONTHS_IT = "ABCDEHLMPRST"
# Values of characters at odd places of a codice fiscale (decree of 23 December 1976); digits as A to J.
ODD_IT = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def nino(rng: Random) -> str:
    """Makes a UK National Insurance number."""
    while True:
        prefix = rng.choice("ABCEGHJKLMNOPRSTWXYZ") + rng.choice("ABCEGHJKLMNPRSTWXYZ")
        if prefix not in NOT_ISSUED:
            text = prefix + draw(rng, "######") + rng.choice("ABCD")
            return rng.choice((grouped(text, (2,)), text, text.lower()))


def nhs(rng: Random) -> str:
    """Makes a UK NHS number: weights 10 to 2, modulo 11."""
    while True:
        number = rng.choice("4679") + draw(rng, "########")
        check = -weighted_sum(number, range(10, 1, -1)) % 11
        if check < 10:
            return grouped(f"{number}{check}", (3, 3, 4), rng.choice((" ", " ", "-", "")))


def steuer_id(rng: Random) -> str:
    """Makes a German tax number: one digit of the first ten comes twice or three times, MOD 11,10."""
    while True:
        number = draw(rng, "##########")
        counts = sorted(Counter(number).values())
        if number[0] != "0" and counts in ([1] * 8 + [2], [1] * 7 + [3]):
            return grouped(number + mod_11_10_digit(number), (2, 3), rng.choice((" ", " ", "")))


def rentennummer(rng: Random) -> str:
    """Makes a German pension insurance number: area, date of birth, letter, serial number, check digit."""
    year, month, day = birth(rng)
    letter = rng.choice(LETTERS)
    area, serial = f"{rng.choice((2, 4, 8, 10, 12, 15, 24, 53, 65)):02d}", draw(rng, "##")
    date = f"{day:02d}{month:02d}{year % 100:02d}"
    plain = area + date + f"{ord(letter) - 64:02d}" + serial
    weights = (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1)
    products = (int(digit) * weight for digit, weight in zip(plain, weights, strict=True))
    check = sum(value // 10 + value % 10 for value in products) % 10
    return rng.choice((f"{area} {date} {letter} {serial}{check}", f"{area}{date}{letter}{serial}{check}"))


def personalausweis(rng: Random) -> str:
    """Makes the number of a German identity card, with or without its check digit."""
    number = rng.choice("LMNPRTVWXY") + "".join(rng.choice("CFGHJKLMNPRTVWXYZ" + DIGITS) for _ in range(8))
    return number + (icao_digit(number) if rng.random() < 0.4 else "")


def nir(rng: Random) -> str:
    """Makes a French social security number with its key of modulo 97."""
    year, month, _ = birth(rng)
    department = rng.choice([f"{number:02d}" for number in range(1, 96) if number != 20] + ["2A", "2B"])
    body = f"{rng.choice('12')}{year % 100:02d}{month:02d}{department}" + draw(rng, "######")
    key = 97 - int(body.replace("2A", "19").replace("2B", "18")) % 97  # only Corsica's departments have letters
    return grouped(body + f"{key:02d}", (1, 2, 2, 2, 3, 3, 2), " ") if rng.random() < 0.6 else f"{body}{key:02d}"


def carte_identite(rng: Random) -> str:
    """Makes the number of a French identity card: twelve digits, or nine characters since 2021."""
    return draw(rng, rng.choice(("############", "@#@####@#")))


def dni(rng: Random) -> str:
    """Makes a Spanish DNI or NIE: the number modulo 23 selects the letter."""
    if rng.random() < 0.25:
        first = rng.choice("XYZ")
        number = draw(rng, "#######")
        letter = DNI_LETTERS[int(f"{'XYZ'.index(first)}{number}") % 23]
        return rng.choice((f"{first}{number}{letter}", f"{first}-{number}-{letter}"))
    number = draw(rng, "########")
    letter = DNI_LETTERS[int(number) % 23]
    points = f"{number[:2]}.{number[2:5]}.{number[5:]}"
    return rng.choice((number + letter, f"{number}-{letter}", f"{points}-{letter}", f"{number} {letter}"))


def naf(rng: Random) -> str:
    """Makes a Spanish social security number: province, number, and both modulo 97."""
    body = f"{rng.randint(1, 52):02d}" + rng.choice("123456789") + draw(rng, "#######")
    check = f"{int(body) % 97:02d}"
    return rng.choice((body + check, f"{body[:2]}/{body[2:]}/{check}", f"{body[:2]} {body[2:]} {check}"))


def cedula(rng: Random) -> str:
    """Makes a Colombian cédula: eight to ten digits without a check digit."""
    return draw(rng, rng.choice(("1.0##.###.###", "10########", "##.###.###", "########")))


def codice_fiscale(rng: Random) -> str:
    """Makes an Italian codice fiscale with its check letter."""
    year, month, day = birth(rng)
    consonants = "".join(rng.choice("BCDFGLMNPRSTVZ") for _ in range(6))
    day += rng.choice((0, 40))
    body = f"{consonants}{year % 100:02d}{MONTHS_IT[month - 1]}{day:02d}" + rng.choice("ABCDEFGHIL") + draw(rng, "###")
    total = 0
    for place, char in enumerate(body):
        value = int(char) if char.isdigit() else ord(char) - 65
        total += ODD_IT[value] if place % 2 == 0 else value
    text = body + LETTERS[total % 26]
    return rng.choice((text, text, text.lower(), grouped(text, (3, 3, 5, 5))))


def carta_identita(rng: Random) -> str:
    """Makes the number of an Italian identity card: electronic, or on paper."""
    return draw(rng, rng.choice(("CA#####@@", "CB#####@@", "A@#######")))


def portuguese_nif(rng: Random) -> str:
    """Makes a Portuguese tax number: weights 9 to 2, modulo 11."""
    number = rng.choice("123") + draw(rng, "#######")
    check = 11 - weighted_sum(number, range(9, 1, -1)) % 11
    return grouped(number + str(check if check < 10 else 0), (3,), rng.choice((" ", "", "")))


def cartao_cidadao(rng: Random) -> str:
    """Makes the number of a Portuguese citizen card: the digits double at every second place, as in Luhn's rule."""
    number = draw(rng, "########")
    check = 11 - weighted_sum(number, range(9, 1, -1)) % 11
    body = number + str(check if check < 10 else 0) + rng.choice("Z") + rng.choice(LETTERS)
    total = 0
    for place, char in enumerate(body):
        value = int(char, 36) * (2 if place % 2 == 0 else 1)
        total += value - 9 if place % 2 == 0 and value >= 10 else value
    return rng.choice((f"{body[:8]} {body[8]} {body[9:]}{-total % 10}", f"{body}{-total % 10}"))


def bsn(rng: Random) -> str:
    """Makes a Dutch BSN: weights 9 to 2 and -1, modulo 11."""
    while True:
        number = rng.choice("123456789") + draw(rng, "#######")
        check = weighted_sum(number, range(9, 1, -1)) % 11
        if check < 10:
            text = f"{number}{check}"
            return rng.choice((text, text, grouped(text, (4, 2, 3), "."), grouped(text, (3,))))


def rijksregister(rng: Random) -> str:
    """Makes a Belgian national number: date of birth, serial number, 97 minus the rest of modulo 97."""
    year, month, day = birth(rng)
    body = f"{year % 100:02d}{month:02d}{day:02d}{rng.randint(1, 997):03d}"
    check = 97 - int(("2" if year >= 2000 else "") + body) % 97
    return rng.choice((f"{body[:2]}.{body[2:4]}.{body[4:6]}-{body[6:]}.{check:02d}", f"{body}{check:02d}"))


def pesel(rng: Random) -> str:
    """Makes a Polish PESEL: weights 1, 3, 7, 9. Months of this century count from 21."""
    year, month, day = birth(rng)
    body = f"{year % 100:02d}{month + (20 if year >= 2000 else 0):02d}{day:02d}" + draw(rng, "####")
    return body + str(-weighted_sum(body, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)) % 10)


def dowod(rng: Random) -> str:
    """Makes the number of a Polish identity card: three letters, a check digit, five digits."""
    letters, number = "A" + draw(rng, "@@"), draw(rng, "#####")
    total = sum(int(char, 36) * weight for char, weight in zip(letters + number, (7, 3, 1, 7, 3, 1, 7, 3), strict=True))
    return f"{letters}{rng.choice((' ', ''))}{total % 10}{number}"


def nip(rng: Random) -> str:
    """Makes a Polish tax number: weights 6, 5, 7, 2, 3, 4, 5, 6, 7, modulo 11."""
    while True:
        number = rng.choice("123456789") + draw(rng, "########")
        check = weighted_sum(number, (6, 5, 7, 2, 3, 4, 5, 6, 7)) % 11
        if check < 10:
            text = f"{number}{check}"
            return rng.choice((text, grouped(text, (3, 3, 2, 2), "-")))


def personnummer(rng: Random, is_coordination: bool = False) -> str:
    """Makes a Swedish personal number with Luhn's digit. A coordination number adds 60 to the day."""
    year, month, day = birth(rng)
    body = f"{year % 100:02d}{month:02d}{day + (60 if is_coordination else 0):02d}" + draw(rng, "###")
    text = f"{body[:6]}-{body[6:]}{luhn_digit(body)}"
    return rng.choice((text, text, f"{year // 100}{text}", f"{year // 100}{text.replace('-', '')}"))


def snils(rng: Random) -> str:
    """Makes a Russian SNILS: weights 9 to 1, modulo 101."""
    body = draw(rng, "1########")
    check = weighted_sum(body, range(9, 0, -1)) % 101 % 100
    return rng.choice((f"{body[:3]}-{body[3:6]}-{body[6:]} {check:02d}", f"{body}{check:02d}"))


def inn(rng: Random) -> str:
    """Makes the tax number of a person in Russia: two check digits, modulo 11 and modulo 10."""
    body = f"{rng.randint(1, 92):02d}" + draw(rng, "########")
    body += str(weighted_sum(body, (7, 2, 4, 10, 3, 5, 9, 4, 6, 8)) % 11 % 10)
    return body + str(weighted_sum(body, (3, 7, 2, 4, 10, 3, 5, 9, 4, 6, 8)) % 11 % 10)


def russian_passport(rng: Random) -> str:
    """Makes a Russian inner passport: region, year of print, number."""
    region, year, number = rng.choice(("45", "40", "46", "92", "03")), f"{rng.randint(1, 23):02d}", draw(rng, "######")
    return rng.choice((f"{region} {year} {number}", f"{region}{year} {number}", f"{region}{year}{number}"))
