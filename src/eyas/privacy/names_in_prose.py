"""Names in running prose that stand in no list: by who is named, by what they do, by their age, by a pronoun.

"text to my sister zofka about"   a relation, and what follows it
"nachricht an Zorvek"             a message to somebody
"R. Garenstead"                   an initial
"Zorvek (34)", "Zorvek, 34,"      an age
"Zorvek wohnt in"                 a verb whose subject is a person
"Zorvek ... She"                  a pronoun of a person behind it
"""

import re
from dataclasses import dataclass

from eyas.privacy.context_words import COMPANY, CONJUNCTIONS, DETERMINERS
from eyas.privacy.dictionary import is_known
from eyas.privacy.lexicon import PARTICLES, Lexicon
from eyas.privacy.name_phrases import PERSON_VERBS
from eyas.privacy.relation_words import (
    AMBIGUOUS_VERBS,
    CLAUSE_WORDS,
    GERMAN_LEADS,
    HUMAN_VERBS,
    MESSAGE_WORDS,
    PERSONAL_PRONOUNS,
    POSSESSIVES,
    RECIPIENT_WORDS,
    RELATIONS,
)
from eyas.privacy.tokens import Words
from eyas.privacy.word_context import WordContext

_SPACES = (" ", "\u00a0")
_AGE = re.compile(r" \((?:1\d|[2-9]\d)\)|, (?:[1-9]|[1-9]\d)(?:,| (?:years|jahre|ans|años|anni|anos|jaar|lat|år)\b)")
_ENDS = re.compile(r"[ ]?(?:[,.!?;:\n)]|\Z)")
# Endings of verbs and adjectives in lower case, which hardly end a name behind "my sister".
_NO_NAME = re.compile(r".{2,}(?:s|ed|ing|ly|er|ir|ar|re|ra|ría|ando|endo|ował|owała|nie|łby|t|te|ten|ade|ar|ade)\Z")
_ABOUT = frozenset("about saying asking telling wegen dass über sobre dizendo diciendo dicendo over że om att".split())  # noqa: SIM905
# Small words between a name and its verb: "a dit", "me preguntó", "ha detto".
_BETWEEN = frozenset("a ha me te le les se si mi ti ci lhe nos nous vous m'a się mnie mi has had har heeft hat".split())  # noqa: SIM905
_PARTICIPLES = frozenset(
    """
    dit demandé écrit répondu adoré parlé pensé detto chiesto scritto risposto raccontato pensato dicho escrito dito
    sagt skrivit frågat gezegd gevraagd geschreven asked told said married
    """.split()  # noqa: SIM905
)
_TOLD = frozenset("that me us him her them dass que che że att dat his".split())  # noqa: SIM905
_COUNTED = frozenset("has had gives gave got takes needs wants bought sold ordered received saved".split())  # noqa: SIM905
LEADING = RELATIONS | RECIPIENT_WORDS  # words that a name may follow
_CHAIN = 24  # words behind a name in which a pronoun of a person speaks for it


