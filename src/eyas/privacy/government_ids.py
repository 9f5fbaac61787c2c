"""Identifiers that a state or a health service gives to a person: by form and checksum, or behind their name.

The formats stand in Presidio's frame: its recognizers match the patterns and its enhancer lifts weak ones by the
words around them.
Checksums are python-stdnum's. What Presidio must not do is closed here, each with a test:

1. It must not ask the network: its e-mail and URL recognisers, which load a list of suffixes, are not in the set.
2. Context must work without a language model: words stand in for the lemmas that a blank pipeline leaves empty.
3. A checksum of one digit must not make certain: every tenth number passes it. Only strong forms are sure alone.
4. Time must stay linear: patterns are case-sensitive and bounded, and Presidio sees windows of a text.
"""

import re
from collections.abc import Iterator

from eyas.privacy.case_insensitive import CaseInsensitivePattern
from eyas.privacy.checksum import stdnum_check
from eyas.privacy.span import Span

WINDOW = 1_000  # characters that Presidio sees at a time: its search for context is quadratic
OVERLAP = 200

# In a text of this language such a number that passes the checksum is one beside a word that says so.
_HOME = {
    "pl": ("pl.pesel", r"(?<![\w.-])\d{11}(?![\w-])"),
    "de": ("de.idnr", r"(?<![\w.-])\d{2} ?\d{3} ?\d{3} ?\d{3}(?![\w-])"),
    "sv": ("se.personnummer", r"(?<![\w.-])(?:19|20)?\d{10}(?![\w-])"),
    "nl": ("nl.bsn", r"(?<![\w.-])\d{9}(?![\w-])"),
}
_OTHER = CaseInsensitivePattern(
    r"(?:nummer|numer|nr|no|id|order\w*|bestel\w*|zam[óo]wieni\w*|rechnung\w*|factuur\w*|faktur\w*|[+€$-]|tel\w*"
    r"|0)[ :.#]{0,3}\Z"
)
# What says, beside such a number, that it is one: a run of digits with a right checksum alone is a number.
_OWN = CaseInsensitivePattern(
    r"pesel|dow[óo]d|ewidencyj|urodz|tożsamo|obywatel|pacjent|ubezpiecz|zameld|steuer|idnr|identifikation|finanzamt"
    r"|elster|personn|person-?nr|född|samordning|folkbok|patient|legitim|\bbsn\b|burgerserv|sofi|persoonsn|geboren"
    r"|patiënt|zorg|belasting|gemeente|digid"
)
_NEAR = 60  # characters before such a number; half as many behind it
# What an identifier is called: behind it, any number with letters or without is one, whatever its checksum.
_LABEL = CaseInsensitivePattern(
    r"(?<![A-Za-z])(?:ssn|social[ _-]?security(?:[ _-]?(?:number|no|#|num))?|itin|tax(?:payer)?[ _-]?(?:id"
    r"|identification|file|reference)"
    r"|national[ _-]?(?:id|identity|identification|insurance)|nino?|ni number|nhs(?: number| no)?|passport"
    r"|driver'?s?[ _-]?licen[cs]e|driving[ _-]?licen[cs]e"
    r"|(?:government|state|identity|id|resident)[ _-]?(?:id|card|permit)(?: (?:number|no))|id card|medicare|medicaid"
    r"|social insurance|(?-i:SIN)|green card|alien (?:registration )?number|visa number"
    r"|voter id|aadhaar|aadhar|pan card|emirates id|nric|curp|rfc|cuit|cuil|(?-i:RUT)|c[ée]dula|green ?card"
    r"|health (?:card|insurance)(?: number| no| id)?|insurance (?:number|id|no)|member id|military id"
    r"|steuer[- ]?(?:id|identifikationsnummer|nummer|nr)|steuerliche identifikationsnummer|idnr"
    r"|sozialversicherungs(?:nummer|nr)|rentenversicherungsnummer|rvnr|svnr|sv-nummer|personalausweis\w*|ausweis\w*"
    r"|reisepass\w*|passnummer|passnr|führerschein\w*|krankenversicher\w*|versicherten\w*|versicherungsnummer"
    r"|ahv(?:-nummer)?"
    r"|num[ée]ro de s[ée]curit[ée] sociale|s[ée]curit[ée] sociale|n[°º] ?(?:de )?s[ée]cu|nir"
    r"|carte (?:nationale )?d['’]identit[ée]|cni|passeport|permis de conduire|num[ée]ro fiscal|carte vitale"
    r"|num[ée]ro d['’]identit[ée]"
    # In Polish "dni" are days and "nie" is no.
    r"|(?-i:DNI|NIE)|(?:mi|tu|su|n[úu]mero de|n[º°]|con) (?:dni|nie)|nif|nuss|seguridad social|pasaporte"
    r"|carn[ée]t? de conducir|permiso de conducir"
    r"|documento (?:nacional )?de identidad|tarjeta sanitaria|documento d['’]identit[àa]"
    r"|codice fiscale|cod\. ?fisc\w*|c\.f\.|carta d['’]identit[àa]|passaporto|patente(?: di guida)?"
    r"|tessera sanitaria|partita iva"
    r"|cpf|(?-i:RG)|cnh|contribuinte|cart[ãa]o (?:de )?cidad[ãa]o|bilhete de identidade|passaporte"
    r"|carta de condu[çc][ãa]o|seguran[çc]a social|niss|t[íi]tulo de eleitor|(?-i:PIS)"
    r"|bsn|burgerservicenummer|sofinummer|paspoort(?:nummer)?|rijbewijs(?:nummer)?|identiteitskaart(?:nummer)?"
    r"|id-kaart|rijksregisternummer"
    r"|pesel|nip|dow[óo]d(?:u|em)? (?:osobist\w+)|numer dowodu|paszport\w*|prawo jazdy|prawa jazdy"
    r"|numer identyfikacyjny"
    r"|personnummer|personnr|samordningsnummer|k[öo]rkort\w*|passnummer|id-kort\w*|legitimation\w*|f[øo]dselsnummer"
    r"|cpr|hetu|(?-i:NIN)|mrn|medical record)(?![A-Za-z])"
)
_BEHIND = re.compile(
    r"[^\n\d]{0,44}?(?<![A-Za-z0-9])(?P<value>(?:[A-Za-z]{1,6}-?|[A-Z]{1,3} )?\d(?:[ ./-]{0,1}[A-Za-z]{0,3}\d"
    r"|[A-Za-z]){4,24}(?:[ -]?[A-Za-z]{1,2}(?![A-Za-z]))?)(?![A-Za-z0-9])"
)
_ON_NEXT_LINE = re.compile(r"[^\n\w]{0,6}\n\s{0,6}(?P<value>[A-Z]{0,4}\d[\dA-Z ./-]{4,24})(?![A-Za-z0-9])")
_DATE = re.compile(r"\d{1,2}[./ -]\d{1,2}[./ -]\d{2,4}\Z|\d{4}[./ -]\d{1,2}[./ -]\d{1,2}\Z|\d{4} ?[-–] ?\d{4}\Z")
_FEW_DIGITS = re.compile(r"\d(?:[ ./-]?[A-Za-z]{0,3}\d){3}")  # what stands behind a label holds four digits at least
# Nothing of the formats fits a text without this: it saves most texts the rest.
_MAY_HOLD = re.compile(r"(?:\d[ ./+-]?){6}|(?=[A-Z]{0,6}\d)[A-Z0-9]{8}|(?:bc1|[13])[a-zA-HJ-NP-Z0-9]{25}")


