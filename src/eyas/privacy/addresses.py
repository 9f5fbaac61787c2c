"""Finds street addresses of nine languages, post boxes, and postcodes with their town.

    example                     parts                                 languages
    12 Elm Street, Apt 4        number, name, kind of street          en
    12 bis, rue de la Paix      number, kind of street, name          fr
    Lindenstraße 12a            name and kind in one, number          de nl sv
    Calle Mayor 12, via Roma 3  kind of street, name, number          es it pt pl (fr, nl)
    Postfach 12 34              a post box                            all
    1017 AB Amsterdam           a postcode with its town              all
    Address: ...                a field whose value has a number      all

An address needs a number. Only after "lives in" a street without a number is found.
"""

import re
from collections.abc import Iterator

from eyas.privacy.case_insensitive import CaseInsensitivePattern, PrefilteredPattern, letter_runs, lower_text
from eyas.privacy.dictionary import WITH_COMPOUNDS
from eyas.privacy.span import Span
from eyas.privacy.word_lists import any_of, load_lexicon, read_words

_UP = "A-ZÀ-ÖØ-ÞĄĆĘŁŃŚŹŻŠČŽ"
_LOW = "a-zß-öø-ÿąćęłńśźżščž"
_CAP = rf"[{_UP}][{_UP}{_LOW}'’.-]{{0,30}}"
_TOWN_NAME = rf"[{_UP}][{_UP}{_LOW}'’-]{{0,30}}"  # no full stop: a sentence ends after it
_ANY = rf"[{_UP}{_LOW}][{_UP}{_LOW}'’.-]{{0,30}}"
_NUMBER = r"\d{1,5}(?: ?[a-zA-Z](?![A-Za-z]))?(?:[ ]?[-/–][ ]?\d{1,4}[a-zA-Z]?)?"

