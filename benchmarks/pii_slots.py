"""Fills the slots of the templates of benchmarks/pii. Some slots plant a value; the others add harmless text.

<<person>>        a new value each time          <<person#1>>   the same value at every #1 of the text
<<id.ssn>>        a slot with a variety          <<red|blue>>   one of these words, which may contain slots
"""

import hashlib
import re
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from random import Random

import pii_numbers
import pii_places
import pii_secrets
from faker import Faker
from faker.providers.address.it_IT import Provider as italian
from pii_names import LOCALES, Name, ascii_letters, draw_name, is_listed
from pii_templates import HERE, snippets

MARK = re.compile(r"<<|>>|\|")
MAIL_DOMAINS = {
    "en": "gmail.com outlook.com yahoo.co.uk btinternet.com icloud.com thornbury-tools.com",
    "de": "gmx.de web.de t-online.de gmail.com posteo.de nordlicht-bau.de",
    "fr": "orange.fr laposte.net free.fr gmail.com moulin-habitat.fr",
    "es": "gmail.com hotmail.es telefonica.net talleres-olivar.es yahoo.es",
    "it": "libero.it virgilio.it gmail.com tiscali.it officina-collina.it",
    "pt": "sapo.pt gmail.com uol.com.br hotmail.com padaria-ribeira.pt",
    "nl": "ziggo.nl kpnmail.nl gmail.com xs4all.nl fietswerk-noord.nl",
    "pl": "wp.pl onet.pl o2.pl gmail.com stolarnia-lipowa.pl",
    "sv": "telia.com hotmail.se gmail.com bredband.net norrbygg.se",
}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
IDS = {
    "ssn": pii_numbers.ssn,
    "nhs": pii_numbers.nhs,
    "nino": pii_numbers.nino,
    "idnr": pii_numbers.idnr,
    "perso": pii_numbers.personalausweis,
    "nir": pii_numbers.nir,
    "dni": pii_numbers.dni,
    "nie": pii_numbers.nie,
    "cf": pii_numbers.codice_fiscale,
    "nif": pii_numbers.nif,
    "bsn": pii_numbers.bsn,
    "pesel": pii_numbers.pesel,
    "personnummer": pii_numbers.personnummer,
}
SECRETS = {
    "": pii_secrets.token,
    "github": pii_secrets.github,
    "gitlab": pii_secrets.gitlab,
    "google": pii_secrets.google,
    "slack": pii_secrets.slack,
    "stripe": pii_secrets.stripe,
    "openai": pii_secrets.openai,
    "hf": pii_secrets.hugging_face,
    "awsid": pii_secrets.aws_id,
    "aws": pii_secrets.aws_secret,
    "jwt": pii_secrets.jwt,
    "pem": pii_secrets.key_block,
    "api": pii_secrets.api_key,
}


@dataclass(frozen=True)
class TextPiece:
    """A part of a text. `kind` is set for a planted value, and `listed` for a planted name."""

    text: str
    kind: str | None = None
    listed: bool | None = None


