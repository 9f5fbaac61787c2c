"""Makes telephone numbers, house numbers and postcodes in the forms of nine languages."""

from random import Random

from pii_numbers import UPPER, digits

# Forms of telephone numbers: # is a digit, (a|b) is one of its parts, all else is literal. The ranges are those that
# the country assigns, so that each number is possible.
PHONES = {
    "en": (
        "+1 (2|3|4|6|7)12-(3|4|6|7|8)##-####",
        "((2|3|4|6|7)12) (3|4|6|7|8)##-####",
        "(2|3|4|6|7)12-(3|4|6|7|8)##-####",
        "(206|312|415|503|617|702|919).(2|3|4|6|7|8)##.####",
        "+44 7(400|401|402|403|512|710|775) ######",
        "07(400|401|402|403|512|710|775) ######",
        "020 (7|8)(2|3|5|6|7|9)## ####",
        "0161 (2|3|4|7|8)## ####",
    ),
    "de": (
        "+49 (151|160|170|171|175|176) (2|3|4|5|6)#######",
        "0(151|160|170|171|175|176)(2|3|4|5|6)#######",
        "0(151|160|170|171|175|176) / (2|3|4|5|6)#### ###",
        "030 (2|3|4|5|6|7)######",
        "(089) (2|3|4|5|6|7)######",
        "+49 (0)221 (2|3|4|5|6|7)#####",
        "0049 40 (2|3|4|5|6|7)######",
        "0221-(2|3|4|5|6|7)#####",
    ),
    "fr": (
        "0(6 1|6 2|6 5|6 7|7 6|7 7|7 8)# ## ## ##",
        "0(61|62|65|67|76|77|78)#######",
        "0(1 4|2 4|3 8|4 7|5 5)# ## ## ##",
        "+33 6 (1|2|5|6|7)# ## ## ##",
        "+33 (0)4 7# ## ## ##",
        "0(6.1|6.2|6.6|7.6|7.7|7.8)#.##.##.##",
        "0033 6(1|2|5|6|7)#######",
    ),
    "es": (
        "+34 6(0|1|2|3|5|6|7)# ### ###",
        "6(0|1|2|3|5|6|7)# ## ## ##",
        "6(0|1|2|3|5|6|7)#######",
        "9(1 2|1 3|1 4|3 2|3 4|5 2|6 3)## ## ##",
        "0034 6(0|1|2|3|5|6|7)#######",
        "(9(1|3)) (2|3|4)## ## ##",
    ),
    "it": (
        "+39 3(20|28|33|38|40|47|49|66) ### ####",
        "3(20|28|33|38|40|47|49|66)#######",
        "3(20|28|33|38|40|47|49|66)-#######",
        "3(20|28|33|38|40|47|49|66)/#######",
        "02 (2|3|4|5|6|7|8)#######",
        "+39 06 (2|3|4|5|6|7|8)#######",
        "011 (2|3|5|6|7)######",
    ),
    "pt": (
        "+351 9(1|2|3|6)# ### ###",
        "9(1|2|3|6)# ### ###",
        "9(1|2|3|6)#######",
        "21(2|3|4|7|8)######",
        "+351 2(2|1) (2|3)## ####",
        "00351 9(1|2|3|6)#######",
        "+55 11 9(6|7|8|9)###-####",
    ),
    "nl": (
        "06-(1|2|3|4|5)#######",
        "06 (1|2|3|4|5)# ## ## ##",
        "06(1|2|3|4|5)#######",
        "+31 6 (1|2|3|4|5)#######",
        "020-(2|3|4|5|6|7)######",
        "030 (2|3|6|7)## ## ##",
        "0031 6 (1|2|3|4|5)#######",
    ),
    "pl": (
        "+48 (501|502|601|602|603|661|691|793) ### ###",
        "(501|502|601|602|603|661|691|793) ### ###",
        "(501|502|601|602|603|661|691|793)-###-###",
        "(501|502|601|602|603|661|691|793)######",
        "22 (2|3|4|5|6|8)## ## ##",
        "+48 12 (2|3|4|6)## ## ##",
        "0048 (501|502|601|602|603|661|691|793)######",
    ),
    "sv": (
        "07(0|2|3|6)-(2|3|4|5|6)## ## ##",
        "07(0|2|3|6) (2|3|4|5|6)## ## ##",
        "07(0|2|3|6)(2|3|4|5|6)######",
        "+46 7(0|2|3|6) (2|3|4|5|6)## ## ##",
        "08-(5|6) ## ## ##",
        "08-(50|54|66|71)# ### ##",
        "0046 7(0|2|3|6)(2|3|4|5|6)######",
    ),
}
STATES = ("OR", "ID", "MN", "GA", "WA", "OK", "TN", "NM", "WI", "OH", "PA", "TX")


def phone(rng: Random, language: str) -> str:
    """Returns a telephone number of a country of the language, in national or international form."""
    pattern = rng.choice(PHONES[language])
    text, place = "", 0
    while place < len(pattern):
        char = pattern[place]
        group = pattern[place + 1 : (close := pattern.find(")", place))] if char == "(" else ""
        if "|" in group and "(" not in group:
            text += rng.choice(group.split("|"))
            place = close
        else:
            text += digits(rng, 1) if char == "#" else char
        place += 1
    return text.strip()


def house(rng: Random, language: str, street: str) -> str:
    """Returns the street with a house number, in the order of the language."""
    number = rng.randint(2, 148)
    letter = rng.choice(("", "", "", "", "a", "b"))
    if language == "en":
        return f"{number}{letter.upper()} {street}"
    if language == "fr":
        return f"{number}{rng.choice(('', '', ' bis'))}{rng.choice((' ', ' ', ', '))}{street}"
    if language == "pl":
        flat = rng.choice(("", f"/{rng.randint(1, 40)}", f" m. {rng.randint(1, 40)}"))
        return f"{rng.choice(('ul. ', 'ul. ', ''))}{street} {number}{flat}"
    if language in ("es", "pt", "it"):
        return f"{street}{rng.choice((', ', ', ', ' '))}{rng.choice(('', '', 'nº '))}{number}"
    return f"{street} {number}{letter}"


def postcode(rng: Random, language: str, is_american: bool) -> str:
    """Returns a postcode of the right form."""
    if language == "en":
        if is_american:
            return f"{rng.choice(STATES)} {rng.randint(10_000, 99_500)}"
        area = rng.choice(("LS", "SY", "TR", "NR", "DD", "YO", "HG", "LA", "NN", "CA"))
        inward = "".join(rng.choices("ABDEFGHJLNPQRSTUWXYZ", k=2))
        return f"{area}{rng.randint(1, 28)} {rng.randint(1, 9)}{inward}"
    first = rng.choice("12345678")
    if language == "pt":
        return f"{first}{digits(rng, 3)}-{digits(rng, 3)}"
    if language == "nl":
        return f"{first}{digits(rng, 3)} {''.join(rng.choices(UPPER, k=2))}"
    if language == "pl":
        return f"{first}{digits(rng, 1)}-{digits(rng, 3)}"
    if language == "sv":
        return f"{first}{digits(rng, 2)} {digits(rng, 2)}"
    return first + digits(rng, 4)


def with_postcode(rng: Random, language: str) -> tuple[str, str]:
    """Returns the text before and after the town in an address, one of which contains the postcode."""
    is_american = rng.random() < 0.5
    code = postcode(rng, language, is_american)
    if language != "en":
        return f"{code} ", ""
    return "", f", {code}" if is_american else f" {code}"
