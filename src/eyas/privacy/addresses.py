"""Street addresses of nine languages, post boxes and postcodes with their town.

    12 Elm Street, Apt 4        number, name, kind of street          en
    12 bis, rue de la Paix      number, kind of street, name          fr
    Lindenstraße 12a            name and kind in one, number          de nl sv
    Calle Mayor 12, via Roma 3  kind of street, name, number          es it pt pl (fr, nl)
    Postfach 12 34              a post box
    1017 AB Amsterdam           a postcode with its town
    Address: ...                a field: whatever it holds with a number in it

A number is always needed, but behind "lives in".
"""

import re
from collections.abc import Iterator

from eyas.privacy.case_insensitive import CaseInsensitivePattern, PrefilteredPattern, letter_runs, lower_text
from eyas.privacy.lexicon import load_lexicon
from eyas.privacy.span import Span

_UP = "A-ZÀ-ÖØ-ÞĄĆĘŁŃŚŹŻŠČŽ"
_LOW = "a-zß-öø-ÿąćęłńśźżščž"
_CAP = rf"[{_UP}][{_UP}{_LOW}'’.-]{{0,30}}"
_TOWN_NAME = rf"[{_UP}][{_UP}{_LOW}'’-]{{0,30}}"  # no full stop: a sentence ends behind it
_ANY = rf"[{_UP}{_LOW}][{_UP}{_LOW}'’.-]{{0,30}}"
_NUMBER = r"\d{1,5}(?: ?[a-zA-Z](?![A-Za-z]))?(?:[ ]?[-/–][ ]?\d{1,4}[a-zA-Z]?)?"

