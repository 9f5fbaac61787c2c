"""Makes national numbers of America, Asia and Africa, and selects the number that a text names."""

import re
from collections.abc import Callable
from random import Random

from planted import ids_europe as europe
from planted.checks import DIGITS, birth, draw, grouped, luhn_digit, mod_11_2_digit, verhoeff_digit, weighted_sum


def ssn(rng: Random) -> str:
    """Makes a US Social Security number: no area 000, 666 or 9xx, no zero group or serial number."""
    area = rng.choice([number for number in range(1, 900) if number != 666])
    text = f"{area:03d}-{rng.randint(1, 99):02d}-{rng.randint(1, 9999):04d}"
    return rng.choice((text, text, text.replace("-", " "), text.replace("-", "")))


def cpf(rng: Random) -> str:
    """Makes a Brazilian CPF: two check digits with falling weights, modulo 11."""
    body = draw(rng, "#########")
    for first in (10, 11):
        check = weighted_sum(body, range(first, 1, -1)) * 10 % 11 % 10
        body += str(check)
    return rng.choice((f"{body[:3]}.{body[3:6]}.{body[6:9]}-{body[9:]}", body))


def resident_id(rng: Random) -> str:
    """Makes a Chinese resident identity number (GB 11643-1999): area, birth, serial number, MOD 11-2."""
    year, month, day = birth(rng)
    area = rng.choice(("110105", "310115", "440103", "510104", "420106", "330106", "350203", "610113"))
    body = f"{area}{year}{month:02d}{day:02d}" + draw(rng, "###")
    return body + mod_11_2_digit(body)


def my_number(rng: Random) -> str:
    """Makes a Japanese individual number: the weights from the right are 2 to 7, then 2 to 6; modulo 11."""
    body = draw(rng, "###########")
    rest = weighted_sum(body, (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return grouped(body + str(0 if rest <= 1 else 11 - rest), (4,), rng.choice((" ", "-", "", "")))


def residence_card(rng: Random) -> str:
    """Makes the number of a Japanese residence card."""
    return draw(rng, "@@########@@")


def resident_registration(rng: Random, is_foreign: bool = False) -> str:
    """Makes a Korean resident registration number: date of birth, sex and century, check digit modulo 11."""
    year, month, day = birth(rng)
    sex = rng.choice((1, 2)) + (2 if year >= 2000 else 0) + (4 if is_foreign else 0)
    body = f"{year % 100:02d}{month:02d}{day:02d}{sex}{rng.randint(0, 95):02d}" + draw(rng, "###")  # place, serial
    total = weighted_sum(body, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5))
    check = ((13 if is_foreign else 11) - total % 11) % 10
    return rng.choice((f"{body[:6]}-{body[6:]}{check}", f"{body[:6]}-{body[6:]}{check}", f"{body}{check}"))


def aadhaar(rng: Random) -> str:
    """Makes an Indian Aadhaar number with Verhoeff's digit. It starts with neither 0 nor 1."""
    body = rng.choice(DIGITS[2:]) + draw(rng, "##########")
    return grouped(body + verhoeff_digit(body), (4,), rng.choice((" ", " ", "-", "")))


def pan(rng: Random) -> str:
    """Makes an Indian PAN of a person: the fourth letter is P."""
    return draw(rng, "@@@P@####@")


def saudi_id(rng: Random, first: str = "1") -> str:
    """Makes a Saudi national number (first digit 1) or a residence number (2) with Luhn's digit."""
    body = first + draw(rng, "########")
    return body + luhn_digit(body)


def egyptian_id(rng: Random) -> str:
    """Makes an Egyptian national number: century, date of birth, governorate, serial number, check digit.

    The rule of the check digit is not published; it is drawn.
    """
    year, month, day = birth(rng)
    area = rng.choice(("01", "02", "12", "21", "14"))
    return f"{year // 100 - 17}{year % 100:02d}{month:02d}{day:02d}{area}" + draw(rng, "#####")


Maker = Callable[[Random], str]
# Language: (words of the text, the number that they name). The last one serves all other texts.
IDS: dict[str, tuple[tuple[str, Maker], ...]] = {
    "en": (("National Insurance|NINO|HMRC", europe.nino), ("NHS", europe.nhs), ("", ssn)),
    "de": (
        ("Steuer", europe.steuer_id),
        ("Rentenvers|Sozialvers", europe.rentennummer),
        ("", europe.personalausweis),
    ),
    "fr": (("carte d'identité|CNI", europe.carte_identite), ("", europe.nir)),
    "es": (("Seguridad Social", europe.naf), ("cédula", europe.cedula), ("CPF", cpf), ("", europe.dni)),
    "it": (("carta d'identità|carta di identità", europe.carta_identita), ("", europe.codice_fiscale)),
    "pt": (("CPF|cpf", cpf), ("cartão de cidadão|CC n", europe.cartao_cidadao), ("", europe.portuguese_nif)),
    "nl": (("[Rr]ijksregister", europe.rijksregister), ("", europe.bsn)),
    "pl": (("NIP", europe.nip), ("dow[oó]d", europe.dowod), ("", europe.pesel)),
    "sv": (("[Ss]amordning", lambda rng: europe.personnummer(rng, True)), ("", europe.personnummer)),
    "zh": (("", resident_id),),
    "ja": (("在留カード", residence_card), ("", my_number)),
    "ko": (("외국인등록", lambda rng: resident_registration(rng, True)), ("", resident_registration)),
    "ar": (
        ("القومي", egyptian_id),
        ("الإقامة ورقمها|رقم الإقامة", lambda rng: saudi_id(rng, "2")),
        ("", saudi_id),
    ),
    "ru": (("СНИЛС", europe.snils), ("ИНН", europe.inn), ("", europe.russian_passport)),
    "hi": (("पैन|PAN|pan", pan), ("", aadhaar)),
}


def government_id(rng: Random, language: str, context: str) -> str:
    """Makes the government number that the text names.

    Args:
        rng: The source of chance.
        language: The language of the text.
        context: The template around the slot.
    """
    return next(maker for words, maker in IDS[language] if re.search(words, context))(rng)
