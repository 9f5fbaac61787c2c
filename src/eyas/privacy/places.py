"""Finds places that tell something about a person: after "I live in", or listed towns in a text about a person."""

import re
from collections.abc import Iterator

from eyas.privacy.case_insensitive import CaseInsensitivePattern
from eyas.privacy.dictionary import is_known
from eyas.privacy.span import Span
from eyas.privacy.word_lists import PARTICLES, Lexicon
from eyas.privacy.words import NAMED_THINGS

UNLISTED_SCORE = 0.5  # of a place in no list of towns, after a phrase that announces a place
WEAK_SCORE = 0.3  # of a place in no list of towns, after a preposition: a person may follow it, too
_BEFORE = 60  # characters before a place in which a phrase announces it
_NAME = r"(?!\d)[^\W\d_a-zß-öø-ÿąćęłńśźżščžğışőűřěů][^\W\d_A-Z'’][^\W\d_A-Z]{1,29}(?:['’-][^\W\d_]{2,30})?"
_NAMES = re.compile(
    rf"(?<![\w.@/_-])(?:St\. |(?:La|Le|El|Los|Las|San|Les|O) |L['’]|Sant['’]|D['’])?{_NAME}"
    rf"(?:(?: (?:am|an der|de|da|do|dos|del|della|di|la|upon|aan den|aan de|sur) | |-){_NAME}){{0,3}}(?![\w@_(])"
)
_LIVES = CaseInsensitivePattern(
    r"(?:\b(?:live[sd]?|living|born|based|reside[sd]?|residing|located|grew up|raised|moved|moving|relocated"
    r"|hometown is|city is|town is)(?: (?:in|to|from|near|at|right|here|now|currently|back|over|up|down|of))* "
    r"|\b(?:i'?m|i am|we'?re|comes?) from |\bhere in |\bresident of "
    r"|\b(?:wohn\w*|leb[et]\w*|geboren|komme|kommt|stamm\w*|umgezogen|zieh\w*|zog) (?:(?:jetzt|seit \d+|derzeit|zurzeit"
    r"|immer|noch) )*(?:in|aus|nach|bei) "
    r"|\b(?:j'habite|habite|habitons|vis|vit|née?|viens|vient|domicilié|installée?|déménagé)(?: actuellement"
    r"| maintenant)? (?:à|de|sur|d'|près de) ?"
    r"|\b(?:vivo|vive|vivimos|nac[ií]|nació|soy|resido|reside|vengo|mudé) (?:actualmente )?(?:en|de|a|cerca de) "
    r"|\b(?:abito|abita|vivo|vive|nato|nata|vengo|viene|risiede|residente|trasferit[oa]) (?:attualmente )?(?:a|in|da"
    r"|di|vicino a) "
    r"|\b(?:moro|mora|moram|vivo|vive|vivem|nasci|nasceu|sou|resido|mudei|viver|morar) (?:atualmente )?"
    r"(?:em|no|na|de|do|da|para) "
    r"|\b(?:woon|woont|wonen|geboren|kom|komt|verhuisd)(?: nu| momenteel| sinds \d+)? (?:in|uit|naar|te) "
    r"|\b(?:mieszkam|mieszka|mieszkamy|urodzi\w+(?: się)?|pochodzę|pochodzi"
    r"|przeprowadzi\w+(?: się)?)(?: obecnie)? (?:we?|z|ze|do|pod) "
    r"|\b(?:bor|bodde|född|kommer|flyttade|flyttat|flyttar)(?: nu| just nu)? (?:i|från|till|på) "
    r"|\b(?:city|town|location|ort|wohnort|stadt|geburtsort|place of birth|birthplace|ville|lieu de naissance|ciudad"
    r"|localidad|lugar de nacimiento"
    r"|citt[àa]|luogo di nascita|comune|cidade|localidade|naturalidade|plaats|woonplaats|geboorteplaats|miasto"
    r"|miejscowo[śs][ćc]|miejsce urodzenia|ort|stad|f[öo]delseort)\"?\s?[:=]\s?\"?)\Z"
)

