"""Makes passports, driving licenses, numbers of customers and members, and secrets: keys, passwords, PINs, cookies."""

import base64
import json
import string
from random import Random

from planted.checks import DIGITS, LETTERS, birth, draw, grouped, icao_digit, luhn_digit
from planted.contact import SYLLABLES
from planted.ids_europe import dni, personnummer
from planted.ids_world import resident_id, saudi_id

PASSPORTS = {
    "en": ("#########", "@########"), "fr": ("##@@#####",), "es": ("@@@######",), "it": ("Y@#######",),
    "pt": ("@@######", "@######"), "nl": ("N@#*****#",), "pl": ("E@#######",), "sv": ("AA#######", "########"),
    "zh": ("E########", "E@#######"), "ja": ("T@#######", "M@#######"), "ko": ("M########", "M###@####"),
    "ar": ("@########", "A########", "@#######"), "ru": ("75 #######", "71№ #######", "45 ## ######", "46## ######"),
    "hi": ("@#######", "@# ######"),
}  # fmt: skip


def passport(rng: Random, language: str) -> str:
    """Makes the number of a passport of a country of the language."""
    if language == "de":
        number = rng.choice("CFGHJK") + "".join(rng.choice("CFGHJKLMNPRTVWXYZ" + DIGITS) for _ in range(8))
        return number + (icao_digit(number) if rng.random() < 0.3 else "")
    return draw(rng, rng.choice(PASSPORTS[language]))


LICENSES = {
    "de": ("@##########", "B###***#*##", "J###*****##"), "fr": ("############", "##@@#####"),
    "it": ("U1@##@###@", "@@#######@"), "pt": ("L-####### #", "P-####### #", "SE-###### #"), "nl": ("##########",),
    "pl": ("#####/0#/####", "#####/1#/####"), "ja": ("############", "第############号"), "ko": ("##-##-######-##",),
    "ru": ("99 ## ######", "77 ## ######", "##@@ ######"),
    "hi": ("MH## 20#########", "DL-142011#######", "KA05 20#########"),
}  # fmt: skip


def driving_license(rng: Random, language: str) -> str:
    """Makes the number of a driving license. Some countries use the number of the person."""
    if language == "es":
        return dni(rng)
    if language == "sv":
        return personnummer(rng)
    if language == "zh":
        return rng.choice((resident_id(rng), draw(rng, "############")))
    if language == "ar":
        return saudi_id(rng)
    if language == "en":
        year, month, day = birth(rng)
        surname = "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 5))).ljust(5, "9")
        british = f"{surname}{year // 10 % 10}{month:02d}{day:02d}{year % 10}" + draw(rng, "@9#@@")
        american = draw(rng, rng.choice(("@#######", "@###-####-####", "### ### ###")))
        return rng.choice((british, american))
    return draw(rng, rng.choice(LICENSES[language]))


NUMBERS = (
    "########", "#######", "##-######", "@@-######", "@#######", "####-####", "@@@#####", "###.###.###", "@-####-##",
    "@@######", "######/##", "### ### ##", "#####-@", "20##-######",
)  # fmt: skip
POLICIES = ("@@/#######/##", "@#########", "##.###.###", "@@@-#######", "##########", "####-####-##", "@@ #### ####")


def numbered(rng: Random) -> str:
    """Makes the number of a customer or a member."""
    return draw(rng, rng.choice(NUMBERS))


def insurance_id(rng: Random, language: str) -> str:
    """Makes the number of an insurance or a policy. A German health insurance number has Luhn's digit."""
    if language == "de" and rng.random() < 0.5:
        letter, body = rng.choice(LETTERS), draw(rng, "########")
        return letter + body + luhn_digit(f"{ord(letter) - 64:02d}{body}")
    return draw(rng, rng.choice(POLICIES))


BASE62 = string.ascii_letters + string.digits


def _random(rng: Random, length: int, characters: str = BASE62) -> str:
    return "".join(rng.choice(characters) for _ in range(length))


def api_key(rng: Random) -> str:
    """Makes an API key in one of nine public formats, or 32 hexadecimal digits."""
    forms = (
        "AKIA" + _random(rng, 16, LETTERS + "234567"),
        "ghp_" + _random(rng, 36),
        "sk-proj-" + _random(rng, 48),
        "sk_live_" + _random(rng, 24),
        "AIza" + _random(rng, 35, BASE62 + "-_"),
        f"xoxb-{draw(rng, '############')}-{draw(rng, '############')}-{_random(rng, 24)}",
        "glpat-" + _random(rng, 20),
        "hf_" + _random(rng, 34),
        f"SG.{_random(rng, 22)}.{_random(rng, 43)}",
        _random(rng, 32, "0123456789abcdef"),
    )
    return rng.choice(forms)


def password(rng: Random) -> str:
    """Makes a password: a made-up word with digits, several words, or drawn characters."""
    word = "".join(rng.choice(SYLLABLES) for _ in range(3))
    other = "".join(rng.choice(SYLLABLES) for _ in range(2))
    year, sign = rng.randint(1975, 2025), rng.choice("!?#$%&*+")
    forms = (
        f"{word.capitalize()}{year}{sign}",
        f"{word}{rng.randint(10, 999)}",
        f"{word}-{other}-{rng.randint(10, 99)}",
        f"{other.capitalize()}{sign}{word.capitalize()}{rng.randint(1, 99)}",
        _random(rng, rng.randint(9, 14), BASE62 + "!#$%+=?@_-") + rng.choice(DIGITS),
        word.replace("a", "4").replace("o", "0").replace("i", "1") + sign + str(rng.randint(10, 99)),
    )
    return rng.choice(forms)


def pin(rng: Random) -> str:
    """Makes a PIN of four or six digits. It does not look like a year."""
    return draw(rng, rng.choice(("3###", "5###", "7###", "0###", "8###", "9###", "6#####")))


def cookie(rng: Random) -> str:
    """Makes a session cookie or token: hexadecimal, UUID, base64, or a JSON Web Token."""
    form = rng.randrange(4)
    if form == 0:
        return _random(rng, rng.choice((32, 40)), "0123456789abcdef")
    if form == 1:
        return grouped(_random(rng, 32, "0123456789abcdef"), (8, 4, 4, 4, 12), "-")
    if form == 2:
        return _random(rng, rng.choice((26, 43)), BASE62 + "-_")
    header, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": _random(rng, 10), "iat": rng.randint(10**9, 2 * 10**9)})
    )
    return f"{header}.{body}.{_random(rng, 43)}"
