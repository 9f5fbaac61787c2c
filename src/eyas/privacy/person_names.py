"""Names of people: by Faker's lists, by the phrases beside them, and by their shape.

    "my name is tevita fifita"   a phrase, and what follows it
    "Patient: Fifita, Tevita"    a field
    "asked Tevita Fifita about"  two capitalised words that are no words, in the middle of a sentence
    "Natalia sold clips"         a first name that is no word
    "Mark has five apples"       a first name that is a word too: only beside a verb, a title, a last name

Every word is looked at once and its neighbours a bounded number of times: linear in the text.
"""

import re
from dataclasses import dataclass

from eyas.privacy.context_words import (
    CLAUSE_STARTS,
    COMPANY,
    CONJUNCTIONS,
    DETERMINERS,
    MONTHS,
    NAMES_AFTER_TITLES,
    SELF_INTRODUCTIONS,
    SPEECH_VERBS,
    TRANSFER_VERBS,
    USER_LABELS,
    WEAK_LABELS,
)
from eyas.privacy.letters import GROUP_ADDRESSEES
from eyas.privacy.lexicon import PARTICLES, PRONOUNS, Lexicon
from eyas.privacy.name_phrases import PERSON_VERBS, Cue, index_phrases
from eyas.privacy.names_in_prose import LEADING, ProseNames
from eyas.privacy.relation_words import AMBIGUOUS_VERBS
from eyas.privacy.span import Span
from eyas.privacy.technical_terms import BRANDS, TERMS, is_quoted_word, is_technical
from eyas.privacy.tokens import Words, split_words
from eyas.privacy.value_matcher import NON_VALUES
from eyas.privacy.word_context import WordContext

_SPACE = re.compile(r"[ \u00a0]{1,2}\Z")
_GAPS = {
    Cue.INTRO: re.compile(r"[\s:,\"'“”*_-]{1,4}\Z"),
    Cue.HINT: re.compile(r"[ \u00a0]{1,2}[\"“]?\Z"),
    Cue.TITLE: re.compile(r"(?:\.[ \u00a0]{0,2}|[ \u00a0]{1,2}|\.?/?[a-z]{0,2}\.?[ ])\Z"),
    Cue.LABEL: re.compile(
        r"(?:[\"'’`*\]) ]{0,4}(?::|=|=>|->|:=|\t|\|)\s{0,12}[\"'`*“<(\[]{0,3}|\s?>\s?|[ \t]*\n\s{0,12})\Z"
    ),
    Cue.RELATION: re.compile(r"(?:[ \u00a0]{1,2}|, ?| \(|: ?)\Z"),
    Cue.GREETING: re.compile(r",?[ \u00a0]{1,2}\Z"),
    Cue.CLOSING: re.compile(r"(?:[,.!]?\s{0,3}\n\s{0,6}[-–—~]?\s{0,2}|,[ ]{1,2}|[ ]?[-–—]{1,2}[ ]?|[ ])\Z"),
}
_CLAUSE_END = re.compile(r"[ ]?(?:[,.!?;\n-]|\Z)")
_CLOSED = re.compile(r"\s{0,3}(?:[,!\n]|\Z)")
_LINE_END = re.compile(r"[ \t.!,]{0,3}(?:\n|\Z)")


@dataclass(frozen=True)
class PersonNameDetector:
    """Finds the people of a text."""

    lexicon: Lexicon

    def find(self, text: str, language: str) -> list[Span]:
        """Spans of kind PERSON, in order."""
        return _NameSearch(split_words(text), self.lexicon, language).run()


