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
from eyas.privacy.relation import MESSAGES, POSSESSIVES, RELATIONS, TO
from eyas.privacy.term import TERMS, is_technical
from eyas.privacy.vocabulary import is_compound, is_known
from eyas.privacy.words import Words, split

_IN = frozenset("in near at nach bei à en em w we i naar te till no na".split())  # noqa: SIM905
_WITH = frozenset(
    """
    with from about of by mit von bei zu über avec chez de con com del di da van met bij z od o przy med från av om
    """.split()  # noqa: SIM905
)
_ARTICLES_BEFORE_NAMES = {"pt": frozenset("o a ao à do da no na pelo pela".split())}  # noqa: SIM905
_SHAPE = re.compile(r"[^\W\d_]{2,}(?:['’-][^\W\d_]+)*\Z")
_ODD = re.compile(r"(.)\1\1|(?:(.)(.)\2\3){2}|\A[^aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýąęó]+\Z")
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
    if not (personal or _is_about_people(words)) or is_technical(text):
        return
    near = Nearby(words, lexicon, language)
    done = -1
    lower_case = sum(map(words.is_capital, range(len(words)))) * 12 <= len(words)
    for i in range(len(words)):
        if i <= done or not _is_unknown(words, i, near, language):
            continue
        if words.is_capital(i):
            last = near.extend(i)
            if _is_name(words, i, last, language):
                place = i > 0 and words.lowers[i - 1] in _IN and words.gap(i - 1) == " "
                yield Span(words.begins[i], words.ends[last], "LOCATION" if place else "PERSON", 0.4)
                done = last
        elif lower_case and _is_led(words, i):
            yield Span(words.begins[i], words.ends[i], "PERSON", 0.4)


def _is_about_people(words: Words) -> bool:
    """Whether it speaks of "my sister", or of a message to somebody."""
    lowers = words.lowers
    for i, lower in enumerate(lowers):
        if lower in RELATIONS and i > 0 and lowers[i - 1] in POSSESSIVES:
            return True
        if lower in MESSAGES and any(word in TO for word in lowers[i + 1 : i + 4]):
            return True
    return False


def _is_unknown(words: Words, i: int, near: Nearby, language: str) -> bool:
    lower, word = words.lowers[i], words.words[i]
    if len(lower) < 3 or words.is_code(i) or word.isupper() or word[1:] != word[1:].lower() or not _SHAPE.match(word):
        return False
    if near.is_word(i) or lower in TERMS or lower in near.lex.cities or lower in PARTICLES or _ODD.search(lower):
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
    if i == 0 or words.gap(i - 1) != " ":
        return False
    before = words.lowers[i - 1]
    return before in TO or before in _WITH or before in RELATIONS or before in ASKED or before in AND
