"""The frame of letters and e-mails: who is greeted, who signs, who stands in the headers. Nine languages.

    From: <name> <mail>          a header
    Dear <name>,                 a greeting
    ...
    Yours,                       a closing, and the name behind it or on the next line
    <name>

What stands there is a name whether a list holds it or not. A word that is no name on any list stays: "Dear diary",
"Thanks,\nManagement"; in headers a town and a language too ("From: English").
"""

import re
from collections.abc import Iterator

from eyas.privacy.case_insensitive import CaseInsensitivePattern, PrefilteredPattern
from eyas.privacy.dictionary import is_known
from eyas.privacy.lexicon import PARTICLES
from eyas.privacy.span import Span
from eyas.privacy.value_matcher import TITLES, ValueMatcher

_WORD = r"[^\W\d_][^\W\d_'’.-]*(?:['’.-][^\W\d_]*)*"
_WORDS = rf"{_WORD}(?:[ \t](?:&[ \t])?{_WORD}){{0,5}}"
_GREETINGS = (
    r"dear|hi|hello|hey|liebe[rs]?|hallo|guten tag|moin|sehr geehrte[r]?|cher|chère|chers|bonjour|salut|coucou|"
    r"querid[oa]s?|hola|estimad[oa]s?|buenos días|car[oaie]|ciao|gentile|egregi[oa]|buongiorno|buonasera|salve|"
    r"olá|oi|prezad[oa]|bom dia|beste|lieve|hoi|geachte|drog[ia]|cześć|hej|szanown[ya]|witaj|kära|käre|hejsan|bästa"
)
_GREETING = CaseInsensitivePattern(
    rf"^[ \t>]*(?:{_GREETINGS})[ \t,]+({_WORDS})[ \t]*(?=[,:!.\n]|[-–—]\s|$)", re.MULTILINE
)
_CLOSINGS = (
    r"yours(?: (?:sincerely|truly|faithfully))?|best(?: wishes| regards)?|kind regards|warm regards|regards|"
    r"many thanks|thanks(?: a lot| again)?|thank you|cheers|love|sincerely|warmly|all the best|take care|xoxo|"
    r"(?:mit )?(?:viele|liebe|herzliche|beste|freundliche|schöne)n? grü(?:ße|ssen|ßen|sse)|herzlichst|mfg|lg|vg|gruß|"
    r"bis bald|"
    r"danke|cordialement|bien à (?:toi|vous)|amicalement|bises|bisous|merci|à bientôt|sincèrement|je t'embrasse|"
    r"un (?:fuerte )?abrazo(?: fuerte)?|saludos(?: cordiales)?|atentamente|un saludo|besos|con cariño|gracias|"
    r"hasta pronto|un (?:bacio|abbraccio|caro saluto)|baci|a presto|cordiali saluti|distinti saluti|saluti|grazie|"
    r"um (?:abraço|beijo)|beijos|abraços?|com carinho|atenciosamente|(?:com os melhores )?cumprimentos|obrigad[oa]|"
    r"até (?:logo|breve)|(?:met )?(?:vriendelijke|hartelijke) groet(?:en)?|groet(?:jes|en)?|liefs|bedankt|tot snel|mvg|"
    r"pozdrawiam(?: serdecznie)?|z pozdrowieniami|z poważaniem|serdecznie|całuję|ściskam|dziękuję|do zobaczenia|"
    r"(?:med )?vänlig(?:a)? hälsning(?:ar)?|hälsningar|kram(?:ar)?|mvh|tack|vi ses|hjärtliga hälsningar"
)
_CLOSING = CaseInsensitivePattern(
    rf"(?:^|[.!?][ \t]+)[ \t>]*(?:{_CLOSINGS})\b(?:[ \t](?:from|aus|uit|från)[ \t]{_WORD})?[ \t]*[,.!:–-]?"
    rf"[ \t]*(?:\n[ \t>]*\n?[ \t>]*)?(?:--[ \t]*\n)?[-–—]?[ \t]*({_WORDS})[ \t]*\.?[ \t]*(?=[,\n]|$)",
    re.MULTILINE,
)
_HEADER = CaseInsensitivePattern(
    r"^[ \t>]*(?:from|to|cc|bcc|reply-to|von|an|de|à|a|para|da|van|aan|od|do|dw|från|till|kopia)[ \t]*:[ \t]*\"?"
    rf"({_WORDS})\"?[ \t]*(?=<|\(|\[|,|;|\n|$)",
    re.MULTILINE,
)
_WROTE = r"wrote|a écrit|escribió|ha scritto|escreveu|schreef|napisał[ao]?|skrev"
_REPLY = PrefilteredPattern(
    rf"(?im)(?:^|[\d,][ \t]+)[ \t>]*({_WORDS})[ \t]+(?:{_WROTE})[ \t]*:"
    rf"|(?:schrieb|schreef|skrev|wrote)[ \t]+({_WORDS})[ \t]*(?::|<)",
    rf"{_WROTE}|schrieb",
)
GROUP_ADDRESSEES = frozenset(
    """
    all everyone everybody team there world sir madam friend friends customer customers colleague colleagues folks guys
    hiring manager support service reader readers neighbour neighbours family mum mom dad grandma grandpa diary
    sirs madams students santa german french chatgpt gpt claude gemini copilot siri alexa assistant bot
    zusammen alle welt team kunde kunden freund freunde kollege kollegen kolleginnen damen herren mama papa oma opa
    leute grüße grüsse gruß tagebuch
    tous toutes monde amis ami client clients équipe collègue collègues madame monsieur maman papa journal
    todos todas mundo amigo amiga amigos cliente clientes equipo señor señora señores mamá papá colega colegas diario
    tutti tutte mondo amico amica amici clienti squadra signore signora signori mamma papà diario
    pessoal gente equipe senhor senhora senhores mãe pai colegas diário
    allemaal iedereen wereld team klant klanten vriend vriendin vrienden collega collega's mevrouw meneer mama papa
    dagboek
    wszyscy świecie zespole panie pani państwo kliencie przyjacielu przyjaciele mamo tato drużyno pamiętniku
    alla allihopa världen teamet kund kunder vän vänner kollega kollegor mamma pappa dagbok
    much again very so for you your dir euch ihnen dich sie vous toi te ti lui je u ci you're ya
    """.split()  # noqa: SIM905
)
_PLAIN = re.compile(_WORD)
_AND = re.compile(r"[ \t](?:&|and|und|et|y|e|ed|en|i|och)[ \t]", re.IGNORECASE)