# Kinds of streets that are hardly anything else behind "12 Elm".
_EN_STREET = (
    r"street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|terrace|terr|highway|hwy|parkway|pkwy"
    r"|crescent"
    r"|cres|mews|alley|cul-de-sac|turnpike|expressway|close|grove|walk|way|row|place|pl|square|sq|circle|cir|trail"
    r"|trl|loop"
    r"|plaza|gardens|gdns|hill|heights|wharf|quay|esplanade|parade|ridge|run|pike|path|bend|view|green|rise|vale"
    r"|embankment"
)
_EN = re.compile(
    rf"(?<![\w.,$€£#-])(?<!\$ )(?:(?:flat|apt\.?|unit|suite"
    rf"|no\.?) ?\d{{1,4}}[a-z]?,? )?\d{{1,5}}[A-Za-z]?(?:[-–/]\d{{1,4}})?,? "
    rf"(?:(?:N|S|E|W|NE|NW|SE|SW|North|South|East|West)\.? )?(?:(?:{_CAP}|\d{{1,3}}(?:st|nd|rd|th)|the|of) ){{1,4}}"
    rf"(?:{'|'.join(word.title() for word in _EN_STREET.split('|'))}|ST|AVE|RD|BLVD|LN|DR|CT|STREET|AVENUE|ROAD|LANE"
    rf"|DRIVE)\b"
)
_NO_STREET_NAME = frozenset(
    [
        "minutes",
        "minute",
        "hours",
        "hour",
        "miles",
        "mile",
        "feet",
        "foot",
        "meters",
        "piece",
        "people",
        "lane",
        "way",
        "east",
        "west",
    ]
)
# A street without a number, with its postcode on the next line.
_NO_NUMBER = re.compile(
    rf"(?:^|\n)((?i:rue|avenue|boulevard|chemin|impasse|place|quai|all[ée]e|calle|via|rua) (?:(?:de|du|des|la|le|les"
    rf"|del|di|da|do|dos|d['’]|l['’]) ?){{0,3}}{_CAP}(?: {_CAP}){{0,3}}\n\d{{5}} {_CAP})"
)
_EN_LOWER = CaseInsensitivePattern(
    r"\b(?:live|lives|living|lived|stay|staying|address|addy|house|home|located|come|drop|deliver\w*|send|ship"
    r"|moved|place"
    r"|pick|meet|at|to|from|is)\b[^\n.]{0,30}?(?<![\w.$#])(\d{1,5}[a-z]?,? (?:[a-z'’]{2,20} ){1,3}"
    r"(?:street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|terrace|crescent|close|grove|mews|way"
    r"|place))\b"
)
_HOUSED = (
    r"\b(?:live|lives|living|lived|moved|house|flat|apartment|wohn\w*|habit\w*|viv[eo]\w*|abit\w*|mor[oa]\w*"
    r"|woon\w*|mieszka\w*|bor|bodde)\b"
)
_BARE_STREET = PrefilteredPattern(
    rf"(?i:{_HOUSED})[^\n.]{{0,25}}? ((?:{_CAP} ){{1,3}}(?:Street|St|Avenue|Ave|Road|Rd|Lane|Drive"
    rf"|Boulevard|Court)\b"
    rf"|{_CAP}(?:straße|strasse|str\.|weg|gasse|allee|platz|straat|laan|gracht|gatan|vägen|gränd)\b"
    rf"|(?i:rue|boulevard|chemin|impasse|place|avenue|calle|avenida|via|viale|piazza|rua|ulicy|ul\.) (?:(?:de|du|des"
    rf"|la|le|del|di|da|do|dos|d'|l') ?){{0,3}}{_CAP})",
    _HOUSED,
)
_FR = re.compile(
    r"\d(?<![\w.,]\d)\d{0,3}(?: ?(?:bis|ter|quater|[A-D]))?,? (?:(?:place|cours|passage) (?=(?:de|du|des|d')\b)|(?i:rue"
    r"|avenue|av\."
    r"|boulevard|bd|blvd|chemin|all[ée]es?|impasse|quai|route|square|villa|cit[ée]|sentier|rond-point|faubourg"
    r"|esplanade"
    r"|r[ée]sidence|lotissement|hameau|mont[ée]e|traverse|venelle|rte|ch\.|imp\.|pl\.) )"
    rf"(?:(?:(?i:de|du|des|la|le|les|en|aux?|sur) |(?i:d|l)['’]){{1,4}}{_ANY}|{_CAP})(?: {_CAP}| (?:de|du|des|la|le"
    rf"|et) {_CAP}){{0,3}}"
)
# German, Dutch and Swedish: name and kind in one word, or the kind behind the name.
_ONE_WORD_KIND = (
    r"straße|strasse|str\.|straat|gatan|gata|vägen|gränden|gränd|stigen|gracht|plein|laan|kade|dijk|singel"
    r"|steeg|gasse|allee|chaussee|dreef|baan|weg|platz|damm|ufer|ring|pfad|stieg|berg|torget|backen|väg|torg"
    r"|hof|markt|park|wall|graben|steig|twiete|kamp|brink|wiese|feld|winkel|burgwal|haven|hage|dreef|pad"
    r"|boulevard|lei|steenweg|plantsoen|tie"
)
_ONE_WORD_KINDS = tuple(_ONE_WORD_KIND.replace("\\", "").split("|"))
_NUMBER_BEHIND = re.compile(r",? (?:nr\.? ?)?\d")
_ONE_WORD = re.compile(
    rf"(?<![{_LOW}{_UP}])(?:(?:{_CAP}|Am|An|Auf|Alte|Neue|Lange|Große|Kleine|Hohe|van|der|den|de|het|op|Sankt"
    rf"|St\.)[ -]){{0,3}}"
    rf"[{_UP}{_LOW}'’-]{{0,30}}(?i:{_ONE_WORD_KIND})"
    rf"(?:,? (?:nr\.? ?)?)({_NUMBER})(?![\d%€$]|[.,:]\d| ?(?:€|Euro|EUR|kr|%|km|m²|kg))"
)
_SURE_KIND = re.compile(
    r"(?i)(?:straße|strasse|str\.|straat|gatan|vägen|gränden|gränd|stigen|gracht|plein|laan|kade|singel|steeg|gasse"
    r"|allee|chaussee"
    r"|burgwal|plantsoen|steenweg|torget|twiete),? (?:nr\.? ?)?\d"
)
_COMPOUND_KINDS = (
    "straße",
    "strasse",
    "str.",
    "straat",
    "gatan",
    "vägen",
    "gracht",
    "plein",
    "laan",
    "gasse",
    "allee",
    "kade",
)
_PREFIX = (
    r"calle|c/|avda\.?|avenida|av\.|paseo|p\.º|plaza|pza\.?|plza\.?|camino|carretera|ctra\.?|ronda"
    r"|traves[íi]a"
    r"|glorieta|urbanizaci[óo]n|pasaje|viale|v\.le|piazza|p\.zza|piazzale|corso|c\.so|vicolo|largo|strada|contrada"
    r"|lungomare"
    r"|borgo|salita|rua|travessa|pra[çc]a|alameda|estrada|rodovia|beco|ladeira|ul\.|ulica|ulicy|al\.|aleja|alei"
    r"|aleje|plac|pl\."
    r"|os\.|osiedle|rynek|skwer|avenue|rue|boulevard|chemin|laan van|rambla|callej[óo]n|loc\.|vial|acceso|pasadizo"
    r"|c\.(?= de)|cuesta|cañada|canale|stretto|incrocio|rotonda|via"
)
_PREFIXED = re.compile(
    rf"(?<![\w.])(?:(?i:{_PREFIX})|Via|V\.|R\.|Av|Calz\.)"
    rf"(?: |(?<=[./]) ?)(?:(?:de|del|la|las|los|el|di|dei|degli|della|delle|dell|da|do|das|dos|e|y|św|gen|ks|ku|des"
    rf"|du|les|le|d|l)(?:\.|['’]| ) ?"
    rf"){{0,4}}{_ANY}(?:[ -](?:(?:de|del|la|las|los|el|di|dei|della|da|do|das|dos|e|y) ){{0,2}}{_CAP}){{0,4}}"
    rf",? ?(?:n\.? ?[ºo°]?\.? ?|n[úu]mero |numero |nr\.? ?|# ?)?(?:{_NUMBER}(?![\d%€$]|[.,:]\d)|(?i:s/n\b|snc\b))"
)
# The first letters of each kind.
_PREFIX_WORDS = frozenset(
    """
    calle c avda avenida av paseo p plaza pza plza camino carretera ctra ronda travesía travesia glorieta urbanización
    urbanizacion pasaje viale v piazza piazzale corso vicolo largo strada contrada lungomare borgo salita rua travessa
    praça praca alameda estrada rodovia beco ladeira ul ulica ulicy al aleja alei aleje plac pl os osiedle rynek skwer
    avenue rue boulevard chemin laan rambla callejón callejon loc vial acceso pasadizo cuesta cañada canada canale
    stretto incrocio rotonda via r calz
    """.split()  # noqa: SIM905
)
_VIA = re.compile(
    rf"(?<![\w.])via (?:(?:dei|degli|della|delle|del|di|dell['’]) ?)?{_CAP}(?: {_CAP}){{0,3}}(?:, ?\d{{1,4}}"
    rf"| \d{{1,4}}(?=,? \d{{5}}\b))"
)
# Behind "I live at", a number beside capitalised words is an address, whatever kind of street it is.
_LIVES_AT = re.compile(
    r"(?i:\b(?:(?:i |we |he |she |they |who )?(?:live|lives|living|lived|reside|resides) (?:at|on)|address is"
    r"|deliver (?:it |this )?to|send (?:it|this|the [a-z]{2,12}) to"
    r"|(?:wohne|wohnt|wohnen|wohnhaft|lebe) (?:in der|in dem|im|am|an der|auf der|auf dem|in)|(?:habite|habitons|vis"
    r"|demeure|domicilié[e]?)(?: au| à la| à l['’]| à| dans)?"
    r"|(?:vivo|vive|vivimos|resido|domicilio) en(?: la| el)?|(?:abito|abita|vivo|risiedo|residente) (?:in|a|al)"
    r"|(?:moro|mora|vivo|resido) (?:na|no|em)"
    r"|(?:woon|woont|wonen) (?:op|aan de|aan het|aan|in de|in)|(?:mieszkam|mieszka|mieszkamy) (?:przy|na)|(?:bor"
    r"|bodde) (?:på|vid)) )"
    rf"((?:\d{{1,5}}[A-Za-z]?,? (?:{_CAP} ?){{1,4}}|(?:(?:de|del|la|las|los|el|di|da|do|dos|das|van|der|den|les|des"
    rf"|du|św) ){{0,2}}{_CAP}(?:[ -](?:(?:de|del|la|di|da|do|dos|das|van|der|den|e|y|des"
    rf"|du) )?{_CAP}){{0,4}},? (?:n[.º°o ]{{1,3}})?"
    r"(?:\d{1,5}[A-Za-z]?\b|S/N\b|s/n\b)(?! ?(?:years|months|weeks|days|minutes|Jahren?|Monate|ans|mois|años|meses"
    r"|anni|mesi|anos|jaar|maanden|lat|år|km|miles|mph|m²|%))))"
)
_LIVES_AT_WORDS = frozenset(
    """
    live lives living lived reside resides address deliver send wohne wohnt wohnen wohnhaft lebe habite habitons vis
    demeure domicilié domiciliée vivo vive vivimos resido domicilio abito abita risiedo residente moro mora woon woont
    wonen mieszkam mieszka mieszkamy bor bodde
    """.split()  # noqa: SIM905
)
_BOX = CaseInsensitivePattern(
    r"\b(?:p\.? ?o\.? ?box|post office box|postfach|bo[îi]te postale|b\.?p\.?|apartado(?: de correos| postal)?"
    r"|apdo\.?"
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
    rf"(?:{_CAP} ){{0,3}}{_CAP},? (?:A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]"
    rf"|PA|RI|S[CD]|T[NX]"
    r"|UT|V[AT]|W[AIVY]) \d{5}(?:-\d{4})?\b",
    r" [a-z]{2} \d{5}",
)
_FLAT = re.compile(
    rf"\d(?<![\w.$]\d)\d{{0,5}} (?:{_CAP} ){{1,4}}(?:Apt|Apartment|Suite|Ste|Unit|Flat|Appartamento"
    rf"|Piano)\.? ?#?\d{{1,4}}\b"
)
# What may not stand before the first digit is looked up behind it: the engine then looks at digits only.
_TOWN = re.compile(
    rf"\d(?<![\d.,-]\d)(?:\d{{4}}|\d{{2}} \d{{2}}|(?<=[1-9])\d{{3}}) ({_TOWN_NAME}(?:[ -]{_TOWN_NAME}){{0,3}})"
)
_LABEL = CaseInsensitivePattern(
    r"(?<![\w-])(?:(?:home|street|postal|mailing|shipping|billing|delivery|residential|current|work|office"
    r"|permanent"
    r"|customer|patient|property|physical)[ _]?)?(?:address(?:_?line)?(?:[ _]?[12])?|addr|street|residence"
    r"|wohnadresse|anschrift"
    r"|adresse(?: postale)?|postanschrift|lieferadresse|rechnungsadresse|wohnhaft|wohnort|straße|strasse|domicile"
    r"|demeurant"
    r"|direcci[óo]n|domicilio|indirizzo|residenza|residente|endere[çc]o|morada|adres(?: zamieszkania)?|adres"
    r"|woonadres|bezoekadres"
    r"|zamieszka[łl][ay]|adress|bostadsadress|gatuadress|postadress)[\"'’*\]]{0,3}[ ]?(?::|="
    r"|\n)\s{0,8}[\"'*<]{0,3}([^\n]{4,120})"
)
_NO_ADDRESS = CaseInsensitivePattern(
    r"(?:\b(?:ip|mac|e-?mail|mail|memory|web|url|return|base|wallet|contract|bitcoin|btc|eth|network"
    r"|server|host|bind|listen|remote|peer|source|destination|subnet|start|end|virtual|physical)[ -_]?|[*&_])\Z"
)
_NO_VALUE = re.compile(
    r"(?i)\s*(?:0x|https?:|www\.|[\w.+-]+@|\d{1,3}\.\d{1,3}\.|[0-9a-f]{2}:[0-9a-f]{2}:|localhost|none\b|null\b|str\b"
    r"|string\b|[\[{(])"
)
# What follows a street in an address: a flat, a postcode, a town, on the same line or the next.
_TAIL = re.compile(
    rf"(?:,? ?(?:(?i:apt|apartment|suite|ste|unit|flat|floor|fl|#|piso|bajo|izq|dcha|esc|int|scala|lok|m|lgh|bus"
    rf"|apto|andar|appt|bât)\.?"
    rf" ?[\dA-Z][\w-]{{0,5}}|\d{{1,2}}[ºª°]? ?[A-Za-z]?\b))?"
    rf"(?:(?:,|\n| -|, )\s?(?:[A-Z]{{1,2}}-)?(?:\d{{2}}-\d{{3}}|\d{{4}}-\d{{3}}|\d{{5}}-\d{{3}}|\d{{3}} \d{{2}}"
    rf"|\d{{4,5}}(?: ?[A-Z]{{2}}\b)?)?"
    rf" ?{_TOWN_NAME}(?:[ -]{_TOWN_NAME}){{0,3}}(?:,? [A-Z]{{2}})?(?: \d{{5}}(?:-\d{{4}})?"
    rf"| [A-Z]{{1,2}}\d[A-Z\d]? ?\d[A-Z]{{2}})?){{0,2}}"
)
_THREE_LETTERS = re.compile(rf"[{_UP}{_LOW}]{{3}}")
_DIGIT = re.compile(r"\d")
_COUNTED = CaseInsensitivePattern(
    r"\b(?:chapter|section|figure|table|page|step|question|example|exercise|problem|version|python|room|level"
    r"|stage|part|line"
    r"|item|day|week|year|season|episode|task|issue|bug|pr|ticket|article|volume|no|top|first|last|next|the|these"
    r"|those|all)\.? \Z"
)


