"""Towns, where they say something about a person: "I live in X", or a town of the list in a text with a name in it."""

import re
from collections.abc import Iterator

from eyas.privacy.entity import Span
from eyas.privacy.lexicon import Lexicon

_NAME = r"[A-ZÀ-ÖØ-ÞĄĆĘŁŃŚŹŻŠČŽ][a-zß-öø-ÿąćęłńśźżščž'’-]{2,30}"
_NAMES = re.compile(
    rf"(?<![\w.@/_-])(?:St\. )?{_NAME}(?:(?: (?:am|an der|de|del|do|la|upon|aan den|sur) | "
    rf"|-){_NAME}){{0,3}}(?![\w@_(])"
)
_LIVES = re.compile(
    r"(?i)(?:\b(?:live[sd]?|living|born|based|reside[sd]?|residing|located|grew up|raised|moved|moving|relocated"
    r"|hometown is|city is|town is)"
    r"(?: (?:in|to|from|near|at|right|here|now|currently|back|over|up|down|of))* "
    r"|\b(?:i'?m|i am|we'?re|comes?|from) from |\bhere in |\bresident of "
    r"|\b(?:wohn\w*|leb[et]\w*|geboren|komme|kommt|stamm\w*|umgezogen|ziehe) (?:(?:jetzt|seit \d+|derzeit|zurzeit"
    r"|immer|noch) )*(?:in|aus|nach|bei) "
    r"|\b(?:j'habite|habite|habitons|vis|vit|née?|viens|vient|domicilié|installée?|déménagé)(?: actuellement"
    r"| maintenant)? (?:à|de|sur|d'|près de) ?"
    r"|\b(?:vivo|vive|vivimos|nac[ií]|nació|soy|resido|reside|vengo|mudé) (?:actualmente )?(?:en|de|a|cerca de) "
    r"|\b(?:abito|abita|vivo|vive|nato|nata|vengo|viene|risiede|residente|trasferit[oa]) (?:attualmente )?(?:a|in|da"
    r"|di|vicino a) "
    r"|\b(?:moro|mora|vivo|vive|nasci|nasceu|sou|resido|mudei) (?:atualmente )?(?:em|no|na|de|do|da|para) "
    r"|\b(?:woon|woont|wonen|geboren|kom|komt|verhuisd)(?: nu| momenteel| sinds \d+)? (?:in|uit|naar|te) "
    r"|\b(?:mieszkam|mieszka|mieszkamy|urodzi\w+(?: się)?|pochodzę|pochodzi"
    r"|przeprowadzi\w+(?: się)?)(?: obecnie)? (?:we?|z|ze|do|pod) "
    r"|\b(?:bor|bodde|född|kommer|flyttade)(?: nu| just nu)? (?:i|från|till|på) "
    r"|\b(?:city|town|location|ort|wohnort|stadt|geburtsort|place of birth|birthplace|ville|lieu de naissance|ciudad"
    r"|localidad|lugar de nacimiento"
    r"|citt[àa]|luogo di nascita|comune|cidade|localidade|naturalidade|plaats|woonplaats|geboorteplaats|miasto"
    r"|miejscowo[śs][ćc]|miejsce urodzenia"
    r"|ort|stad|f[öo]delseort)\"?\s?[:=]\s?\"?)\Z"
)


def places(text: str, lexicon: Lexicon, personal: bool) -> Iterator[Span]:
    """Spans of kind LOCATION. `personal`: the text names a person or an e-mail address.

    "Paris is the capital of France" alone says nothing about anyone and is left as it is.
    """
    for match in _NAMES.finditer(text):
        lives = bool(_LIVES.search(text, max(0, match.start() - 60), match.start()))
        if not lives and not personal:
            continue
        length = _city_at(match[0], lexicon)
        if length:
            yield Span(match.start(), match.start() + length, "LOCATION", 0.8 if lives else 0.5)
        elif lives and " " not in match[0] and match[0].casefold() not in lexicon.common | lexicon.sure_names:
            yield Span(match.start(), match.end(), "LOCATION", 0.5)


def _city_at(words: str, lexicon: Lexicon) -> int:
    """How many characters of the capitalised words, from their start, are a town of the list; the longest counts."""
    length = len(words)
    while length > 0:
        name = words[:length].casefold()
        if name in lexicon.cities and name not in lexicon.stop and (name not in lexicon.common or " " in name):
            return length
        length = max(words.rfind(" ", 0, length), words.rfind("-", 0, length))
    return 0
