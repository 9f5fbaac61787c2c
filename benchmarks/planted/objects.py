"""Makes the numbers of vehicles (ISO 3779, plates), devices (IMEI, MAC) and places (IP addresses, coordinates)."""

from random import Random

from planted.checks import DIGITS, draw, grouped, luhn_digit

VIN_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"  # ISO 3779: neither I nor O nor Q
VIN_VALUES = dict(zip(VIN_LETTERS, map(int, "12345678123457923456789"), strict=True))
VIN_WEIGHTS = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
REGIONS = ("1", "2", "3", "5", "J", "K", "L", "S", "T", "V", "W", "Y", "Z", "9", "M", "N", "X")  # ISO 3780


def vin(rng: Random) -> str:
    """Makes a vehicle identification number; half of them carry the North American check digit."""
    characters = VIN_LETTERS + DIGITS
    text = rng.choice(REGIONS) + "".join(rng.choice(characters) for _ in range(12)) + draw(rng, "####")
    if rng.random() < 0.5:
        values = (VIN_VALUES.get(char) or int(char) for char in text)
        rest = sum(value * weight for value, weight in zip(values, VIN_WEIGHTS, strict=True)) % 11
        text = f"{text[:8]}{'X' if rest == 10 else rest}{text[9:]}"
    return rng.choice((text, text, text, text.lower(), grouped(text, (3, 6, 8))))


def imei(rng: Random) -> str:
    """Makes an IMEI (3GPP TS 23.003): type allocation code, serial number, Luhn's digit."""
    body = rng.choice(("35", "86", "01")) + draw(rng, "############")
    text = body + luhn_digit(body)
    return rng.choice((text, text, grouped(text, (2, 6, 6, 1)), grouped(text, (2, 6, 6, 1), "-"), grouped(text, (3,))))


def mac(rng: Random) -> str:
    """Makes a MAC address (EUI-48) in one of its four spellings."""
    octets = [rng.randrange(256) for _ in range(6)]
    octets[0] &= 0xFC  # unicast, unique
    text = "".join(f"{octet:02x}" for octet in octets)
    text = rng.choice((text, text.upper()))
    size, separator = rng.choice(((2, ":"), (2, ":"), (2, "-"), (4, ".")))
    return grouped(text, (size,), separator)


def ip(rng: Random) -> str:
    """Makes a public IPv4 address, or a global IPv6 address in one case of four."""
    if rng.random() < 0.25:
        middle = ":".join(f"{rng.randrange(0x1000, 0x10000):x}" for _ in range(3))
        return f"2a0{rng.randrange(10)}:{middle}::{rng.randrange(1, 0xFFF):x}"
    first = rng.choice((5, 31, 37, 46, 62, 77, 79, 81, 84, 89, 91, 93, 109, 176, 178, 212, 217))
    return f"{first}.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randint(1, 254)}"


# Language: latitudes and longitudes inside its countries.
BOXES = {
    "en": ((51.5, 54.5, -2.9, -0.5), (34.0, 44.0, -117.0, -80.0)), "de": ((48.0, 53.5, 8.5, 12.5),),
    "fr": ((44.0, 49.0, 0.5, 6.0),), "es": ((37.5, 42.5, -6.0, -0.8),), "it": ((41.0, 45.5, 9.5, 14.5),),
    "pt": ((37.3, 41.7, -8.6, -7.2),), "nl": ((51.5, 53.2, 4.5, 6.7),), "pl": ((50.2, 54.0, 15.5, 23.0),),
    "sv": ((56.5, 64.0, 13.0, 17.0),), "zh": ((24.0, 40.0, 103.0, 119.0),), "ja": ((34.5, 37.0, 136.0, 140.0),),
    "ko": ((35.2, 37.6, 126.8, 129.0),), "ar": ((21.5, 26.5, 40.0, 48.5), (27.0, 31.0, 30.5, 32.5)),
    "ru": ((52.0, 59.0, 31.0, 60.0),), "hi": ((15.0, 28.0, 74.0, 82.0),),
}  # fmt: skip


def coordinates(rng: Random, language: str) -> str:
    """Makes coordinates inside a country of the language, in degrees or in degrees, minutes and seconds."""
    south, north, west, east = rng.choice(BOXES[language])
    latitude, longitude = rng.uniform(south, north), rng.uniform(west, east)
    side = "E" if longitude >= 0 else "W"
    form = rng.random()
    if form < 0.2:
        return f"{_sexagesimal(latitude)}N {_sexagesimal(abs(longitude))}{side}"
    if form < 0.35:
        return f"{latitude:.4f}° N, {abs(longitude):.4f}° {side}"
    digits = rng.choice((4, 5, 6, 6))
    return f"{latitude:.{digits}f},{rng.choice((' ', ''))}{longitude:.{digits}f}"


def _sexagesimal(degrees: float) -> str:
    minutes = degrees % 1 * 60
    return f"{int(degrees)}°{int(minutes):02d}'{minutes % 1 * 60:04.1f}\""


PLATES = {
    "en": ("@@## @@@", "@@##@@@", "#@@@###", "@@@-####", "@@@ ####"),
    "de": ("B-@@ ####", "HH @@ ###", "M-@ ####", "OSL-@@ ##", "KÖ-@ ###", "LÖ @@ ####"),
    "fr": ("@@-###-@@", "@@ ### @@", "@@###@@"),
    "es": ("####-BCD", "#### KLM", "####FGH"),
    "it": ("@@ ###@@", "@@###@@", "@@ ### @@"),
    "pt": ("@@-##-@@", "##-@@-##", "@@@#@##"),
    "nl": ("@@-###-@", "#-@@@-##", "@-###-@@", "##-@@-@@"),
    "pl": ("WX #####", "KR #@###", "PO ####@", "DW#####"),
    "sv": ("@@@ ###", "@@@###", "@@@ ##@"),
    "zh": ("京@·#####", "沪@#####", "粤@·D#####", "川@##*##"),
    "ja": ("品川 300 あ ##-##", "練馬 530 さ ##-##", "なにわ 501 ほ ##-##", "札幌 330 ゆ #-##"),
    "ko": ("##가 ####", "###나 ####", "##머####", "###호####"),
    "ar": ("أ ب ج ####", "ر س ط ###", "####  د ن و", "ق ص م ####"),
    "ru": ("А###ВС 77", "О###КХ178", "Т###МЕ 50", "у###ор 116"),
    "hi": ("MH 12 @@ ####", "DL#C@@####", "KA-05-@@-####", "UP32@@####"),
}


def plate(rng: Random, language: str) -> str:
    """Makes a number plate in the form of a country of the language."""
    return draw(rng, rng.choice(PLATES[language]))
