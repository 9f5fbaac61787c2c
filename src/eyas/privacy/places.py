"""Towns, where they say something about a person: "I live in X", or a town of the list in a text with a name in it."""

import re
from collections.abc import Iterator

from eyas.privacy.case_insensitive import CaseInsensitivePattern
from eyas.privacy.dictionary import is_known
from eyas.privacy.lexicon import PARTICLES, Lexicon
from eyas.privacy.span import Span
from eyas.privacy.technical_terms import BRANDS, TERMS

_TERMS = TERMS | BRANDS
UNLISTED_SCORE = 0.5  # of a place that is on no list, behind a verb that only a place follows
WEAK_SCORE = 0.3  # of one behind a preposition: a person may stand there as well
_NAME = r"(?!\d)[^\W\d_a-zß-öø-ÿąćęłńśźżščžğışőűřěů][^\W\d_A-Z'’][^\W\d_A-Z]{1,29}(?:['’-][^\W\d_]{2,30})?"
_NAMES = re.compile(
    rf"(?<![\w.@/_-])(?:St\. |(?:La|Le|El|Los|Las|San|Les|O) |L['’]|Sant['’]|D['’])?{_NAME}"
    rf"(?:(?: (?:am|an der|de|da|do|dos|del|della|di|la|upon|aan den|aan de|sur) | |-){_NAME}){{0,3}}(?![\w@_(])"
)
_LIVES = CaseInsensitivePattern(
    r"(?:\b(?:live[sd]?|living|born|based|reside[sd]?|residing|located|grew up|raised|moved|moving|relocated"
    r"|hometown is|city is|town is)"
    r"(?: (?:in|to|from|near|at|right|here|now|currently|back|over|up|down|of))* "
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
    r"|miejscowo[śs][ćc]|miejsce urodzenia"
    r"|ort|stad|f[öo]delseort)\"?\s?[:=]\s?\"?)\Z"
)

# Journeys and stays: behind them a capitalised word is a place where the text holds a person besides.
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
_BEFORE = re.compile(
    r"(?:\b(?:in|near|to|from|at|nach|bei|aus|à|en|vers|hacia|hasta|desde|a|da|em|para|w|we|do|z|i|till|från|naar|te|uit)"
    r" |d')\Z"
)
_FEW_CAPITALS = ("es", "fr", "it", "pt", "pl")  # languages that capitalise no months, no weekdays, no languages
# "Anna from Kelthorpe", "Anna, 34, aus Kelthorpe": behind a person.
_FROM = re.compile(r"(?:,? ?\(?\d{1,2}\)?(?: \w+)?)?,? (?:from|of|aus|di|da|de|do|uit|z|ze|från|d') ?\Z")


def find_places(
    text: str, lexicon: Lexicon, language: str, personal: bool, ends: frozenset[int] = frozenset()
) -> Iterator[Span]:
    """Spans of kind LOCATION. `personal`: the text names a person or an e-mail address; `ends`: where names end.

    "Paris is the capital of France" alone says nothing about anyone and is left as it is.
    """
    for match in _NAMES.finditer(text):
        lives = bool(_LIVES.search(text, max(0, match.start() - 60), match.start()))
        if not lives and not personal:
            continue
        before = lives or bool(_BEFORE.search(text, max(0, match.start() - 8), match.start()))
        length = _city_at(match[0], lexicon, before)
        if length:
            yield Span(match.start(), match.start() + length, "LOCATION", 0.8 if lives else 0.5)
        elif _is_place(match[0], lexicon):
            moves = _STAYS.search(text, max(0, match.start() - 60), match.start()) or _ARRIVED.match(text, match.end())
            if lives or moves or _is_behind(text, match.start(), ends):
                yield Span(match.start(), match.end(), "LOCATION", UNLISTED_SCORE)
            elif before and _is_unheard(match[0], language):
                yield Span(match.start(), match.end(), "LOCATION", WEAK_SCORE)


def _is_behind(text: str, start: int, ends: frozenset[int]) -> bool:
    """Whether "from" and the end of a person's name stand before a place."""
    near = [end for end in range(max(0, start - 24), start) if end in ends]
    return any(_FROM.match(text[end:start]) for end in near)


def _is_unheard(name: str, language: str) -> bool:
    """Whether a name begins with a word of no dictionary, or stands where few words are capitalised."""
    words = [word for word in re.split(r"[ ’'-]", name.casefold()) if len(word) > 2 and word not in PARTICLES]
    return bool(words) and (language in _FEW_CAPITALS or not is_known(words[0], language))


def _is_place(name: str, lexicon: Lexicon) -> bool:
    """Whether capitalised words behind "lives in" are a place: no country, no month, no first name."""
    words = [word for word in re.split(r"[ ’'-]", name.casefold()) if len(word) > 2]
    alone = " " not in name and "'" not in name
    if not words or (alone and (words[0] in lexicon.sure_names or words[0] in _TERMS)):
        return False
    plain = [word for word in words if word in lexicon.common]
    return len(plain) < len(words) and (len(words) > 1 or words[0] not in lexicon.stop)


def _city_at(words: str, lexicon: Lexicon, before: bool) -> int:
    """How many characters of the capitalised words, from their start, are a town of the list; the longest counts.

    before: whether a word stands before it that leads to a place; else a town that is a word as well is none.
    """
    length = len(words)
    while length > 0:
        name = words[:length].casefold()
        if (
            name in lexicon.cities
            and name not in lexicon.stop
            and (before or name not in lexicon.common or " " in name)
        ):
            return length
        length = max(words.rfind(" ", 0, length), words.rfind("-", 0, length))
    return 0