_EN = re.compile(
    rf"(?<![\w.,$€£#-])(?<!\$ )(?:(?:flat|apt\.?|unit|suite"
    rf"|no\.?) ?\d{{1,4}}[a-z]?,? )?\d{{1,5}}[A-Za-z]?(?:[-–/]\d{{1,4}})?,? "
    rf"(?:(?:N|S|E|W|NE|NW|SE|SW|North|South|East|West)\.? )?(?:(?:{_CAP}|\d{{1,3}}(?:st|nd|rd|th)|the|of) ){{1,4}}"
    rf"(?:{any_of('streets', 'behind_name').title()}|ST|AVE|RD|BLVD|LN|DR|CT|STREET|AVENUE|ROAD|LANE|DRIVE)\b"
)
_NO_STREET_NAME = frozenset(
    "minutes minute hours hour miles mile feet foot meters piece people lane way east west".split()  # noqa: SIM905
)
# A street without a number, with its postcode on the next line.
_NO_NUMBER = re.compile(
    rf"(?:^|\n)((?i:rue|avenue|boulevard|chemin|impasse|place|quai|all[ée]e|calle|via|rua) (?:(?:de|du|des|la|le|les"
    rf"|del|di|da|do|dos|d['’]|l['’]) ?){{0,3}}{_CAP}(?: {_CAP}){{0,3}}\n\d{{5}} {_CAP})"
)
_EN_LOWER = CaseInsensitivePattern(
    r"\b(?:live|lives|living|lived|stay|staying|address|addy|house|home|located|come|drop|deliver\w*|send|ship|moved"
    r"|place|pick|meet|at|to|from|is)\b[^\n.]{0,30}?(?<![\w.$#])(\d{1,5}[a-z]?,? (?:[a-z'’]{2,20} ){1,3}(?:street|st"
    r"|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|terrace|crescent|close|grove|mews|way|place))\b"
)
_HOUSED = (
    r"\b(?:live|lives|living|lived|moved|house|flat|apartment|wohn\w*|habit\w*|viv[eo]\w*|abit\w*|mor[oa]\w*"
    r"|woon\w*|mieszka\w*|bor|bodde)\b"
)
_BARE_STREET = PrefilteredPattern(
    rf"(?i:{_HOUSED})[^\n.]{{0,25}}? ((?:{_CAP} ){{1,3}}(?:Street|St|Avenue|Ave|Road|Rd|Lane|Drive|Boulevard|Court)\b"
    rf"|{_CAP}(?:straße|strasse|str\.|weg|gasse|allee|platz|straat|laan|gracht|gatan|vägen|gränd)\b|(?i:rue|boulevard"
    rf"|chemin|impasse|place|avenue|calle|avenida|via|viale|piazza|rua|ulicy|ul\.) (?:(?:de|du|des|la|le|del|di|da|do"
    rf"|dos|d'|l') ?){{0,3}}{_CAP})",
    _HOUSED,
)
_FR = re.compile(
    rf"\d(?<![\w.,]\d)\d{{0,3}}(?: ?(?:bis|ter|quater|[A-D]))?,? (?:(?:place|cours|passage) (?=(?:de|du|des|d')\b)"
    rf"|(?i:rue|avenue|av\.|boulevard|bd|blvd|chemin|all[ée]es?|impasse|quai|route|square|villa|cit[ée]|sentier"
    rf"|rond-point|faubourg|esplanade|r[ée]sidence|lotissement|hameau|mont[ée]e|traverse|venelle|rte|ch\.|imp\."
    rf"|pl\.) )(?:(?:(?i:de|du|des|la|le|les|en|aux?|sur) |(?i:d|l)['’]){{1,4}}{_ANY}|{_CAP})(?: {_CAP}| (?:de|du|des"
    rf"|la|le|et) {_CAP}){{0,3}}"
)
# German, Dutch and Swedish: name and kind in one word, or the kind after the name.
_COMPOUNDS_EVERYWHERE = tuple(read_words("streets", "in_one_word_everywhere"))
_COMPOUND_TABLES = ("in_one_word_everywhere", "in_one_word", "in_one_word_doubtful")
_COMPOUNDS = tuple(read_words("streets", *_COMPOUND_TABLES))
_COMPOUND_KINDS = any_of("streets", *_COMPOUND_TABLES)
_NUMBER_BEHIND = re.compile(r",? (?:nr\.? ?)?\d")
_ONE_WORD = re.compile(
    rf"(?<![{_LOW}{_UP}])(?:(?:{_CAP}|Am|An|Auf|Alte|Neue|Lange|Große|Kleine|Hohe|van|der|den|de|het|op|Sankt"
    rf"|St\.)[ -]){{0,3}}[{_UP}{_LOW}'’-]{{0,30}}(?i:{_COMPOUND_KINDS})(?:,? (?:nr\.? ?)?)({_NUMBER})"
    r"(?![\d%€$]|[.,:]\d| ?(?:€|Euro|EUR|kr|%|km|m²|kg))"
)
_SURE_COMPOUND = re.compile(rf"(?i)(?:{any_of('streets', 'in_one_word_everywhere', 'in_one_word')}),? (?:nr\.? ?)?\d")
_PREFIXED = re.compile(
    rf"(?<![\w.])(?:(?i:{any_of('streets', 'before_name')}|c\.(?= de))|Via|V\.|R\.|Av|Calz\.)(?: |(?<=[./]) ?)"
    r"(?:(?:de|del|la|las|los|el|di|dei|degli|della|delle|dell|da|do|das|dos|e|y|św|gen|ks|ku|des|du|les|le|d|l)"
    rf"(?:\.|['’]| ) ?){{0,4}}{_ANY}"
    rf"(?:[ -](?:(?:de|del|la|las|los|el|di|dei|della|da|do|das|dos|e|y) ){{0,2}}{_CAP}){{0,4}}"
    rf",? ?(?:n\.? ?[ºo°]?\.? ?|n[úu]mero |numero |nr\.? ?|# ?)?(?:{_NUMBER}(?![\d%€$]|[.,:]\d)|(?i:s/n\b|snc\b))"
)
# The first letters of each kind.
_PREFIX_WORDS = {re.split(r"[^\w]", kind)[0] for kind in read_words("streets", "before_name")} | {"c", "r", "calz"}
_VIA = re.compile(
    rf"(?<![\w.])via (?:(?:dei|degli|della|delle|del|di|dell['’]) ?)?{_CAP}(?: {_CAP}){{0,3}}(?:, ?\d{{1,4}}"
    rf"| \d{{1,4}}(?=,? \d{{5}}\b))"
)
# After "I live at", a number beside capitalized words is an address, whatever kind of street it is.
_LIVES = (
    r"\b(?:(?:live|lives|living|lived|reside|resides) (?:at|on)|address is|deliver (?:it |this )?to"
    r"|send (?:it|this|the [a-z]{2,12}) to"
    r"|(?:wohne|wohnt|wohnen|wohnhaft|lebe) (?:in der|in dem|im|am|an der|auf der|auf dem|in)"
    r"|(?:habite|habitons|vis|demeure|domicilié[e]?)(?: au| à la| à l['’]| à| dans)?"
    r"|(?:vivo|vive|vivimos|resido|domicilio) en(?: la| el)?|(?:abito|abita|vivo|risiedo|residente) (?:in|a|al)"
    r"|(?:moro|mora|vivo|resido) (?:na|no|em)|(?:woon|woont|wonen) (?:op|aan de|aan het|aan|in de|in)"
    r"|(?:mieszkam|mieszka|mieszkamy) (?:przy|na)|(?:bor|bodde) (?:på|vid)) "
)
_LIVES_AT = PrefilteredPattern(
    rf"(?i:{_LIVES})((?:\d{{1,5}}[A-Za-z]?,? (?:{_CAP} ?){{1,4}}"
    rf"|(?:(?:de|del|la|las|los|el|di|da|do|dos|das|van|der|den|les|des|du|św) ){{0,2}}{_CAP}"
    rf"(?:[ -](?:(?:de|del|la|di|da|do|dos|das|van|der|den|e|y|des|du) )?{_CAP}){{0,4}},? (?:n[.º°o ]{{1,3}})?"
    r"(?:\d{1,5}[A-Za-z]?\b|S/N\b|s/n\b)(?! ?(?:years|months|weeks|days|minutes|Jahren?|Monate|ans|mois|años|meses"
    r"|anni|mesi|anos|jaar|maanden|lat|år|km|miles|mph|m²|%))))",
    _LIVES,
)
_BOX = CaseInsensitivePattern(
    r"\b(?:p\.? ?o\.? ?box|post office box|postfach|bo[îi]te postale|b\.?p\.?|apartado(?: de correos| postal)?|apdo\.?"
    r"|casella postale|c\.p\.|caixa postal|postbus|skr(?:ytka|\.) poczt(?:owa|\.)|skrytka|postbox"
    r"|box)[ :.#]{1,3}\d{2,6}(?: \d{2,4})?\b"
)
# A postcode that is hardly another number, with its town.
_POSTCODE = re.compile(
    rf"(?=[A-Z]{{0,2}}-?\d)(?:\b[A-Z]{{1,2}}\d[A-Z\d]? ?\d[ABD-HJLNP-UW-Z]{{2}}\b(?![-_])"  # GB
    rf"|(?<![\d.,-])[1-9]\d{{3}} ?[A-Z]{{2}},? {_CAP}"  # NL
    rf"|(?<![\d.,-])\d{{2}}-\d{{3}} [{_UP}][{_LOW}ó-]{{2,}}"  # PL
    rf"|(?<![\d.,-])\d{{4}}-\d{{3}},? {_CAP}"  # PT
    rf"|(?<![\d.,-])\d{{5}}-\d{{3}}(?![\d-])"  # BR
    rf"|\b(?:D|A|CH|F|E|I|B|NL|SE|S|DE|PL)-\d{{3}} ?\d{{1,2}} {_CAP}"
    r"|\b[ABCEGHJ-NPRSTVXY]\d[ABCEGHJ-NPRSTV-Z] \d[ABCEGHJ-NPRSTV-Z]\d\b)"  # CA
)
_US_PLACE = PrefilteredPattern(
    rf"(?:{_CAP} ){{0,3}}{_CAP},? (?:A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA"
    rf"|RI|S[CD]|T[NX]|UT|V[AT]|W[AIVY]) \d{{5}}(?:-\d{{4}})?\b",
    r" [a-z]{2} \d{5}",
)
_FLAT = re.compile(
    rf"\d(?<![\w.$]\d)\d{{0,5}} (?:{_CAP} ){{1,4}}(?:Apt|Apartment|Suite|Ste|Unit|Flat|Appartamento"
    rf"|Piano)\.? ?#?\d{{1,4}}\b"
)
# The lookbehind stands after the first digit: the engine then stops at digits only.
_TOWN = re.compile(
    rf"\d(?<![\d.,-]\d)(?:\d{{4}}|\d{{2}} \d{{2}}|(?<=[1-9])\d{{3}}) ({_TOWN_NAME}(?:[ -]{_TOWN_NAME}){{0,3}})"
)
_LABEL = CaseInsensitivePattern(
    r"(?<![\w-])(?:(?:home|street|postal|mailing|shipping|billing|delivery|residential|current|work|office|permanent"
    r"|customer|patient|property|physical)[ _]?)?(?:address(?:_?line)?(?:[ _]?[12])?|addr|street|residence|wohnadresse"
    r"|anschrift|adresse(?: postale)?|postanschrift|lieferadresse|rechnungsadresse|wohnhaft|wohnort|straße|strasse"
    r"|domicile|demeurant|direcci[óo]n|domicilio|indirizzo|residenza|residente|endere[çc]o|morada"
    r"|adres(?: zamieszkania)?|adres|woonadres|bezoekadres|zamieszka[łl][ay]|adress|bostadsadress|gatuadress"
    r"|postadress)[\"'’*\]]{0,3}[ ]?(?::|=|\n)\s{0,8}[\"'*<]{0,3}([^\n]{4,120})"
)
_NO_ADDRESS = CaseInsensitivePattern(
    r"(?:\b(?:ip|mac|e-?mail|mail|memory|web|url|return|base|wallet|contract|bitcoin|btc|eth|network"
    r"|server|host|bind|listen|remote|peer|source|destination|subnet|start|end|virtual|physical)[ -_]?|[*&_])\Z"
)
_NO_VALUE = re.compile(
    r"(?i)\s*(?:0x|https?:|www\.|[\w.+-]+@|\d{1,3}\.\d{1,3}\.|[0-9a-f]{2}:[0-9a-f]{2}:|localhost|none\b|null\b|str\b"
    r"|string\b|[\[{(])"
)
# After a street: a flat, a postcode, a town, on the same line or the next.
_TAIL = re.compile(
    rf"(?:,? ?(?:(?i:apt|apartment|suite|ste|unit|flat|floor|fl|#|piso|bajo|izq|dcha|esc|int|scala|lok|m|lgh|bus"
    rf"|apto|andar|appt|bât)\.? ?[\dA-Z][\w-]{{0,5}}|\d{{1,2}}[ºª°]? ?[A-Za-z]?\b))?"
    rf"(?:(?:,|\n| -|, )\s?(?:[A-Z]{{1,2}}-)?(?:\d{{2}}-\d{{3}}|\d{{4}}-\d{{3}}|\d{{5}}-\d{{3}}|\d{{3}} \d{{2}}"
    rf"|\d{{4,5}}(?: ?[A-Z]{{2}}\b)?)?"
    rf" ?{_TOWN_NAME}(?:[ -]{_TOWN_NAME}){{0,3}}(?:,? [A-Z]{{2}})?(?: \d{{5}}(?:-\d{{4}})?"
    rf"| [A-Z]{{1,2}}\d[A-Z\d]? ?\d[A-Z]{{2}})?){{0,2}}"
)
_THREE_LETTERS = re.compile(rf"[{_UP}{_LOW}]{{3}}")
_DIGIT = re.compile(r"\d")
_CAPITAL = re.compile(rf"[{_UP}]")
_COUNTED = CaseInsensitivePattern(
    r"\b(?:chapter|section|figure|table|page|step|question|example|exercise|problem|version|python|room|level|stage"
    r"|part|line|item|day|week|year|season|episode|task|issue|bug|pr|ticket|article|volume|no|top|first|last|next|the"
    r"|these|those|all)\.? \Z"
)


