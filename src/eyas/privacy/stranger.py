"""Names that no list holds: words that no dictionary holds either, in a text that is about people.

Outside such a text an unknown word is a brand, a term or a slip, and stays. Within, by the words beside it, it is a
place ("in Kelthorpe") or a person. In lower case a slip is as likely as a name: only behind a word that leads to one.
"""

import re
from collections.abc import Iterator

from eyas.privacy.entity import Span
from eyas.privacy.hint import AND, ASKED, COMPANY, DETERMINERS
from eyas.privacy.lexicon import PARTICLES, Lexicon
from eyas.privacy.nearby import Nearby
from eyas.privacy.relation import HUMAN, MESSAGES, POSSESSIVES, RELATIONS, TO, word_set
from eyas.privacy.term import TERMS, is_technical
from eyas.privacy.vocabulary import is_compound, is_known
from eyas.privacy.words import Words, split

_IN = frozenset("in near at nach bei à en em w we i naar te till no na".split())  # noqa: SIM905
# Before a person in lower case, beside what relation.TO and hint.ASKED hold.
_LEADS = word_set(
    """
    tu tutaj this here ici aquí qui aqui hier między entre zwischen between
    with from about of by im i'm tell telling meet met meeting call calling calls see seeing thank invite dating miss
    mit von bei zu über bin frag sag treffe getroffen dem der wegen ohne gegen
    avec chez de à suis dis demande rejoindre voir invite remercier retrouver
    con de soy dile dime decirle pedirle ver invitar llamar a
    con di da sono a dille digli chiedere invitare vedere
    com de sou do da pro pra falar fala diz ver convidar chamar o a
    met van bij ben vraag zeg zie bel bellen
    do dla u od z ze przez jestem powiedz zapytaj spytaj powiedzieć pozdrów zaprosić spotkać za o
    med av från hos är fråga träffa ring bjuda hälsa
    """
)
# Behind a name that opens a clause.
_DOES = HUMAN | word_set(
    """
    is was has had didnt didn't doesnt doesn't wont won't isnt isn't never still keeps just wants needs
    ist war hat wird kann will hatte macht geht antwortet a est va n'a ne veut doit sera
    no ha es está era quiere se non è sta vuole não é foi está quer vai is heeft wil kan gaat doet
    jest nie ma był była chce będzie się może odpisuje kończy är har vill ska svarar inte var kan fyller
    """
)
# What is done with a person or said to one: a text that holds it is about people.
_TOGETHER = word_set(
    """
    tell telling told reply apologize apologise invite invited congratulate birthday wedding anniversary dating breakup
    sagen gesagt antworten einladen eingeladen geburtstag hochzeit getroffen verabredet entschuldigen gratulieren
    dire répondre inviter invité anniversaire mariage excuser féliciter rendez-vous
    decir decirle contestar responder invitar cumpleaños boda disculparme felicitar cita
    dire dirle dirgli rispondere invitare compleanno matrimonio scusarmi congratularmi
    dizer falar responder convidar aniversário casamento desculpar parabenizar
    zeggen antwoorden uitnodigen verjaardag bruiloft feliciteren afgesproken
    powiedzieć odpisać odpisuje zaprosić urodziny urodzin ślub wesele przeprosić umówiłam umówiłem spotkać pogratulować
    säga svara bjuda födelsedag bröllop ursäkt gratulera träffade
    """
)
_ARTICLES_BEFORE_NAMES = {"pt": frozenset("o a ao à do da no na pelo pela".split())}  # noqa: SIM905
_SHAPE = re.compile(r"[^\W\d_]{2,}(?:['’-][^\W\d_]+)*\Z")
_ODD = re.compile(r"(.)\1\1|(?:(.)(.)\2\3){2}|\A[^aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýąęó]+\Z")
_POLISH = re.compile(r"..(?:[cs]k|dzk)(?:a|i|iego|iej|iemu|im|ą)\Z")  # endings of last names
_SLANG = frozenset(
    """
    thx pls plz lol omg idk btw gonna wanna gotta kinda tmrw tomorow msg wknd bday bf gf bff hbd ngl tbh imo imho asap
    vllt iwie nix nen hdl mfg grad schonmal ausm aufm inna stp svp jsp tkt mdr pck pk bcp qqn qqch ajd tqm tkm porfa
    xfa finde cumple bday peli nn cmq xke xché tvb tvtb blz vlw vcs tbm pfv niver mto fds obg kk kkk ff effe egt idd
    ofzo pls spoko nara pzdr siema zaraz wgl oxå asså nåt nån nåra gött
    """.split()  # noqa: SIM905
)