def find_letter_names(text: str, look: ValueMatcher) -> Iterator[Span]:
    """Spans of the names in greetings, closings and headers. Linear in the text."""
    for pattern in (_GREETING, _CLOSING, _HEADER, _REPLY):
        for match in pattern.finditer(text):
            begin, end = match.span(1 if match[1] is not None else 2)
            doubt = pattern if not text.startswith("<", match.end()) else None  # a mail address follows
            for both in (*_AND.finditer(text, begin, end), None):
                yield from _name(text, begin, both.start() if both else end, look, doubt)
                begin = both.end() if both else end


def _name(text: str, begin: int, end: int, look: ValueMatcher, pattern: PrefilteredPattern | None) -> Iterator[Span]:
    words = list(_PLAIN.finditer(text, begin, end))
    while words and words[0][0].casefold().rstrip(".") in TITLES:
        words = words[1:]
    if not words or any(word[0].casefold() in GROUP_ADDRESSEES for word in words):
        return
    begin = words[0].start()
    if _is_name(text[begin:end], [word[0].casefold() for word in words], look, pattern):
        yield Span(begin, end, "PERSON", 0.8)


def _is_name(value: str, lowers: list[str], look: ValueMatcher, pattern: PrefilteredPattern | None) -> bool:
    """Whether a value is a name; one word alone in a header may be any word."""
    lex, first = look.lexicon, lowers[0]
    listed = any(lower in lex.first_names or lower in lex.last_names for lower in lowers if lower not in PARTICLES)
    sure = listed or pattern in (_GREETING, None)
    if pattern is _HEADER and len(lowers) == 1:
        word = first in lex.stop or (first not in lex.first_names and (first in lex.common or not listed))
        if first in lex.cities or (word and is_known(first, look.language)):
            return False
    elif pattern is _HEADER:
        sure = first in lex.first_names
    return look.is_name(value, sure=sure, any_case=value.islower())