class _NameSearch:
    """One walk over the words of one text."""

    def __init__(self, words: Words, lexicon: Lexicon, language: str) -> None:
        self.words = words
        self.lexicon = lexicon
        self.language = language
        self.context = WordContext(words, lexicon, language)
        self.prose = ProseNames(words, lexicon, self.context, language)
        self.technical: bool | None = None  # looked up when a term stands in the text
        self.spans: list[Span] = []
        self.done = -1  # the last word that is part of a name already

    def run(self) -> list[Span]:
        cues = index_phrases()
        lex, lowers = self.lexicon, self.words.lowers
        for i, lower in enumerate(lowers):
            if lower in cues:
                self._behind_phrase(i, cues[lower])
            behind = self.prose.name_after(i) if lower in LEADING else None
            if behind and behind[0] > self.done:
                self._take(*behind, 0.6)
            # Without a capital letter a phrase alone makes a name.
            if i <= self.done or not self.words.written[i][0].isupper() or self._is_term(i):
                continue
            if lower in BRANDS and lower not in lex.sure_names:
                continue
            if lower in lex.first_names:
                self._first_name(i)
            else:
                self._unknown(i)
            found = self.prose.name_at(i) if i > self.done else None
            if found:
                self._take(*found, 0.5)
        return self.spans

    def _is_term(self, i: int) -> bool:
        """ "Gauss", "Julia", "Boyer-Moore" in a technical text, where nothing says that a person is meant."""
        w = self.words
        if w.lowers[i] not in TERMS or self.context.has_person_verb(i):
            return False
        before = w.lowers[max(0, i - 1)]
        if before in self.lexicon.sure_names and before not in TERMS:
            return False
        following = i + 1 < len(w) and w.gap(i) == " " and w.is_capital(i + 1) and w.lowers[i + 1] not in TERMS
        if following and w.lowers[i + 1] in self.lexicon.last_names and not self.context.is_word(i + 1):
            return False
        if self.technical is None:
            self.technical = is_technical(w.text)
        return self.technical

    def _take(self, first: int, last: int, score: float) -> bool:
        if first == last and is_quoted_word(self.words.text, self.words.starts[first], self.words.ends[first]):
            return False
        if last > self.done:
            self.spans.append(Span(self.words.starts[first], self.words.ends[last], "PERSON", score))
            self.done = last
        return True

    # Phrases.

    def _behind_phrase(self, i: int, group: tuple) -> None:
        w = self.words
        for phrase in group:
            size = len(phrase.before)
            if size and w.lowers[max(0, i - size) : i] != phrase.before:
                continue
            first = i + 1
            if first >= len(w) or not _GAPS[phrase.cue].match(w.gap(i)):
                continue
            if phrase.cue is Cue.LABEL and "\n" in w.gap(i) and ":" not in w.gap(i) and not size:
                continue
            if phrase.cue is Cue.HINT and self._is_term(first):
                continue
            if phrase.cue is not Cue.LABEL and self.context.is_title(first):
                continue  # the title itself is a phrase
            if self._captured(phrase.cue, i, first, size):
                return

    def _captured(self, cue: Cue, i: int, first: int, size: int) -> bool:
        if cue is Cue.INTRO:
            return self._introduced(first)
        if cue is Cue.LABEL:
            return self._labelled(i, first, size)
        if cue is Cue.TITLE:
            w = self.words
            if "." in w.gap(i) and len(w.written[i]) > 4 and "\n" not in w.gap(i):
                return False  # a word at a sentence's end, no abbreviation
            good = w.is_capital(first) and (not self.context.is_stop(first) or w.lowers[first] in NAMES_AFTER_TITLES)
            if w.lowers[first] in PARTICLES and self.context.particle_continues(first):
                return self._take(first, self.context.extend(first), 0.9)
            lower = w.lowers[first]
            # "aunt smith", but not "aunt said".
            lower_title = (
                lower in self.lexicon.last_names and not self.context.is_word(first) and lower not in PERSON_VERBS
            )
            return (good or lower_title) and self._take(first, self.context.extend(first, strong=True), 0.9)
        if cue is Cue.GREETING:
            return self._greeted(first)
        if cue is Cue.CLOSING:
            return self._closed(first)
        return self._someone(first, cue) or (cue is Cue.HINT and self._self_introduced(i, first, size))

    def _self_introduced(self, i: int, first: int, size: int) -> bool:
        """Behind a greeting or at the start, in lower case: "hola soy tevita,"."""
        w = self.words
        begin = i - size
        if (
            w.lowers[i] not in SELF_INTRODUCTIONS
            or w.is_capital(first)
            or self.context.is_word(first)
            or len(w.written[first]) < 3
        ):
            return False
        greeted = begin == 0 or any(
            phrase.cue is Cue.GREETING for phrase in index_phrases().get(w.lowers[begin - 1], ())
        )
        return greeted and bool(_CLAUSE_END.match(w.text, w.ends[first])) and self._take(first, first, 0.6)

    def _introduced(self, first: int) -> bool:
        w, lex = self.words, self.lexicon
        lower = w.lowers[first]
        if self.context.is_stop(first) and not (w.is_capital(first) and lower in lex.first_names):
            return False
        if w.is_capital(first):
            return self._take(first, self.context.extend(first, strong=True), 0.9)
        if self.context.is_word(first) and lower not in lex.ambiguous:
            return False
        last = first
        while last + 1 < len(w) and last - first < 3 and _SPACE.match(w.gap(last)):
            following = w.lowers[last + 1]
            if following in PARTICLES and last + 2 < len(w) and w.lowers[last + 2] not in lex.common:
                last += 2
            elif (self.context.is_word(last + 1) and following not in lex.last_names) or following in lex.stop:
                break
            else:
                last += 1
        return self._take(first, last, 0.8)

    def _labelled(self, i: int, first: int, size: int) -> bool:
        w, lex = self.words, self.lexicon
        lower, label = w.lowers[first], w.lowers[i]
        weak = not size and label in WEAK_LABELS
        if self.context.is_title(first):
            return False
        known = lower in lex.first_names or lower in lex.last_names
        if self.context.is_stop(first) and not (known and w.is_capital(first)):
            return False
        if label in USER_LABELS or label == "name":
            dotted = self._dotted(first)
            if dotted is not None:
                return self._take(first, dotted, 0.7)
        if lower in NON_VALUES or w.is_code(first) or w.text.startswith("[", w.ends[first]):
            return False
        if self.context.is_word(first) and not known:
            return False
        if not w.is_capital(first):
            sure = lower in lex.sure_names if weak else not self.context.is_word(first)
            return sure and not w.is_code(first) and self._take(first, self.context.extend(first, any_case=True), 0.7)
        last = self.context.extend(first, comma=True, strong=True)
        if last + 1 < len(w) and w.lowers[last + 1] in COMPANY and w.gap(last).strip(" ,") == "":
            return False
        if last == first and (weak or lower in lex.cities) and lower not in lex.sure_names:
            return False
        return self._take(first, last, 0.85)

    def _dotted(self, first: int) -> int | None:
        """The last word of a user's name such as anna.schmidt or tevita_fifita; None where it is none."""
        w, lex = self.words, self.lexicon
        if first + 1 >= len(w) or w.gap(first) not in (".", "_") or len(w.written[first]) < 2:
            return None
        pair = w.lowers[first], w.lowers[first + 1]
        if pair[0] in lex.sure_names or (w.gap(first) == "." and not any(part in lex.common for part in pair)):
            return first + 1
        return None

    def _greeted(self, first: int) -> bool:
        w, lex = self.words, self.lexicon
        lower = w.lowers[first]
        if self.context.is_stop(first) or lower in GROUP_ADDRESSEES:
            return False
        if w.is_capital(first):
            if self.context.is_word(first) and lower not in lex.first_names:
                return False
            last = self.context.extend(first)
            sure = lower in lex.first_names or last > first or bool(_CLOSED.match(w.text, w.ends[last]))
            return sure and self._take(first, last, 0.8)
        if "," in w.gap(first - 1):
            return False
        unknown = not self.context.is_word(first) and bool(_CLOSED.match(w.text, w.ends[first])) and len(lower) > 2
        return (lower in lex.sure_names or unknown) and not w.is_code(first) and self._take(first, first, 0.6)

    def _closed(self, first: int) -> bool:
        w, lex = self.words, self.lexicon
        lower = w.lowers[first]
        if (self.context.is_stop(first) and lower not in lex.first_names) or (
            not w.is_capital(first) and w.gap(first - 1) == " "
        ):
            return False
        last = self.context.extend(first, any_case=not w.is_capital(first), strong=True)
        if not _LINE_END.match(w.text, w.ends[last]) or (self.context.is_word(first) and lower not in lex.first_names):
            return False
        return (w.is_capital(first) or "'" not in lower) and self._take(first, last, 0.8)

    def _someone(self, first: int, cue: Cue) -> bool:
        w, lex = self.words, self.lexicon
        lower = w.lowers[first]
        if self.context.is_stop(first) or w.is_code(first) or w.written[first] in PERSON_VERBS:
            return False
        if not w.is_capital(first):
            known = lower in lex.sure_names and lower not in lex.cities
            unknown = cue is Cue.RELATION and not self.context.is_word(first)
            told = w.lowers[first - 1] in SPEECH_VERBS and w.text[:1].islower() and not self.context.is_word(first)
            told = told and first + 1 < len(w) and w.lowers[first + 1] in CLAUSE_STARTS
            if (
                known
                or told
                or (unknown and self.context.has_person_verb(first) and w.lowers[first + 1] not in AMBIGUOUS_VERBS)
            ):
                return self._take(first, self.context.extend(first, any_case=True), 0.6)
            return False
        if lower in lex.first_names:
            if lower in lex.ambiguous and w.lowers[first - 1] in CONJUNCTIONS and not self._is_behind_person(first - 1):
                return False  # "War and Peace"
            place = (
                lower in lex.ambiguous and lower in lex.cities and w.lowers[first - 1] in (*CONJUNCTIONS, "with", "met")
            )
            return (
                not self.context.nouns_are_capital
                and not place
                and lower not in lex.common
                and self._take(first, self.context.extend(first), 0.7)
            )
        if (self.context.nouns_are_capital and cue is Cue.HINT) or self.context.is_word(first) or lower in lex.cities:
            return False
        last = self.context.extend(first)
        # One unknown word behind "with" or "from" is a product as often as a person.
        sure = (
            cue is Cue.RELATION
            or last > first
            or self.context.has_person_verb(last)
            or w.lowers[first - 1] in SPEECH_VERBS
        )
        return sure and len(lower) > 2 and not w.written[first].isupper() and self._take(first, last, 0.6)

    # No phrase.

    def _first_name(self, i: int) -> None:
        w, lex = self.words, self.lexicon
        lower = w.lowers[i]
        if w.is_code(i) or (self.context.is_title(i) and lower not in lex.sure_names):
            return
        last = self.context.extend(i)
        if lower in lex.sure_names and (len(w.written[i]) > 2):
            if w.written[i].isupper() and last == i and not self.context.is_among_capitals(i):
                return
            if lower in lex.cities and last == i and self.context.follows_place_word(i):
                return
            if (
                lower in PRONOUNS.get(self.language, ()) and last == i and w.starts_sentence(i)
            ) or self.context.is_date(i):
                return
            alone = last == i and w.starts_sentence(i) and lower not in lex.core_names
            if (
                alone and not self.context.has_person_verb(i) and not self.context.fits_sentence_start(i)
            ) or self.context.is_thing_name(last):
                return  # a word that some far list holds as a name
            self._take(self._before(i), last, 0.8)
        elif last > i and self.context.has_last_name(i, last):
            self._take(i, last, 0.7)
        elif (lower in lex.ambiguous and self.context.has_person_verb(i) and lower not in MONTHS | DETERMINERS) or (
            lower in lex.ambiguous and not self.context.nouns_are_capital and self.context.is_lone_capital(i)
        ):
            self._take(i, last, 0.5)

    def _before(self, i: int) -> int:
        """The first word of the name: "Fifita, Tevita" and "Te Anna" begin before their known first name."""
        w, lex = self.words, self.lexicon
        if (
            i == 0
            or i - 1 <= self.done
            or not w.is_capital(i - 1)
            or (self.context.nouns_are_capital and w.gap(i - 1) == " ")
        ):
            return i
        lower, gap = w.lowers[i - 1], w.gap(i - 1)
        if gap == ", " and lower in lex.last_names and lower not in lex.common and lower not in lex.cities:
            return i - 1
        unknown = lower not in lex.common and not w.written[i - 1].isupper() and not w.starts_sentence(i - 1)
        return i - 1 if gap in (" ", "-") and unknown else i

    def _unknown(self, i: int) -> None:
        """A capitalised word that is in no list of first names: a name beside a last name or a verb."""
        w, lex = self.words, self.lexicon
        lower = w.lowers[i]
        if self.context.is_word(i) or len(lower) < 3 or w.written[i][1:] != w.written[i][1:].lower() or w.is_code(i):
            return
        if lower in lex.cities:
            return
        last = self.context.extend(i)
        if last > i:
            tail = [w.lowers[k] for k in range(i + 1, last + 1) if w.lowers[k] not in PARTICLES]
            listed = any(part in lex.last_names and part not in lex.common and len(part) > 3 for part in tail)
            if last + 1 < len(w) and w.lowers[last + 1] in COMPANY:
                return
            if any(self._is_term(k) for k in range(i + 1, last + 1)):
                return
            start = w.starts_sentence(i)
            # A German sentence may begin with a verb and a noun: "Erstelle Tabelle".
            verb = start and self.context.nouns_are_capital and lower.endswith(("e", "en", "ern"))
            if (
                (listed and not verb)
                or (self.context.has_person_verb(last) and not verb)
                or (self.context.is_joined(last) and not start)
                or (not w.starts_sentence(i) and not self.context.nouns_are_capital)
            ):
                self._take(i, last, 0.5)
        elif (
            self.context.has_person_verb(i)
            and not self.context.nouns_are_capital
            and lower not in PARTICLES
            and not self.prose.is_thing(i)
        ) or (self.spans and not self.context.nouns_are_capital and self._beside_person(i)):
            self._take(i, i, 0.4)

    def _is_behind_person(self, i: int) -> bool:
        return i > 0 and bool(self.spans) and self.spans[-1].end >= self.words.ends[i - 1]

    def _beside_person(self, i: int) -> bool:
        """One unknown word where a second person is expected: "Anna and Weng", "gives 3 to Weng"."""
        w = self.words
        if i == 0 or w.gap(i - 1) != " " or w.written[i].isupper():
            return False
        before = w.lowers[i - 1]
        if before in CONJUNCTIONS or before == "than":
            return self.spans[-1].end >= w.starts[max(0, i - 2)]
        return before in ("to", "from") and any(word in TRANSFER_VERBS for word in w.lowers[max(0, i - 6) : i - 1])