_TOWN_BEHIND = re.compile(
    rf"(?:,|\n|, ?\n?| in|\s-)\s?(?:[A-Z]{{1,2}}-)?(?:\d{{4,5}}|\d{{3}} \d{{2}})(?: [A-Z]{{2}})? {_CAP}"
)


def find_addresses(text: str, language: str) -> Iterator[Span]:
    """Yields the spans of addresses, each with the flat, the postcode and the town after it.

    Every repeat in its patterns is bounded, so it takes linear time.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
    """
    for match in _BARE_STREET.finditer(text):
        yield Span(*match.span(1), "ADDRESS", 0.6)
    if not _DIGIT.search(text) and "s/n" not in text.lower():
        return
    for match in _EN.finditer(text):
        if not _COUNTED.search(text[max(0, match.start() - 12) : match.start()]):
            yield _with_town(text, *match.span(), 0.8)
    if not letter_runs(text).isdisjoint(_PREFIX_WORDS):
        for match in _PREFIXED.finditer(text):
            if not _is_no_street(text, match, language):
                yield _with_town(text, *match.span(), 0.8)
    for match in _find_compounds(text, language):
        yield _with_town(text, *match.span(), 0.8)
    for pattern in (_NO_NUMBER, _LIVES_AT):
        for match in pattern.finditer(text):
            yield _with_town(text, *match.span(1), 0.7)
    for match in _EN_LOWER.finditer(text):
        words = match[1].lower().replace(",", "").split()[1:-1]
        if not any(word in _NO_STREET_NAME or word in load_lexicon().stop for word in words):
            yield _with_town(text, *match.span(1), 0.6)
    for pattern in (_FR, _VIA, _BOX, _POSTCODE, _US_PLACE, _FLAT):
        for match in pattern.finditer(text):
            if pattern is not _BOX or not match[0].lower().startswith(("box", "bp", "b.p")) or language in ("sv", "fr"):
                yield _with_town(text, *match.span(), 0.8)
    for match in _LABEL.finditer(text):
        value = match[1]
        is_other = _NO_ADDRESS.search(text[max(0, match.start() - 14) : match.start()]) or _NO_VALUE.match(value)
        if not is_other and _DIGIT.search(value) and _THREE_LETTERS.search(value):
            yield Span(match.start(1), match.start(1) + len(value.rstrip()), "ADDRESS", 0.8)