@cache
def places() -> dict[tuple[str, str], tuple[str, ...]]:
    """Returns the towns and streets of places.txt by language and use."""
    found = {}
    for line in (HERE / "places.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            head, words = line.split(": ")
            language, use = head.split()
            found[language, use] = tuple(words.split(" | "))
    return found


@cache
def faker_places(language: str) -> dict[str, tuple[str, ...]]:
    """Returns towns and streets from Faker for the language, with a fixed seed."""
    fake = Faker(LOCALES[language][0])
    fake.seed_instance(7)
    streets = tuple(fake.street_name() for _ in range(120))
    if language == "it":  # Faker draws these towns from a set, whose order differs between processes
        return {"cities": tuple(Random(7).sample(sorted(italian.cities), 120)), "streets": streets}
    return {"cities": tuple(fake.city() for _ in range(120)), "streets": streets}


@dataclass
class SlotFiller:
    """The random number generator of one text, and the values of its slots."""

    rng: Random
    language: str
    memo: dict[str, list[TextPiece]] = field(default_factory=dict)
    names: dict[str, Name] = field(default_factory=dict)

    def fill(self, template: str) -> list[TextPiece]:
        """Returns the template as pieces, with every slot filled."""
        pieces: list[TextPiece] = []
        depth, begin = 0, 0
        bars: list[int] = []  # positions of | in the outermost slot
        for mark in MARK.finditer(template):
            depth += {"<<": 1, ">>": -1, "|": 0}[mark[0]]
            assert depth >= 0, "a slot ends without a start"
            if mark[0] == "<<" and depth == 1:
                pieces.append(TextPiece(template[begin : mark.start()]))
                begin, bars = mark.end(), []
            elif mark[0] == "|" and depth == 1:
                bars.append(mark.start())
            elif mark[0] == ">>" and depth == 0:
                starts, ends = [begin, *(bar + 1 for bar in bars)], [*bars, mark.start()]
                words = [template[start:end] for start, end in zip(starts, ends, strict=True)]
                pieces.extend(self.fill(self.rng.choice(words)) if bars else self._value(words[0]))
                begin = mark.end()
        assert depth == 0, "a slot has no end"
        return [*pieces, TextPiece(template[begin:])]

    def _value(self, slot: str) -> list[TextPiece]:
        if "#" in slot and slot in self.memo:
            return self.memo[slot]
        name, _, tag = slot.partition("#")
        name, _, variety = name.partition(".")
        value = getattr(self, f"_{name}")(variety, tag)
        pieces = value if isinstance(value, list) else [TextPiece(value)]
        self.memo[slot] = pieces
        return pieces

    def _name(self, tag: str) -> Name:
        if tag not in self.names or not tag:
            self.names[tag] = draw_name(self.rng, self.language)
        return self.names[tag]

    # Planted values.

    def _named(self, text: str) -> list[TextPiece]:
        return [TextPiece(text, "PERSON", is_listed(text))]

    def _person(self, variety: str, tag: str) -> list[TextPiece]:
        return self._named(self._name(tag).full)

    def _first(self, variety: str, tag: str) -> list[TextPiece]:
        return self._named(self._name(tag).first)

    def _last(self, variety: str, tag: str) -> list[TextPiece]:
        return self._named(self._name(tag).last)

    def _comma(self, variety: str, tag: str) -> list[TextPiece]:
        name = self._name(tag)
        return self._named(f"{name.last}, {name.first}")

    def _initial(self, variety: str, tag: str) -> list[TextPiece]:
        name = self._name(tag)
        return self._named(f"{name.first[0]}. {name.last}")

    def _email(self, variety: str, tag: str) -> list[TextPiece]:
        name, rng = self._name(tag), self.rng
        first, last = ascii_letters(name.first) or "mail", ascii_letters(name.last) or "post"
        year = rng.randint(1, 99)
        forms = (f"{first}.{last}", f"{first}.{last}", f"{first[0]}.{last}", f"{first}_{last}", f"{last}{year:02d}")
        return [TextPiece(f"{rng.choice(forms)}@{rng.choice(MAIL_DOMAINS[self.language].split())}", "EMAIL")]

    def _city(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(self._place("cities"), "LOCATION")]

    def _street(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(pii_places.house(self.rng, self.language, self._place("streets")), "ADDRESS")]

    def _place(self, use: str) -> str:
        own = self.rng.random() < 0.5
        return self.rng.choice(places()[self.language, use] if own else faker_places(self.language)[use])

    def _town(self, variety: str, tag: str) -> list[TextPiece]:
        before, after = pii_places.with_postcode(self.rng, self.language)
        return [TextPiece(before), *self._value(f"city#{tag}" if tag else "city"), TextPiece(after)]

    def _phone(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(pii_places.phone(self.rng, self.language), "PHONE")]

    def _card(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(pii_numbers.card(self.rng), "CARD")]

    def _iban(self, variety: str, tag: str) -> list[TextPiece]:
        country = {"en": "GB", "sv": "SE"}.get(self.language, self.language.upper())
        return [TextPiece(pii_numbers.iban(self.rng, country), "ACCOUNT")]

    def _usaccount(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(pii_numbers.us_account(self.rng), "ACCOUNT")]

    def _wallet(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(pii_numbers.wallet(self.rng), "ACCOUNT")]

    def _id(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(IDS[variety](self.rng), "GOVERNMENT_ID")]

    def _passport(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(pii_numbers.passport(self.rng, self.language), "GOVERNMENT_ID")]

    def _ip(self, variety: str, tag: str) -> list[TextPiece]:
        rng = self.rng
        if rng.random() < 0.15:
            groups = [f"{rng.randint(1, 65535):x}" for _ in range(rng.choice((4, 6)))]
            return [TextPiece(f"2a0{rng.randint(0, 9)}:{':'.join(groups[:-1])}::{groups[-1]}", "IP_ADDRESS")]
        first = rng.choice([n for n in range(24, 223) if n not in (100, 127, 169, 172, 192, 198, 203)])
        return [
            TextPiece(
                ".".join(str(n) for n in (first, rng.randint(0, 255), rng.randint(0, 255), rng.randint(1, 254))),
                "IP_ADDRESS",
            )
        ]

    def _secret(self, variety: str, tag: str) -> list[TextPiece]:
        return [TextPiece(SECRETS[variety](self.rng), "SECRET")]

    def _password(self, variety: str, tag: str) -> list[TextPiece]:
        password = pii_secrets.password(self.rng, self.language)
        if variety == "url":  # a fragment or query character would end it
            password = re.sub(r"[^A-Za-z0-9_-]", "7", password)
        return [TextPiece(password, "SECRET")]

    # Harmless text.

    def _lb(self, variety: str, tag: str) -> str:
        return "<"

    def _rb(self, variety: str, tag: str) -> str:
        return ">"

    def _n(self, variety: str, tag: str) -> str:
        return str(self.rng.randint(2, 99))

    def _k(self, variety: str, tag: str) -> str:
        return str(self.rng.randint(100, 9999))

    def _f(self, variety: str, tag: str) -> str:
        return f"{self.rng.uniform(0.01, 99):.{self.rng.randint(1, 4)}f}"

    def _amount(self, variety: str, tag: str) -> str:
        text = f"{self.rng.uniform(9, 4999):,.2f}"
        return text if self.language == "en" else text.translate(str.maketrans(",.", ".,"))

    def _moment(self) -> datetime:
        return datetime(2019, 1, 1) + timedelta(seconds=self.rng.randrange(200_000_000))

    def _date(self, variety: str, tag: str) -> str:
        day = self._moment()
        if self.language == "en":
            return self.rng.choice(
                (f"{day:%m/%d/%Y}", f"{day.day} {MONTHS[day.month - 1]} {day.year}", f"{day:%Y-%m-%d}")
            )
        form = {
            "fr": "%d/%m/%Y",
            "es": "%d/%m/%Y",
            "it": "%d/%m/%Y",
            "pt": "%d/%m/%Y",
            "nl": "%d-%m-%Y",
            "sv": "%Y-%m-%d",
        }
        return day.strftime(form.get(self.language, "%d.%m.%Y"))

    def _born(self, variety: str, tag: str) -> str:
        return pii_numbers.birth(self.rng).strftime("%d.%m.%Y" if self.language in ("de", "pl") else "%d/%m/%Y")

    def _iso(self, variety: str, tag: str) -> str:
        return f"{self._moment():%Y-%m-%dT%H:%M:%SZ}"

    def _stamp(self, variety: str, tag: str) -> str:
        return f"{self._moment():%Y-%m-%d %H:%M:%S},{self.rng.randint(0, 999):03d}"

    def _time(self, variety: str, tag: str) -> str:
        return f"{self._moment():%H:%M}"

    def _epoch(self, variety: str, tag: str) -> str:
        return str(self.rng.randint(1_500_000_000, 1_790_000_000))

    def _epochms(self, variety: str, tag: str) -> str:
        return str(self.rng.randint(1_500_000_000_000, 1_790_000_000_000))

    def _uuid(self, variety: str, tag: str) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def _sha(self, variety: str, tag: str) -> str:
        return hashlib.sha256(self.rng.randbytes(8)).hexdigest()

    def _commit(self, variety: str, tag: str) -> str:
        return hashlib.sha1(self.rng.randbytes(8)).hexdigest()[: self.rng.choice((7, 8, 40))]

    def _md(self, variety: str, tag: str) -> str:
        return hashlib.md5(self.rng.randbytes(8)).hexdigest()

    def _order(self, variety: str, tag: str) -> str:
        rng = self.rng
        forms = (
            f"{rng.choice('ABKRT')}-{rng.randint(10_000, 99_999)}",
            f"ORD-{rng.randint(2019, 2026)}-{rng.randint(1, 999_999):06d}",
            str(rng.randint(10**9, 10**10 - 1)),
            f"#{rng.randint(1000, 999_999)}",
        )
        return rng.choice(forms)

    def _version(self, variety: str, tag: str) -> str:
        return f"{self.rng.randint(0, 21)}.{self.rng.randint(0, 30)}.{self.rng.randint(0, 12)}"

    def _isbn(self, variety: str, tag: str) -> str:
        body = f"978{self.rng.randint(0, 10**9 - 1):09d}"
        check = -sum(int(digit) * (1, 3)[place % 2] for place, digit in enumerate(body)) % 10
        return f"978-{body[3]}-{body[4:7]}-{body[7:12]}-{check}"

    def _routing(self, variety: str, tag: str) -> str:
        return pii_numbers.routing(self.rng)

    def _expires(self, variety: str, tag: str) -> str:
        return f"{self.rng.randint(1, 12):02d}/{self.rng.randint(26, 31)}"

    def _list(self, variety: str, tag: str) -> str:
        if variety == "float":
            return ", ".join(f"{self.rng.uniform(-50, 150):.2f}" for _ in range(self.rng.randint(5, 12)))
        return ", ".join(str(self.rng.randint(1, 400)) for _ in range(self.rng.randint(5, 14)))

    def _snippet(self, variety: str, tag: str) -> list[TextPiece]:
        return self.fill(self.rng.choice(snippets()[variety]))