def strangers(text: str, lexicon: Lexicon, language: str, personal: bool) -> Iterator[Span]:
    """Spans of unlisted names. `personal`: something else in the text says that it is about people."""
    words = split(text)
    if not (personal or (_is_about_people(words) and not is_technical(text))):
        return
    near = Nearby(words, lexicon, language)
    done = -1
    lower_case = sum(map(words.is_capital, range(len(words)))) * 12 <= len(words)
    for i in range(len(words)):
        if i <= done:
            continue
        if words.is_capital(i):
            last = near.extend(i)
            if _is_unknown(words, i, near, language) and _is_name(words, i, last, language):
                place = i > 0 and words.lowers[i - 1] in _IN and words.gap(i - 1) == " "
                yield Span(words.begins[i], words.ends[last], "LOCATION" if place else "PERSON", 0.4)
                done = last
        elif lower_case and (_is_led(words, i) or (i > 0 and near.is_title(i - 1))) and _may_be_name(words, i, near, language):
            last = i
            while last - i < 2 and last + 1 < len(words) and words.gap(last) == " ":
                following = words.lowers[last + 1]
                last_name = following in lexicon.last_names or (language == "pl" and _POLISH.search(following))
                last_name = last_name and following not in lexicon.common
                if not (last_name or _is_unknown(words, last + 1, near, language)):
                    break
                last += 1
            yield Span(words.begins[i], words.ends[last], "PERSON", 0.4)
            done = last


def _may_be_name(words: Words, i: int, near: Nearby, language: str) -> bool:
    """Whether a word in lower case is unknown or a listed name and no other word."""
    lower, lex = words.lowers[i], near.lex
    listed = lower in lex.sure_names or (lower in lex.last_names and not is_known(lower, language))
    return (listed and lower not in lex.common and len(lower) > 3) or _is_unknown(words, i, near, language)


def _is_about_people(words: Words) -> bool:
    """Whether it speaks of "my sister", or of a message to somebody."""
    lowers = words.lowers
    for i, lower in enumerate(lowers):
        if lower in RELATIONS and i > 0 and lowers[i - 1] in POSSESSIVES:
            return True
        if lower in MESSAGES and any(word in TO or word in _LEADS for word in lowers[i + 1 : i + 4]):
            return True
        if lower in _TOGETHER:
            return True
    return False


def _is_unknown(words: Words, i: int, near: Nearby, language: str) -> bool:
    lower, word = words.lowers[i], words.words[i]
    if len(lower) < 3 or words.is_code(i) or word.isupper() or word[1:] != word[1:].lower() or not _SHAPE.match(word):
        return False
    if lower in near.lex.common or near.is_stop(i) or lower in TERMS or lower in near.lex.cities or lower in PARTICLES or _ODD.search(lower):
        return False
    if is_known(lower, language):
        return False
    german = language == "de"
    return not ((german or not words.is_capital(i)) and (is_compound(lower, language) or lower in _SLANG))


def _is_name(words: Words, i: int, last: int, language: str) -> bool:
    if i > 0 and words.gap(i - 1) == " " and words.lowers[i - 1] in DETERMINERS:
        if words.lowers[i - 1] not in _IN | _ARTICLES_BEFORE_NAMES.get(language, frozenset()):
            return False
    following = words.lowers[last + 1] if last + 1 < len(words) else ""
    return following not in COMPANY


def _is_led(words: Words, i: int) -> bool:
    """Whether the word before leads to a person, or the word opens a clause and a verb of people follows."""
    gap = words.gap(i - 1) if i else "\n"
    if gap != " ":
        return i + 1 < len(words) and words.gap(i) == " " and words.lowers[i + 1] in _DOES and not gap.strip(" ,.!?;\n")
    before = words.lowers[i - 1]
    return before in TO or before in _LEADS or before in RELATIONS or before in ASKED or before in AND