def find_government_ids(text: str, language: str) -> Iterator[Span]:
    """Identifiers behind their name, and those that a format and its context, or its country's language, give away."""
    if _FEW_DIGITS.search(text):
        yield from _labelled(text)
    for begin, window in windows(text):
        if _MAY_HOLD.search(window):
            from eyas.privacy.formats import matches

            for found in matches(window):
                yield Span(begin + found.start, begin + found.end, found.entity_type, min(1.0, found.score))
    if language in _HOME:
        module, pattern = _HOME[language]
        check = stdnum_check(module)
        for match in re.finditer(pattern, text):
            if (
                not _OTHER.search(text, max(0, match.start() - 24), match.start())
                and _OWN.search(text, max(0, match.start() - _NEAR), match.end() + _NEAR // 2)
                and check(match[0])
            ):
                yield Span(match.start(), match.end(), "GOVERNMENT_ID", 0.5)


def _labelled(text: str) -> Iterator[Span]:
    for label in _LABEL.finditer(text):
        match = _BEHIND.match(text, label.end()) or _ON_NEXT_LINE.match(text, label.end())
        if not match:
            continue
        value = match["value"].rstrip(" ./-")
        digits = sum(char.isdigit() for char in value)
        signs = sum(char.isalnum() for char in value)
        if signs >= 6 and digits >= (4 if signs > digits else 6) and not _DATE.match(value):
            yield Span(match.start("value"), match.start("value") + len(value), "GOVERNMENT_ID", 0.8)


def windows(text: str) -> Iterator[tuple[int, str]]:
    """The text in windows that overlap by at least 50 characters, each with its place; cut at spaces."""
    begin = 0
    while True:
        end = begin + WINDOW
        if end >= len(text):
            yield begin, text[begin:]
            return
        space = text.rfind(" ", end - 100, end)
        end = space if space > 0 else end
        yield begin, text[begin:end]
        space = text.find(" ", end - OVERLAP, end - OVERLAP + 50)
        begin = space + 1 if space >= 0 else end - OVERLAP