# Journeys and stays: after them a capitalized word is a place where the text holds a person besides.
_STAYS = CaseInsensitivePattern(
    r"(?:\b(?:arriv\w+|stay(?:s|ing|ed)?|settled|holidays?|vacation|trip|wedding|married|drives?|driving|drove"
    r"|flight|fly(?:ing)?|flew|travel\w*|visit(?:s|ing|ed)?|back|home|house|flat|apartment|clinic|hospital|school|works?"
    r"|working|studies|studying|party|weekend|retire[ds]?|office|job) (?:\w+ )?(?:in|to|at|from|near|for) "
    r"|\b(?:angekommen|ankommen|urlaub|reise|ferien|hochzeit|wohnung|haus|fahr[et]\w*|fliegt?|fliege|arbeitet|studiert"
    r"|heiratet|treffen|besuch\w*|klinik|praxis|schule) (?:\w+ )?(?:in|nach|aus|bei) |\baus (?=[^ ]+(?:[,.?!\n]|$))"
    r"|\bnach (?=[^ ]+(?: \w+)? (?:gezogen|umgezogen|gefahren|ziehen|ziehe|zieht|fahren))"
    r"|\b(?:arriv\w+|install\w+|vacances|voyage|mariage|appartement|maison|travaille|partir|part|étudie|médecin"
    r"|déménage\w*|retraite) (?:\w+ )?(?:à|de|pour|d'|près de) ?"
    r"|\b(?:mudar\w*|mudo|muda|instalad\w+|llega\w*|vacaciones|viaje|boda|piso|casa|trabaja|estudia|viaja\w*) "
    r"(?:\w+ )?(?:en|a|de|para) "
    r"|\b(?:arriv\w+|vacanza|vacanze|viaggio|matrimonio|sposan?o?|casa|lavora|studia|trasferi\w+|traslo\w+) "
    r"(?:\w+ )?(?:a|in|di|da|per) "
    r"|\b(?:cheg\w+|viver|férias|viagem|casamento|casa|trabalha|estuda|mudar\w*|mudou\w*|viaja\w*) (?:\w+ )?"
    r"(?:a|em|para|de|no|na) "
    r"|\b(?:aangekomen|vakantie|reis|bruiloft|huis|appartement|werkt|studeert|trouwt|trouwen|verhui\w+) (?:\w+ )?"
    r"(?:in|naar|te|uit) |\bnaar (?=[^ ]+ (?:verhuisd|verhuist|verhuizen))"
    r"|\b(?:przyjecha\w+|jedzie|jadę|jedziemy|wakacje|wyjazd|ślub|mieszkanie|pracuje|studiuje|wyjechał\w*) (?:\w+ )?"
    r"(?:do|w|we|z|ze|na) "
    r"|\b(?:anlän\w+|semester|resa|reser|åker|bröllop|lägenhet|jobbar|studerar|flyttat|flyttar) (?:\w+ )?"
    r"(?:i|till|från|på) )\Z"
)
_ARRIVED = re.compile(r" (?:angekommen|gezogen|umgezogen|gelandet|verhuisd|aangekomen|gefahren|geflogen)\b")
# Before a place in any sentence, where the text is personal.
_PREPOSITION = re.compile(
    r"(?:\b(?:in|near|to|from|at|nach|bei|aus|à|en|vers|hacia|hasta|desde|a|da|em|para|w|we|do|z|i|till|från|naar|te|uit)"
    r" |d')\Z"
)
_FEW_CAPITALS = ("es", "fr", "it", "pt", "pl")  # languages without capitals on months, weekdays, languages
# After a person: "Anna from Kelthorpe", "Anna, 34, aus Kelthorpe".
_FROM = re.compile(r"(?:,? ?\(?\d{1,2}\)?(?: \w+)?)?,? (?:from|of|aus|di|da|de|do|uit|z|ze|från|d') ?\Z")
_REACH_OF_FROM = 24  # characters
_PART = re.compile(r"[ ’'-]")


def find_places(
    text: str, lexicon: Lexicon, language: str, is_personal: bool, name_ends: frozenset[int] = frozenset()
) -> Iterator[Span]:
    """Yields the spans of places, of kind "LOCATION": "I live in Paris" -> span of "Paris".

    "Paris is the capital of France" alone tells nothing about a person, so "Paris" is not yielded there.

    Args:
        text: The text.
        lexicon: The lists of names and words.
        language: The language of the text (ISO 639-1).
        is_personal: The text is about a person: it names one, or holds an e-mail address.
        name_ends: The end positions of people's names in the text.
    """
    for match in _NAMES.finditer(text):
        start = match.start()
        lives = bool(_LIVES.search(text, max(0, start - _BEFORE), start))
        if not lives and not is_personal:
            continue
        preposition = lives or bool(_PREPOSITION.search(text, max(0, start - 8), start))
        length = _city_length(match[0], lexicon, preposition)
        if length:
            yield Span(start, start + length, "LOCATION", 0.8 if lives else 0.5)
        elif _is_place(match[0], lexicon):
            moves = _STAYS.search(text, max(0, start - _BEFORE), start) or _ARRIVED.match(text, match.end())
            if lives or moves or _is_behind_person(text, start, name_ends):
                yield Span(start, match.end(), "LOCATION", UNLISTED_SCORE)
            elif preposition and _is_unknown(match[0], language):
                yield Span(start, match.end(), "LOCATION", WEAK_SCORE)


def _is_behind_person(text: str, start: int, name_ends: frozenset[int]) -> bool:
    """Returns True if a person's name and "from" stand before the place at position `start`: "Anna from Kelthorpe"."""
    ends = (end for end in range(max(0, start - _REACH_OF_FROM), start) if end in name_ends)
    return any(_FROM.match(text[end:start]) for end in ends)


def _is_unknown(name: str, language: str) -> bool:
    """Returns True if a capitalized word is probably a name.

    Its first word is in no dictionary, or the language capitalizes names but no months, weekdays and languages.
    """
    words = [word for word in _PART.split(name.casefold()) if len(word) > 2 and word not in PARTICLES]
    return bool(words) and (language in _FEW_CAPITALS or not is_known(words[0], language))


def _is_place(name: str, lexicon: Lexicon) -> bool:
    """Returns True if capitalized words may name a place.

    They may not if all of them are common words, or if there is only one: a first name, a brand or a stop word, to
    which countries and months belong.
    """
    words = [word for word in _PART.split(name.casefold()) if len(word) > 2]
    if not words or all(word in lexicon.common for word in words):
        return False
    if " " not in name and "'" not in name and (words[0] in lexicon.sure_names or words[0] in NAMED_THINGS):
        return False
    return len(words) > 1 or words[0] not in lexicon.stop


def _city_length(words: str, lexicon: Lexicon, preposition: bool) -> int:
    """Returns the number of characters of the longest listed town at the start of `words`; 0 if there is none.

    "New York Times" -> 8.

    Args:
        words: Capitalized words.
        lexicon: The lists of names and words.
        preposition: The word before them announces a place, such as "in". If it is False, a town that is also a common
            word, such as "Nice", is no town.
    """
    length = len(words)
    while length > 0:
        name = words[:length].casefold()
        is_word = name in lexicon.common and " " not in name
        if name in lexicon.cities and name not in lexicon.stop and (preposition or not is_word):
            return length
        length = max(words.rfind(" ", 0, length), words.rfind("-", 0, length))
    return 0