@dataclass(frozen=True)
class ProseNames:
    """Questions about word i of one text: where the name ends that begins beside it."""

    words: Words
    lexicon: Lexicon
    context: WordContext
    language: str

    def name_after(self, i: int) -> tuple[int, int] | None:
        """First and last word of the name that follows word i: a relation or "message to"."""
        w, lower = self.words, self.words.lowers[i]
        if i + 1 >= len(w) or w.gap(i) not in _SPACES:
            return None
        owned = False
        if lower in RELATIONS:
            owned = i > 0 and w.lowers[i - 1] in POSSESSIVES
        elif not (lower in RECIPIENT_WORDS and any(word in MESSAGE_WORDS for word in w.lowers[max(0, i - 2) : i])):
            return None
        first = i + 1
        if (
            w.lowers[first] in DETERMINERS
            or w.lowers[first] in RELATIONS
            or self.context.is_stop(first)
            or w.is_code(first)
        ):
            return None
        if w.is_capital(first):
            sure = owned or self.context.nouns_are_capital
            if not sure and (self.context.is_word(first) or self._is_title_case(i, first)):
                return None
            return self._capital(first, place=lower in RECIPIENT_WORDS)
        return self._lower(first) if owned or lower in RECIPIENT_WORDS else None

    def _is_title_case(self, i: int, first: int) -> bool:
        """ "Teacher Appreciation Week", "customer Acme Corp": a heading or a firm."""
        w = self.words
        last = self.context.extend(first)
        following = last + 1 < len(w) and w.gap(last) in _SPACES and w.is_capital(last + 1)
        return following and (w.is_capital(i) or w.lowers[last + 1] in COMPANY)

    def _capital(self, first: int, place: bool) -> tuple[int, int] | None:
        lower = self.words.lowers[first]
        # Behind a relation the ending of a word ("-lein") is no evidence, the list of words is.
        word = self.context.is_word(first) if place else lower in self.lexicon.common
        if word and not (lower in self.lexicon.sure_names or lower in self.lexicon.ambiguous):
            return None
        if (self.context.nouns_are_capital and word) or self.words.written[first].isupper():
            return None
        if place and lower in self.lexicon.cities and lower not in self.lexicon.sure_names:
            return None
        return first, self.context.extend(first)

    def _lower(self, first: int) -> tuple[int, int] | None:
        w, lower = self.words, self.words.lowers[first]
        if (
            self.context.is_word(first)
            or len(lower) < 3
            or lower in RELATIONS
            or lower in MESSAGE_WORDS
            or "'" in lower
            or lower in PERSON_VERBS
            or (is_known(lower, self.language) and lower not in self.lexicon.sure_names)
        ):
            return None
        following = w.lowers[first + 1] if first + 1 < len(w) and w.gap(first) in _SPACES else ""
        sure = lower in self.lexicon.sure_names
        ends = bool(_ENDS.match(w.text, w.ends[first]))
        if w.lowers[first - 1] in RECIPIENT_WORDS and not sure:
            # "email to convince him": a verb follows as often; about whom or what does not follow a verb.
            return (first, first) if following in _ABOUT and not _NO_NAME.match(lower) else None
        if sure or (
            (ends or following in CLAUSE_WORDS or following in HUMAN_VERBS - AMBIGUOUS_VERBS)
            and not _NO_NAME.match(lower)
        ):
            return first, first
        return None

    def name_at(self, i: int) -> tuple[int, int] | None:
        """First and last word of the name that begins at the capitalised word i, which is in no list."""
        w = self.words
        if w.is_initial(i):
            return self._initial(i)
        if self.context.is_word(i) or not self._is_shaped(i):
            return None
        last = self.context.extend(i)
        if self.context.nouns_are_capital:
            return self._german(i, last)
        if _AGE.match(w.text, w.ends[last]) or self._speaks(i, last) or self._has_pronoun(i, last):
            return i, last
        return None

    def _is_shaped(self, i: int) -> bool:
        w, word = self.words, self.words.written[i]
        return (
            len(word) > 2
            and not word.isupper()
            and not w.is_code(i)
            and w.lowers[i] not in self.lexicon.cities
            and w.lowers[i] not in PARTICLES
            and (i == 0 or w.lowers[i - 1] not in DETERMINERS or w.gap(i - 1) not in _SPACES)
        )

    def _initial(self, i: int) -> tuple[int, int] | None:
        """ "R. Garenstead", "J.R. Garenstead"; the letter of a list ("A. Answer") begins its line."""
        w = self.words
        k = i
        while k + 1 < len(w) and w.is_initial(k + 1) and w.gap(k) in (".", ". ", " ") and k - i < 3:
            k += 1
        line_start = i == 0 or "\n" in w.gap(i - 1)
        if k + 1 >= len(w) or w.gap(k) not in (". ", ".") or line_start:
            return None
        first = k + 1
        if w.lowers[first] in PARTICLES and self.context.particle_continues(first):
            return i, self.context.extend(i)
        good = w.is_capital(first) and not self.context.is_word(first) and len(w.written[first]) > 3
        return (i, self.context.extend(first)) if good and not w.written[first].isupper() and not w.is_code(i) else None

    def _speaks(self, i: int, last: int) -> bool:
        w = self.words
        if last + 2 >= len(w) or w.gap(last) not in _SPACES:
            return False
        verb, behind = w.written[last + 1], w.written[last + 2]
        if verb in CONJUNCTIONS:
            return behind in PERSONAL_PRONOUNS and w.starts_sentence(i)
        if verb in _BETWEEN and (behind in HUMAN_VERBS or behind in _PARTICIPLES):
            return True
        # "Photosynthesis works": what opens a sentence needs a verb that people alone do.
        thing = w.starts_sentence(i) and last == i and verb in AMBIGUOUS_VERBS and behind not in _TOLD
        return verb in HUMAN_VERBS and not thing

    def is_thing(self, i: int) -> bool:
        """Whether a thing may be meant: "Photosynthesis works by", but not "Zorvek has 12" or "Zorvek said"."""
        w = self.words
        verb = w.written[i + 1] if i + 1 < len(w) else ""
        if i + 2 < len(w) and w.written[i + 2] in _TOLD:
            return False
        counts = verb in _COUNTED and any(char.isdigit() for char in w.text[w.ends[i] : w.ends[i] + 30])
        return w.starts_sentence(i) and verb in AMBIGUOUS_VERBS and not counts

    def _has_pronoun(self, i: int, last: int) -> bool:
        """ "Zorvek has 12 apples. She ...": a pronoun of a person soon behind what opens a sentence with a verb."""
        w = self.words
        if not (
            w.starts_sentence(i) and last + 1 < len(w) and w.gap(last) in _SPACES and w.written[last + 1].islower()
        ):
            return False
        verb = w.written[last + 1]
        if not (
            verb in AMBIGUOUS_VERBS
            or verb in HUMAN_VERBS
            or verb in ("is", "was", "är", "var")
            or verb.endswith(("s", "ed"))
        ):
            return False
        return any(word in PERSONAL_PRONOUNS for word in w.lowers[last + 2 : last + _CHAIN])

    def _german(self, i: int, last: int) -> tuple[int, int] | None:
        """In German every noun is capitalised: a word before it that leads no noun, and a verb or an age behind."""
        w = self.words
        start = w.starts_sentence(i)
        led = i > 0 and w.gap(i - 1) in _SPACES and w.lowers[i - 1] in GERMAN_LEADS
        if not (start or led):
            return None
        age = bool(_AGE.match(w.text, w.ends[last]))
        speaks = last + 1 < len(w) and w.gap(last) in _SPACES and w.written[last + 1] in HUMAN_VERBS
        if speaks and start and last == i:
            speaks = w.written[last + 1] not in AMBIGUOUS_VERBS
        two = led and last > i and not w.lowers[i].endswith(("en", "er", "ung"))
        return (i, last) if age or speaks or two else None
