"""Fills the slots of a template with values of its language."""

import re
from dataclasses import dataclass
from random import Random
from string import Formatter

from text_sets import TextSet

from planted import contact, documents, objects
from planted.ids_world import government_id
from planted.payment import account, card, iban
from planted.survival import PlantedValue

# Words beside a number that call it a payment card.
CARD_WORDS = re.compile(
    "card|visa|kart|carte|carta|tarjeta|prepagata|cart[aã]o|kaart|kort|卡|カード|デビット|카드|بطاقت?|карт|कार्ड|pan=",
    re.I,
)
NEAR = 40  # characters before a slot that can call it something
IBAN_COUNTRIES = {
    "en": "GB", "de": "DE", "fr": "FR", "es": "ES", "it": "IT", "pt": "PT", "nl": "NL", "pl": "PL", "sv": "SE",
    "ar": "SA",
}  # fmt: skip
TWO_SURNAMES = ("es", "pt")
SURNAME_FIRST = ("zh", "ja", "ko")


@dataclass(frozen=True)
class FilledText:
    """A template with its values. `fixed` is the template without them, with a line break for each slot."""

    language: str
    template: str  # its group, for example "de planted 12"
    text: str
    planted: tuple[PlantedValue, ...]
    fixed: str

    @property
    def slots(self) -> frozenset[str]:
        """The kinds of the values."""
        return frozenset(value.slot for value in self.planted)


def slots_of(template: str) -> list[str]:
    """Returns the names of the slots of a template, in their order."""
    return [slot for _, slot, _, _ in Formatter().parse(template) if slot]


def fill(group: str, template: str, texts: TextSet, rng: Random) -> FilledText:
    """Fills a template. A slot that comes twice has the same value twice.

    Args:
        group: The name of the template.
        template: The text with slots.
        texts: The words of the language and half.
        rng: The source of chance.
    """
    drawn = _values(template, texts, rng)
    pieces = [(literal, slot) for literal, slot, _, _ in Formatter().parse(template)]
    fixed = "\n".join(literal for literal, _ in pieces)
    if fixed == fixed.lower() and fixed != fixed.upper() and rng.random() < 0.5:
        drawn |= {slot: drawn[slot].lower() for slot in ("person", "first", "last", "city") if slot in drawn}
    text = "".join(literal + (drawn[slot] if slot else "") for literal, slot in pieces)
    planted = dict[PlantedValue, None]()
    for number, (_, slot) in enumerate(pieces):
        if slot:
            after = pieces[number + 1][0][:2] if number + 1 < len(pieces) else ""
            planted[PlantedValue(slot, drawn[slot], after)] = None
    return FilledText(texts.language, group, text, tuple(planted), fixed)


def _values(template: str, texts: TextSet, rng: Random) -> dict[str, str]:
    """Draws a value for each slot."""
    words, language = texts.words, texts.language
    slots = set(slots_of(template))
    # Two people: one of {person}, one of {first} and {last}. Addresses belong to {person} where there is one.
    one, other = ((rng.choice(words["first_names"]), rng.choice(words["last_names"])) for _ in range(2))
    owner = one if "person" in slots else other
    near = {slot: template[max(0, template.find(f"{{{slot}}}") - NEAR) :][: NEAR + len(slot) + 12] for slot in slots}
    makers = {
        "person": lambda: full_name(rng, language, one[0], one[1], rng.choice(words["last_names"])),
        "first": lambda: other[0],
        "last": lambda: other[1],
        "city": lambda: rng.choice(words["cities"]),
        "street": lambda: rng.choice(words["streets"]),
        "email": lambda: contact.email(rng, language, *owner),
        "obfuscated_email": lambda: contact.obfuscated_email(rng, language, *owner),
        "handle": lambda: contact.handle(rng, *owner),
        "phone": lambda: contact.phone(rng, language),
        "birth_date": lambda: contact.birth_date(rng, language),
        "card": lambda: card(rng, bool(CARD_WORDS.search(near["card"].replace("{card}", "")))),
        "iban": lambda: iban(rng, IBAN_COUNTRIES.get(language, ""), "IBAN" in near["iban"]),
        "account": lambda: account(rng, language, template),
        "government_id": lambda: government_id(rng, language, template),
        "passport": lambda: documents.passport(rng, language),
        "driving_license": lambda: documents.driving_license(rng, language),
        "plate": lambda: objects.plate(rng, language),
        "vin": lambda: objects.vin(rng),
        "imei": lambda: objects.imei(rng),
        "mac": lambda: objects.mac(rng),
        "ip": lambda: objects.ip(rng),
        "gps": lambda: objects.coordinates(rng, language),
        "api_key": lambda: documents.api_key(rng),
        "password": lambda: documents.password(rng),
        "pin": lambda: documents.pin(rng),
        "customer_id": lambda: documents.numbered(rng),
        "member_id": lambda: documents.numbered(rng),
        "insurance_id": lambda: documents.insurance_id(rng, language),
        "cookie": lambda: documents.cookie(rng),
    }
    # Sorted, so that the values do not depend on the order of a set.
    return {slot: makers[slot]() for slot in sorted(slots)}


def full_name(rng: Random, language: str, first: str, last: str, second: str) -> str:
    """Joins a full name as the language writes it.

    Args:
        rng: The source of chance.
        language: The language.
        first: The given name.
        last: The surname.
        second: Another surname, where people have two.
    """
    if language in SURNAME_FIRST:
        joint = rng.choice((" ", "")) if language == "ja" else ""
        return f"{last}{joint}{first}"
    if language == "ru" and rng.random() < 0.3:
        return f"{last} {first}"
    if language in TWO_SURNAMES and second != last and rng.random() < 0.4:
        return f"{first} {last} {second}"
    return f"{first} {last}"
