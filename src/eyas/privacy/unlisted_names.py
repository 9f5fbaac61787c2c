"""Names that no list holds: words that no dictionary holds either, in a text that is about people.

Outside such a text an unknown word is a brand, a term or a slip, and stays. Within, by the words beside it, it is a
place ("in Kelthorpe") or a person. In lower case a slip is as likely as a name: only behind a word that leads to one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eyas.privacy.context_words import COMPANY, CONJUNCTIONS, DETERMINERS, SPEECH_VERBS
from eyas.privacy.coreference import CASE_ENDINGS
from eyas.privacy.dictionary import is_compound, is_known, is_misspelling
from eyas.privacy.lexicon import PARTICLES, Lexicon
from eyas.privacy.relation_words import (
    HUMAN_VERBS,
    MESSAGE_WORDS,
    POSSESSIVES,
    RECIPIENT_WORDS,
    RELATIONS,
    by_language,
    word_set,
)
from eyas.privacy.span import Span
from eyas.privacy.technical_terms import BRANDS, TERMS, is_technical
from eyas.privacy.tokens import Words, split_words
from eyas.privacy.word_context import WordContext

_IN = frozenset("desde in near at nach bei à en em w we i naar te till no na".split())  # noqa: SIM905
# Before a person in lower case, beside what RECIPIENT_WORDS and SPEECH_VERBS hold.
_LEADS = by_language(
    """
    en this here between with from about of by im i'm its it's tell telling meet met meeting call calling calls see
    en seeing thank invite dating miss love bday birthday dear hi hey
    de hier zwischen mit von bei zu über bin frag sag treffe treff triff getroffen dem der wegen ohne gegen gute
    de gratuliere hi hey hallo liebe lieber
    fr ici entre avec chez de à suis c'est dis demande rejoindre voir vois invite remercier retrouver anniv
    fr anniversaire salut coucou
    es aquí entre con de soy dile dime decirle pedirle ver invitar llamar a cumple cumpleaños felicidades hola
    it qui tra fra con di da sono a dille digli chiedere invitare vedere auguri compleanno ciao
    pt aqui entre com de sou do da pro pra falar fala diz ver convidar chamar o a parabéns aniversário niver oi olá
    nl hier tussen met van bij ben vraag zeg zie bel bellen naar gefeliciteerd hoi hey
    pl tu tutaj między do dla u od z ze przez jestem powiedz zapytaj spytaj powiedzieć pozdrów zaprosić spotkać za o
    pl odpisz napisz lat hej cześć
    sv här mellan med av från hos är fråga träffa ring bjuda hälsa svara grattis hej
    """
)
# Behind a name that opens a clause, beside HUMAN_VERBS.
_DOES = by_language(
    """
    en is was has had didnt didn't doesnt doesn't wont won't isnt isn't never still keeps just wants needs and
    de ist war hat wird kann will hatte macht geht antwortet und
    fr a est va n'a m'a ne me veut doit sera et
    es no ha es está era quiere se me y
    it non è ha sta va vuole mi e
    pt não é foi está quer vai me e
    nl is was heeft wil kan gaat doet reageert en
    pl jest nie ma był była chce będzie się może odpisuje kończy i
    sv är har vill ska svarar inte var kan fyller och
    """
)
# What is done with a person or said to one: a text that holds it is about people.
_TOGETHER = by_language(
    """
    en telling reply apologize apologise invite invited congratulate birthday bday wedding anniversary dating breakup
    en attendees participants argument fight meeting turning marry answering miss
    de antworten antwortet einladen eingeladen geburtstag hochzeit getroffen verabredet entschuldigen entschuldige
    de anwesend anwesende teilnehmer gratulieren streit heiraten treff glückwunsch zum
    fr répondre répond inviter invité anniversaire anniv mariage excuser m'excuser féliciter rendez-vous disputé
    fr présents participants dispute vois épouser
    es contestar contesta responder invitar cumpleaños cumple boda disculparme perdón felicitar cita peleé pelea quedé
    es casarme asistentes presentes
    it dirle dirgli rispondere risponde invitare compleanno compie matrimonio scusarmi scusa congratularmi auguri
    it presenti partecipanti litigato lasciato augurio vedere sposare
    pt responder responde convidar aniversário niver casamento desculpar desculpa parabenizar parabéns briguei fala
    pt casar presentes participantes
    nl antwoorden antwoordt reageert uitnodigen verjaardag bruiloft feliciteren gefeliciteerd afgesproken ruzie leuks
    nl trouwen aanwezig aanwezigen deelnemers
    pl odpisać odpisuje odpisz odzywa zaprosić urodziny urodzin imieniny ślub wesele przeprosić umówiłam umówiłem
    pl obecni uczestnicy spotkać spotykam pogratulować pokłóciłam pokłóciłem zagadać lat
    sv närvarande deltagare svara svarar bjuda födelsedag bröllop ursäkt gratulera grattis träffade träffa gifta ses
    sv fyller
    """
)
# Languages that write few words with capitals: no months, no weekdays, no languages.
FEW_CAPITALS = ("es", "fr", "it", "nl", "pl", "pt", "sv")
_TERMS = TERMS | BRANDS
_NONE = frozenset[str]()
_ARTICLES_BEFORE_NAMES = {"pt": frozenset("o a ao à do da no na pelo pela".split())}  # noqa: SIM905
_LETTER = "[A-Za-zÀ-ɏḀ-ỿ]"  # Latin: other scripts write no spaces or know no capitals
_SHAPE = re.compile(rf"{_LETTER}{{2,}}(?:['’-]{_LETTER}+)*\Z")
_ODD = re.compile(r"(.)\1\1|(?:(.)(.)\2\3){2}|\A[^aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýąęó]+\Z")
_OPENS = re.compile(r"[.!?\n]")  # between sentences
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


def find_unlisted_names(
    text: str, lexicon: Lexicon, language: str, names: frozenset[str], personal: bool, contact: bool
) -> Iterator[Span]:
    """Spans of unlisted names.

    names: those found so far, in lower case: with an ending of a case they are no new ones, the filter replaces them;
    personal: something in the text says that it is about people; contact: a number or an address stands there, which is
    somebody's: in lower case no word need lead to a name.
    """
    if personal or contact:
        words = split_words(text)
        yield from _UnlistedNameSearch(words, WordContext(words, lexicon, language), language, names, contact).run()


def is_about_people(text: str, language: str) -> bool:
    """Whether it speaks of "my sister", of a message to somebody, of a wedding; and of nothing technical."""
    lowers = split_words(text).lowers
    return _speaks_of_people(lowers, language) and not is_technical(text)


def _speaks_of_people(lowers: Sequence[str], language: str) -> bool:
    together, leads = _TOGETHER.get(language, _NONE), RECIPIENT_WORDS | _LEADS.get(language, _NONE)
    for i, lower in enumerate(lowers):
        if lower in together or (lower in RELATIONS and i > 0 and lowers[i - 1] in POSSESSIVES):
            return True
        if lower in MESSAGE_WORDS and any(word in leads for word in lowers[i + 1 : i + 4]):
            return True
    return False


@dataclass(frozen=True)
class _UnlistedNameSearch:
    """One walk over the words of one text that is about people."""

    words: Words
    context: WordContext
    language: str
    names: frozenset[str]
    contact: bool

    def run(self) -> Iterator[Span]:
        w, done = self.words, -1
        opening = [w.is_capital(i) for i in range(len(w)) if i == 0 or _OPENS.search(w.gap(i - 1))]
        in_lower_case = sum(opening) * 3 <= len(opening)
        for i in range(len(w)):
            if i <= done:
                continue
            if w.is_capital(i):
                if not (self._is_unknown(i) or self._is_proper(i)) or self._is_thing(i) or self._is_mention(i):
                    continue
                done = self.context.extend(i)
                place = i > 0 and w.lowers[i - 1] in _IN and w.gap(i - 1) == " "
            elif in_lower_case and (self.contact or self._is_led(i)) and self._may_be_name(i):
                done, place = self._end(i), False
            else:
                continue
            yield Span(w.starts[i], w.ends[done], "LOCATION" if place else "PERSON", 0.4)

    def _is_unknown(self, i: int) -> bool:
        """Whether word i is a plain word that stands in no list and no dictionary."""
        w, lower, word = self.words, self.words.lowers[i], self.words.written[i]
        if len(lower) < 3 or not _SHAPE.match(word) or word.isupper() or word[1:] != word[1:].lower() or w.is_code(i):
            return False
        lex = self.context.lexicon
        if (
            lower in lex.common
            or lower in lex.cities
            or lower in _TERMS
            or lower in PARTICLES
            or self.context.is_stop(i)
        ):
            return False
        if _ODD.search(lower) or is_known(lower, self.language):
            return False
        # A capital letter inside a sentence is evidence enough that it is no compound and no slang; not in German.
        proper = w.is_capital(i) and not self.context.nouns_are_capital
        return proper or not (lower in _SLANG or is_compound(lower, self.language))

    def _is_proper(self, i: int) -> bool:
        """Whether a capital letter inside a sentence makes a name of a word that only some dictionary holds."""
        w, lower, word = self.words, self.words.lowers[i], self.words.written[i]
        if self.language not in FEW_CAPITALS or w.starts_sentence(i) or not _SHAPE.match(word) or w.is_code(i):
            return False
        if len(lower) < 4 or word[1:] != word[1:].lower() or lower in _TERMS or self.context.is_word(i):
            return False
        alone = not (w.is_capital(i - 1) or (i + 1 < len(w) and w.is_capital(i + 1) and w.gap(i) == " "))
        return alone and w.gap(i - 1) == " "

    def _is_thing(self, i: int) -> bool:
        """Whether an article stands before the capitalised word, or a company's form behind it."""
        w, last = self.words, self.context.extend(i)
        before = w.lowers[i - 1] if i > 0 and w.gap(i - 1) == " " else ""
        named = before in _IN or before in _ARTICLES_BEFORE_NAMES.get(self.language, ())
        return (before in DETERMINERS and not named) or (last + 1 < len(w) and w.lowers[last + 1] in COMPANY)

    def _is_mention(self, i: int) -> bool:
        """Whether word i is a name found before, with an ending of a case."""
        lower = self.words.lowers[i]
        return self.language in CASE_ENDINGS and any(lower[:-size] in self.names for size in (1, 2, 3))

    def _is_led(self, i: int) -> bool:
        """Whether the word before leads to a person, or the word opens a clause and a verb of people follows."""
        w, gap = self.words, self.words.gap(i - 1) if i else "\n"
        if gap == " ":
            before = w.lowers[i - 1]
            led = any(before in words for words in (RECIPIENT_WORDS, RELATIONS, SPEECH_VERBS, CONJUNCTIONS))
            return led or before in _LEADS.get(self.language, _NONE) or self.context.is_title(i - 1)
        if gap.strip(" ,.!?;\n") or i + 1 == len(w) or w.gap(i) != " ":
            return False
        return w.lowers[i + 1] in HUMAN_VERBS or w.lowers[i + 1] in _DOES.get(self.language, _NONE)

    def _may_be_name(self, i: int) -> bool:
        """Whether a word in lower case is a listed name and no other word, or unknown and no slip."""
        lower, lex = self.words.lowers[i], self.context.lexicon
        listed = lower in lex.sure_names or (lower in lex.last_names and not is_known(lower, self.language))
        if lower in HUMAN_VERBS or lower in RELATIONS:
            return False
        if listed and lower not in lex.common and len(lower) > 3:
            return True
        return self._is_unknown(i) and (self.contact or not is_misspelling(lower, self.language))

    def _end(self, i: int) -> int:
        """The last word of the name in lower case that begins at word i."""
        w, lex, last = self.words, self.context.lexicon, i
        while last - i < 2 and last + 1 < len(w) and w.gap(last) == " ":
            following = w.lowers[last + 1]
            listed = following in lex.last_names or (self.language == "pl" and bool(_POLISH.search(following)))
            if not (listed and following not in lex.common) and not self._is_unknown(last + 1):
                break
            last += 1
        return last