def _find_compounds(text: str, language: str) -> Iterator[re.Match[str]]:
    """Yields matches of streets whose name and kind are one word, with a number: "Lindenstraße 12a"."""
    lower, in_language = lower_text(text), language in WITH_COMPOUNDS
    if not in_language and not any(kind in lower for kind in _COMPOUNDS_EVERYWHERE):
        return
    # A match has a number after a kind of street, fewer than 200 characters before it and fewer than 100 after it.
    places = [at.start() for at in _NUMBER_BEHIND.finditer(text) if lower.endswith(_COMPOUNDS, 0, at.start())]
    for match in _ONE_WORD.finditer(text, max(0, places[0] - 200), places[-1] + 100) if places else ():
        if _SURE_COMPOUND.search(match[0]) or (
            in_language
            and ((match[0][0].isupper() and _fills_line(text, match)) or _TOWN_BEHIND.match(text, match.end()))
        ):
            yield match


def find_postcode_towns(text: str, cities: frozenset[str]) -> Iterator[Span]:
    """Yields the spans of postcodes with a listed town: "10115 Berlin". cities: the towns, in lower case."""
    for match in _TOWN.finditer(text):
        words = match[1].casefold().split(" ")
        if any(" ".join(words[:count]) in cities for count in (1, 2, 3)):
            yield Span(*match.span(), "ADDRESS", 0.8)


def _fills_line(text: str, match: re.Match[str]) -> bool:
    before, after = text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 1]
    return before in ("", "\n") and after in ("", "\n", ",")


def _is_no_street(text: str, match: re.Match[str], language: str) -> bool:
    """Returns True if a match of "kind of street, name, number" is no address: "al. Nature 2019" after "et"."""
    street = match[0]
    if street.startswith("al.") and text.endswith("et ", 0, match.start()):
        return True  # "et al. Nature 2019"
    if street.startswith(("R.", "V.")):
        return language not in ("pt", "it")
    if street.lower().startswith("via ") and language not in ("it", "es"):
        return "," not in street and not _TOWN_BEHIND.match(text, match.end())  # "Via Bluetooth 5"
    if street[0].islower() and not street.startswith(("c/", "ul.", "al.", "os.", "pl.")):
        # In lower case these are words of the language; an address has a capital after them.
        return language not in ("es", "it", "pt", "pl", "fr") and not _CAPITAL.search(street)
    return False


def _with_town(text: str, start: int, end: int, score: float) -> Span:
    tail = _TAIL.match(text, end)
    return Span(start, tail.end() if tail else end, "ADDRESS", score)
