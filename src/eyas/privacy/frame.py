"""The frame of letters and e-mails: who is greeted, who signs, who stands in the headers. Nine languages.

    From: <name> <mail>          a header
    Dear <name>,                 a greeting
    ...
    Yours,                       a closing, and the name behind it or on the next line
    <name>

What stands there is a name whatever its words are, but for the words of _NOBODY.
"""

import re
from collections.abc import Iterator

from eyas.privacy.caseless import Caseless, Tested
from eyas.privacy.entity import Span
from eyas.privacy.look import Look

_WORD = r"[^\W\d_][^\W\d_'’.-]*(?:['’.-][^\W\d_]*)*"
_WORDS = rf"{_WORD}(?:[ \t]{_WORD}){{0,5}}"
_GREETINGS = (
    r"dear|hi|hello|hey|liebe[rs]?|hallo|guten tag|moin|sehr geehrte[r]?|cher|chère|chers|bonjour|salut|coucou|"
    r"querid[oa]s?|hola|estimad[oa]s?|buenos días|car[oaie]|ciao|gentile|egregi[oa]|buongiorno|salve|"
    r"olá|oi|prezad[oa]|bom dia|beste|lieve|hoi|geachte|drog[ia]|cześć|hej|szanown[ya]|witaj|kära|käre|hejsan|bästa"
)
_GREETING = Caseless(rf"^[ \t>]*(?:{_GREETINGS})[ \t,]+({_WORDS})[ \t]*(?=[,:!.\n]|$)", re.MULTILINE)
_CLOSINGS = (
    r"yours(?: (?:sincerely|truly|faithfully))?|best(?: wishes| regards)?|kind regards|warm regards|regards|"
    r"many thanks|thanks(?: a lot| again)?|thank you|cheers|love|sincerely|all the best|take care|xoxo|"
    r"(?:mit )?(?:viele|liebe|herzliche|beste|freundliche|schöne)n? grü(?:ße|ssen|ßen|sse)|mfg|lg|vg|gruß|bis bald|"
    r"danke|cordialement|bien à (?:toi|vous)|amicalement|bises|bisous|merci|à bientôt|sincèrement|"
    r"un (?:fuerte )?abrazo(?: fuerte)?|saludos(?: cordiales)?|atentamente|un saludo|besos|gracias|hasta pronto|"
    r"un (?:bacio|abbraccio|caro saluto)|baci|a presto|cordiali saluti|distinti saluti|saluti|grazie|"
    r"um (?:abraço|beijo)|beijos|abraços?|atenciosamente|(?:com os melhores )?cumprimentos|obrigad[oa]|"
    r"até (?:logo|breve)|(?:met )?(?:vriendelijke|hartelijke) groet(?:en)?|groet(?:jes|en)?|liefs|bedankt|tot snel|mvg|"
    r"pozdrawiam(?: serdecznie)?|z poważaniem|serdecznie|całuję|ściskam|dziękuję|do zobaczenia|"
    r"(?:med )?vänlig(?:a)? hälsning(?:ar)?|hälsningar|kram(?:ar)?|mvh|tack|vi ses|hjärtliga hälsningar"
)
_CLOSING = Caseless(
    rf"(?:^|[.!?][ \t]+)[ \t>]*(?:{_CLOSINGS})[ \t]*[,.!:–-]?[ \t]*(?:\n[ \t>]*\n?[ \t>]*)?"
    rf"[-–—]?[ \t]*({_WORDS})[ \t]*\.?[ \t]*(?=\n|$)",
    re.MULTILINE,
)
_HEADER = Caseless(
    r"^[ \t>]*(?:from|to|cc|bcc|reply-to|von|an|de|à|a|para|da|van|aan|od|do|dw|från|till|kopia)[ \t]*:[ \t]*\"?"
    rf"({_WORDS})\"?[ \t]*(?=<|\(|\[|,|;|\n|$)",
    re.MULTILINE,
)
_WROTE = r"wrote|a écrit|escribió|ha scritto|escreveu|schreef|napisał[ao]?|skrev"
_REPLY = Tested(
    rf"(?im)(?:^|[\d,][ \t]+)[ \t>]*({_WORDS})[ \t]+(?:{_WROTE})[ \t]*:"
    rf"|(?:schrieb|schreef|skrev|wrote)[ \t]+({_WORDS})[ \t]*(?::|<)",
    rf"{_WROTE}|schrieb",
)
_NOBODY = frozenset(
    """
    all everyone everybody team there world sir madam friend friends customer customers colleague colleagues folks guys
    hiring manager support service reader readers neighbour neighbours family mum mom dad grandma grandpa diary
    zusammen alle welt team kunde kunden freund freunde kollege kollegen kolleginnen damen herren mama papa oma opa
    tous toutes monde amis ami client clients équipe collègue collègues madame monsieur maman papa
    todos todas mundo amigo amiga amigos cliente clientes equipo señor señora señores mamá papá colega colegas
    tutti tutte mondo amico amica amici clienti squadra signore signora signori mamma papà
    pessoal gente equipe senhor senhora senhores mãe pai colegas
    allemaal iedereen wereld team klant klanten vriend vriendin vrienden collega mevrouw meneer mama papa
    wszyscy świecie zespole panie pani państwo kliencie przyjacielu przyjaciele mamo tato drużyno
    alla allihopa världen teamet kund kunder vän vänner kollega mamma pappa
    much again very so for you your dir euch ihnen dich sie vous toi te ti lui je u ci you're ya
    """.split()  # noqa: SIM905
)
_PLAIN = re.compile(_WORD)


def frames(text: str, look: Look) -> Iterator[Span]:
    """Spans of the names in greetings, closings and headers. Linear in the text."""
    for pattern, any_case in ((_GREETING, True), (_CLOSING, True), (_HEADER, False), (_REPLY, False)):
        for match in pattern.finditer(text):
            group = 1 if match[1] is not None else 2
            yield from _name(text, match.start(group), match.end(group), look, any_case)


def _name(text: str, begin: int, end: int, look: Look, any_case: bool) -> Iterator[Span]:
    words = list(_PLAIN.finditer(text, begin, end))
    if not words or any(word[0].casefold() in _NOBODY for word in words):
        return
    if look.name(text[begin:end], sure=True, any_case=any_case):
        yield Span(begin, end, "PERSON", 0.8)