def find_addresses(text: str, language: str) -> Iterator[Span]:
    """Addresses, each with the flat, postcode and town behind it. Linear in the text: every repeat is bounded."""
    if not _DIGIT.search(text) and "s/n" not in text.lower():
        yield from _without_number(text)
        return
    runs = letter_runs(text)
    for pattern in (_EN, _FR, *(() if _PREFIX_WORDS.isdisjoint(runs) else (_PREFIXED,))):
        for match in pattern.finditer(text):
            before = text[max(0, match.start() - 12) : match.start()]
            if not (pattern is _PREFIXED and _is_no_street(match, before, language)) and not (
                pattern is _EN and _COUNTED.search(before)
            ):
                yield _whole(text, match.start(), match.end(), 0.8)
    lower = lower_text(text)
    compounds = language in ("de", "nl", "sv") or any(kind in lower for kind in _COMPOUND_KINDS)
    for match in _in_one_word(text, lower) if compounds else ():
        sure = bool(_SURE_KIND.search(match[0]))
        if (
            sure
            or (language in ("de", "nl", "sv") and match[0][0].isupper() and _fills_line(text, match))
            or (language in ("de", "nl", "sv") and _TOWN_BEHIND.match(text, match.end()))
        ):
            yield _whole(text, match.start(), match.end(), 0.8)
    for pattern in (*(() if _LIVES_AT_WORDS.isdisjoint(runs) else (_LIVES_AT,)), _NO_NUMBER):
        for match in pattern.finditer(text):
            yield _whole(text, match.start(1), match.end(1), 0.7)
    for match in _EN_LOWER.finditer(text):
        words = match[1].lower().replace(",", "").split()[1:-1]
        if not any(word in _NO_STREET_NAME or word in load_lexicon().stop for word in words):
            yield _whole(text, match.start(1), match.end(1), 0.6)
    for pattern in (_VIA, _BOX, _POSTCODE, _US_PLACE, _FLAT):
        for match in pattern.finditer(text):
            if pattern is not _BOX or not match[0].lower().startswith(("box", "bp", "b.p")) or language in ("sv", "fr"):
                yield _whole(text, match.start(), match.end(), 0.8)
    for match in _LABEL.finditer(text):
        value = match[1]
        before = text[max(0, match.start() - 14) : match.start()]
        other = _NO_ADDRESS.search(before) or _NO_VALUE.match(value)
        if not other and _DIGIT.search(value) and _THREE_LETTERS.search(value):
            yield Span(match.start(1), match.start(1) + len(value.rstrip()), "ADDRESS", 0.8)
    yield from _without_number(text)


