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
from eyas.privacy.vocabulary import is_compound, is_known, is_slip
from eyas.privacy.words import Words, split

_IN = frozenset("in near at nach bei à en em w we i naar te till no na".split())  # noqa: SIM905
# Before a person in lower case, beside what relation.TO and hint.ASKED hold.
_LEADS = word_set(
    """
    tu tutaj this here ici aquí qui aqui hier här między entre zwischen between
    with from about of by im i'm its it's tell telling meet met meeting call calling calls see seeing thank invite
    dating miss love bday birthday dear hi hey
    mit von bei zu über bin frag sag treffe treff triff getroffen dem der wegen ohne gegen gute gratuliere
    avec chez de à suis c'est dis demande rejoindre voir vois invite remercier retrouver anniv anniversaire
    con de soy dile dime decirle pedirle ver invitar llamar a cumple cumpleaños felicidades
    con di da sono a dille digli chiedere invitare vedere auguri compleanno
    com de sou do da pro pra falar fala diz ver convidar chamar o a parabéns aniversário niver
    met van bij ben vraag zeg zie bel bellen naar gefeliciteerd
    do dla u od z ze przez jestem powiedz zapytaj spytaj powiedzieć pozdrów zaprosić spotkać za o odpisz napisz lat
    med av från hos är fråga träffa ring bjuda hälsa svara grattis
    """
)
# Behind a name that opens a clause.
_DOES = HUMAN | word_set(
    """
    is was has had didnt didn't doesnt doesn't wont won't isnt isn't never still keeps just wants needs and
    ist war hat wird kann will hatte macht geht antwortet und est va n'a m'a ne me veut doit sera et
    no ha es está era quiere se y non mi è sta vuole e não é foi está quer vai is heeft wil kan gaat doet reageert en
    jest nie ma był była chce będzie się może odpisuje kończy i är har vill ska svarar inte var kan fyller och
    """
)
# What is done with a person or said to one: a text that holds it is about people.
_TOGETHER = word_set(
    """
    telling reply apologize apologise invite invited congratulate birthday bday wedding anniversary dating breakup
    argument
    fight meeting turning marry answering miss
    antworten antwortet einladen eingeladen geburtstag hochzeit getroffen verabredet entschuldigen entschuldige
    gratulieren streit heiraten treff glückwunsch zum
    répondre répond inviter invité anniversaire anniv mariage excuser m'excuser féliciter rendez-vous disputé dispute
    vois épouser
    contestar contesta responder invitar cumpleaños cumple boda disculparme perdón felicitar cita peleé pelea quedé
    casarme
    dirle dirgli rispondere risponde invitare compleanno compie matrimonio scusarmi scusa congratularmi auguri litigato
    lasciato augurio vedere sposare
    responder responde convidar aniversário niver casamento desculpar desculpa parabenizar parabéns briguei fala casar
    antwoorden antwoordt reageert uitnodigen verjaardag bruiloft feliciteren gefeliciteerd afgesproken ruzie leuks
    trouwen
    odpisać odpisuje odpisz odzywa zaprosić urodziny urodzin imieniny ślub wesele przeprosić umówiłam umówiłem spotkać
    spotykam pogratulować pokłóciłam pokłóciłem zagadać lat
    svara svarar bjuda födelsedag bröllop ursäkt gratulera grattis träffade träffa gifta ses fyller
    """
)
_ARTICLES_BEFORE_NAMES = {"pt": frozenset("o a ao à do da no na pelo pela".split())}  # noqa: SIM905
_SHAPE = re.compile(r"[^\W\d_]{2,}(?:['’-][^\W\d_]+)*\Z")
_ODD = re.compile(r"(.)\1\1|(?:(.)(.)\2\3){2}|\A[^aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýąęó]+\Z")
_POLISH = re.compile(r"..(?:[cs]k|dzk)(?:a|i|iego|iej|iemu|im|ą)\Z")  # endings of last names
_SLANG = word_set(
    """
    thx pls plz lol omg idk btw gonna wanna gotta kinda tmrw tomorow msg wknd bday bf gf bff hbd ngl tbh imo imho asap
    isnt arent wasnt werent dont doesnt didnt cant couldnt wouldnt shouldnt wont hasnt havent hadnt whos whats thats
    theres youre theyre ive youve weve smth smn bcs bcuz cuz coz tho nvm tysm ily
    vllt iwie nix nen hdl mfg grad schonmal ausm aufm inna stp svp jsp tkt mdr pck pk bcp qqn qqch ajd tqm tkm porfa
    xfa finde cumple bday peli msj nn cmq xke xché tvb tvtb blz vlw vcs tbm pfv niver mto fds obg kk kkk ff effe egt idd
    ofzo pls spoko nara pzdr siema zaraz wgl oxå asså nåt nån nåra gött anniv slt
    """
)


def strangers(text: str, lexicon: Lexicon, language: str, personal: bool, contact: bool) -> Iterator[Span]:
    """Spans of unlisted names.

    personal: something else in the text says that it is about people; contact: a number or an address stands there,
    which is somebody's: in lower case no word need lead to a name.
    """
    words = split(text)
    if not (personal or contact or (_is_about_people(words) and not is_technical(text))):
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
        elif (
            lower_case
            and (contact or _is_led(words, i) or (i > 0 and near.is_title(i - 1)))
            and _may_be_name(words, i, near, language)
        ):
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
    if listed and lower not in lex.common and len(lower) > 3:
        return True
    return _is_unknown(words, i, near, language) and not is_slip(lower, language)


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
    if (
        lower in near.lex.common
        or near.is_stop(i)
        or lower in TERMS
        or lower in near.lex.cities
        or lower in PARTICLES
        or _ODD.search(lower)
    ):
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