_TOWN_BEHIND = re.compile(
    rf"(?:,|\n|, ?\n?| in|\s-)\s?(?:[A-Z]{{1,2}}-)?(?:\d{{4,5}}|\d{{3}} \d{{2}})(?: [A-Z]{{2}})? {_CAP}"
)


def _in_one_word(text: str, lower: str) -> Iterator[re.Match[str]]:
    """The matches of _ONE_WORD: each holds a number behind a kind of street, fewer than 200 characters before it and
    fewer than 100 behind."""
    places = [at.start() for at in _NUMBER_BEHIND.finditer(text) if lower.endswith(_ONE_WORD_KINDS, 0, at.start())]
    return _ONE_WORD.finditer(text, max(0, places[0] - 200), places[-1] + 100) if places else iter(())


def find_postcode_towns(text: str, cities: frozenset[str]) -> Iterator[Span]:
    """Postcodes before a town of the list: "10115 Berlin"."""
    for match in _TOWN.finditer(text):
        words = match[1].casefold().split(" ")
        if any(" ".join(words[:count]) in cities for count in (1, 2, 3)):
            yield Span(match.start(), match.end(), "ADDRESS", 0.8)


def _without_number(text: str) -> Iterator[Span]:
    for match in _BARE_STREET.finditer(text):
        yield Span(match.start(1), match.end(1), "ADDRESS", 0.6)


def _fills_line(text: str, match: re.Match[str]) -> bool:
    return text[max(0, match.start() - 1) : match.start()] in ("", "\n") and text[match.end() : match.end() + 1] in (
        "",
        "\n",
        ",",
    )


def _is_no_street(match: re.Match[str], before: str, language: str) -> bool:
    """What looks like "kind of street, name, number" and is none."""
    start = match[0]
    if before.endswith("et ") and start.startswith("al."):
        return True  # "et al. Nature 2019"
    if start.startswith(("R.", "V.")):
        return language not in ("pt", "it")
    if start.lower().startswith("via ") and language not in ("it", "es"):
        return "," not in start and not _TOWN_BEHIND.match(match.string, match.end())  # "Via Bluetooth 5"
    if start[0].islower() and not start.startswith(("c/", "ul.", "al.", "os.", "pl.")):
        # In lower case these are words of the language; an address has a capital behind them.
        name = re.search(rf"[{_UP}]", start)
        return name is None and language not in ("es", "it", "pt", "pl", "fr")
    return False


def _whole(text: str, begin: int, end: int, score: float) -> Span:
    tail = _TAIL.match(text, end)
    return Span(begin, tail.end() if tail else end, "ADDRESS", score)
