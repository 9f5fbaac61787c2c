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

from eyas.privacy.entity import Span
from eyas.privacy.lexicon import PARTICLES, PRONOUNS, Lexicon
from eyas.privacy.phrase import SPEAKS, Cue, phrases
from eyas.privacy.words import Words, split

MAX_PARTS = 6  # words in a name: "Maria do Carmo da Silva Santos"

_SPACE = re.compile(r"[ \u00a0]{1,2}\Z")
_GAPS = {
    Cue.INTRO: re.compile(r"[\s:,\"'“”*_-]{1,4}\Z"),
    Cue.PERHAPS: re.compile(r"[ \u00a0]{1,2}[\"“]?\Z"),
    Cue.TITLE: re.compile(r"(?:\.[ \u00a0]{0,2}|[ \u00a0]{1,2}|\.?/?[a-z]{0,2}\.?[ ])\Z"),
    Cue.LABEL: re.compile(
        r"(?:[\"'’`*\]) ]{0,4}(?::|=|=>|->|:=|\t|\|)\s{0,12}[\"'`*“<(\[]{0,3}|\s?>\s?|[ \t]*\n\s{0,12})\Z"
    ),
    Cue.PERSON: re.compile(r"(?:[ \u00a0]{1,2}|, ?| \(|: ?)\Z"),
    Cue.GREET: re.compile(r",?[ \u00a0]{1,2}\Z"),
    Cue.CLOSE: re.compile(r"(?:[,.!]?\s{0,3}\n\s{0,6}[-–—~]?\s{0,2}|,[ ]{1,2}|[ ]?[-–—]{1,2}[ ]?|[ ])\Z"),
}
_CLAUSE_END = re.compile(r"[ ]?(?:[,.!?;\n-]|\Z)")
_CLOSED = re.compile(r"\s{0,3}(?:[,!\n]|\Z)")
_LINE_END = re.compile(r"[ \t.!,]{0,3}(?:\n|\Z)")
_SIGNED = re.compile(r"(?:\A|\n)[ \t]{0,3}[-–—~]{1,2}[ \t]?\Z")
# Fields that hold other things as often as people.
_WEAK_LABELS = frozenset(
    ["name", "from", "to", "von", "an", "de", "à", "para", "van", "aan", "od", "do", "från", "till", "user", "username", "owner", "host", "agent", "driver", "contact", "kontakt", "cc", "bcc", "contato", "contacto", "contatto", "client", "member", "from", "author", "reviewer", "holder", "provider", "nom", "nombre", "nome", "naam", "namn"]
)
_USER_LABELS = frozenset(["user", "username", "login", "author", "owner", "assignee", "reporter", "reviewer", "committer", "member"])
_COMPANY = frozenset(["gmbh", "inc", "ltd", "llc", "corp", "ag", "kg", "bv", "nv", "sa", "srl", "spa", "sl", "sas", "sarl", "oy", "ab", "as", "co", "plc", "group", "company"])
_DETERMINERS = frozenset(
    ["the", "a", "an", "this", "that", "these", "those", "every", "each", "any", "no", "some", "in", "on", "of", "at", "der", "die", "das", "ein", "eine", "dem", "den", "des", "im", "am", "le", "la", "les", "un", "une", "el", "los", "las", "il", "lo", "gli", "o", "os", "as", "um", "uma", "het", "een", "en", "ett"]
)
_MONTHS = frozenset(["may", "april", "june", "august", "march", "july", "mai", "juni", "juli", "mars", "abril", "mayo", "julio", "maj", "marzo"])
# Endings of words that hardly end a name.
_WORD_ENDING = re.compile(
    r".{2,}(?:tion|sion|tions|sions|ment|ments|ness|less|ically|ology|graphy|ance|ence|ible|able|ables|ware|ships?|hood|ized?|ised"
    r"|ful|fully|ity|ities|ism|isms|ists|ous|ously|ively|ive|ives|ating|ating|ated|ates|ifying|ified|ual|ually|ility|ologist|ics"
    r"|zione|zioni|mente|idad|idades|dade|dades|ção|ções|ión|iones|eurs|euse|aires?|ements?|iques?|ość|ości|ować|anie|enie|ning|het)\Z"
)
_FORMS = ("s", "es", "ed", "d", "ing", "ly", "er", "n")
_PLACE_WORDS = frozenset(
    ["in", "to", "from", "at", "near", "around", "of", "visit", "visited", "via", "nach", "aus", "in", "bei", "à", "de", "en", "a", "da", "em", "para", "w", "we", "z", "do", "i", "från", "till", "te", "uit", "naar"]
)
_GERMAN_NOUN = re.compile(
    r".{2,}(?:ung|ungen|heit|keit|keiten|schaft|tion|tionen|tät|nis|tum|ment|chen|lein|ling|keits|rechnung|ismus|ität)\Z"
)


@dataclass(frozen=True)
class Names:
    """Finds the people of a text."""

    lexicon: Lexicon

    def find(self, text: str, language: str) -> list[Span]:
        """Spans of kind PERSON, in order."""
        return _Search(split(text), self.lexicon, language).run()


class _Search:
    """One walk over the words of one text."""

    def __init__(self, words: Words, lexicon: Lexicon, language: str) -> None:
        self.w = words
        self.lex = lexicon
        self.language = language
        self.nouns_are_capital = language == "de"
        self.spans: list[Span] = []
        self.done = -1  # the last word that is part of a name already

    def run(self) -> list[Span]:
        cues = phrases()
        lex, lowers = self.lex, self.w.lowers
        for i, lower in enumerate(lowers):
            if lower in cues:
                self._behind_phrase(i, cues[lower])
            if i <= self.done:
                continue
            if lower in lex.first_names:
                self._first_name(i)
            elif self.w.words[i][0].isupper():
                self._unknown(i)
        return self.spans

    def _take(self, first: int, last: int, score: float) -> bool:
        if last > self.done:
            self.spans.append(Span(self.w.begins[first], self.w.ends[last], "PERSON", score))
            self.done = last
        return True

    # Phrases.

    def _behind_phrase(self, i: int, group: tuple) -> None:
        w = self.w
        for phrase in group:
            size = len(phrase.before)
            if size and w.lowers[max(0, i - size) : i] != phrase.before:
                continue
            first = i + 1
            if first >= len(w) or not _GAPS[phrase.cue].match(w.gap(i)):
                continue
            if phrase.cue is Cue.LABEL and "\n" in w.gap(i) and ":" not in w.gap(i) and not size:
                continue
            if phrase.cue is not Cue.LABEL and self._is_title(first):
                continue  # the title itself is a phrase
            if self._captured(phrase.cue, i, first, size):
                return

    def _captured(self, cue: Cue, i: int, first: int, size: int) -> bool:
        if cue is Cue.INTRO:
            return self._introduced(first)
        if cue is Cue.LABEL:
            return self._labelled(i, first, size)
        if cue is Cue.TITLE:
            w = self.w
            if "." in w.gap(i) and len(w.words[i]) > 4 and "\n" not in w.gap(i):
                return False  # a word at a sentence's end, no abbreviation
            good = w.is_capital(first) and (not self._is_stop(first) or w.lowers[first] in _AFTER_TITLE)
            if w.lowers[first] in PARTICLES and not w.is_capital(first) and self._particle_leads_on(first):
                return self._take(first, self._extend(first), 0.9)
            lower_title = w.lowers[first] in self.lex.last_names and w.lowers[first] not in self.lex.common
            return (good or lower_title) and self._take(first, self._extend(first, strong=True), 0.9)
        if cue is Cue.GREET:
            return self._greeted(first)
        if cue is Cue.CLOSE:
            return self._closed(first)
        return self._someone(first, cue) or (cue is Cue.PERHAPS and self._self_introduced(i, first, size))

    def _self_introduced(self, i: int, first: int, size: int) -> bool:
        """Behind a greeting or at the start, in lower case: "hola soy tevita,"."""
        w = self.w
        begin = i - size
        if w.lowers[i] not in _SELF or w.is_capital(first) or self._is_word(first) or len(w.words[first]) < 3:
            return False
        greeted = begin == 0 or any(phrase.cue is Cue.GREET for phrase in phrases().get(w.lowers[begin - 1], ()))
        return greeted and bool(_CLAUSE_END.match(w.gap(first))) and self._take(first, first, 0.6)

    def _introduced(self, first: int) -> bool:
        w, lex = self.w, self.lex
        lower = w.lowers[first]
        if self._is_stop(first) and not (w.is_capital(first) and lower in lex.first_names):
            return False
        if w.is_capital(first):
            return self._take(first, self._extend(first, strong=True), 0.9)
        if self._is_word(first) and lower not in lex.ambiguous:
            return False
        last = first
        while last + 1 < len(w) and last - first < 3 and _SPACE.match(w.gap(last)):
            following = w.lowers[last + 1]
            if following in PARTICLES and last + 2 < len(w) and w.lowers[last + 2] not in lex.common:
                last += 2
            elif (self._is_word(last + 1) and following not in lex.last_names) or following in lex.stop:
                break
            else:
                last += 1
        return self._take(first, last, 0.8)

    def _labelled(self, i: int, first: int, size: int) -> bool:
        w, lex = self.w, self.lex
        lower, label = w.lowers[first], w.lowers[i]
        weak = not size and label in _WEAK_LABELS
        if self._is_title(first):
            return False
        known = lower in lex.first_names or lower in lex.last_names
        if self._is_stop(first) and not (known and w.is_capital(first)):
            return False
        if label in _USER_LABELS or label == "name":
            dotted = self._dotted(first)
            if dotted is not None:
                return self._take(first, dotted, 0.7)
        if self._is_word(first) and not known:
            return False
        if not w.is_capital(first):
            sure = lower in lex.sure_names if weak else not self._is_word(first)
            return sure and not w.is_code(first) and self._take(first, self._extend(first, any_case=True), 0.7)
        last = self._extend(first, comma=True, strong=True)
        if last + 1 < len(w) and w.lowers[last + 1] in _COMPANY and w.gap(last).strip(" ,") == "":
            return False
        if last == first and (weak or lower in lex.cities) and lower not in lex.sure_names:
            return False
        return self._take(first, last, 0.85)

    def _dotted(self, first: int) -> int | None:
        """The last word of a user's name such as anna.schmidt or tevita_fifita; None where it is none."""
        w, lex = self.w, self.lex
        if first + 1 >= len(w) or w.gap(first) not in (".", "_") or len(w.words[first]) < 2:
            return None
        pair = w.lowers[first], w.lowers[first + 1]
        if pair[0] in lex.sure_names or (w.gap(first) == "." and not any(part in lex.common for part in pair)):
            return first + 1
        return None

    def _greeted(self, first: int) -> bool:
        w, lex = self.w, self.lex
        lower = w.lowers[first]
        if self._is_stop(first):
            return False
        if w.is_capital(first):
            if self._is_word(first) and lower not in lex.first_names:
                return False
            last = self._extend(first)
            sure = lower in lex.first_names or last > first or bool(_CLOSED.match(w.gap(last)))
            return sure and self._take(first, last, 0.8)
        if "," in w.gap(first - 1):
            return False
        unknown = not self._is_word(first) and bool(_CLOSED.match(w.gap(first))) and len(lower) > 2
        return (lower in lex.sure_names or unknown) and not w.is_code(first) and self._take(first, first, 0.6)

    def _closed(self, first: int) -> bool:
        w, lex = self.w, self.lex
        lower = w.lowers[first]
        if (self._is_stop(first) and lower not in lex.first_names) or (not w.is_capital(first) and w.gap(first - 1) == " "):
            return False
        last = self._extend(first, any_case=not w.is_capital(first), strong=True)
        if not _LINE_END.match(w.gap(last)) or (self._is_word(first) and lower not in lex.first_names):
            return False
        return (w.is_capital(first) or "'" not in lower) and self._take(first, last, 0.8)

    def _someone(self, first: int, cue: Cue) -> bool:
        w, lex = self.w, self.lex
        lower = w.lowers[first]
        if self._is_stop(first) or w.is_code(first):
            return False
        if not w.is_capital(first):
            known = lower in lex.sure_names and lower not in lex.cities
            unknown = cue is Cue.PERSON and not self._is_word(first)
            told = w.lowers[first - 1] in _ASKED and w.text[:1].islower() and not self._is_word(first)
            told = told and first + 1 < len(w) and w.lowers[first + 1] in _TOLD_WHAT
            if known or told or (unknown and self._speaks(first)):
                return self._take(first, self._extend(first, any_case=True), 0.6)
            return False
        if lower in lex.first_names:
            place = lower in lex.ambiguous and lower in lex.cities and w.lowers[first - 1] in (*_AND, "with", "met")
            return (
                not self.nouns_are_capital
                and not place
                and lower not in lex.common
                and self._take(first, self._extend(first), 0.7)
            )
        if (self.nouns_are_capital and cue is Cue.PERHAPS) or self._is_word(first) or lower in lex.cities:
            return False
        last = self._extend(first)
        # One unknown word behind "with" or "from" is a product as often as a person.
        sure = cue is Cue.PERSON or last > first or self._speaks(last) or w.lowers[first - 1] in _ASKED
        return sure and len(lower) > 2 and not w.words[first].isupper() and self._take(first, last, 0.6)

    # No phrase.

    def _first_name(self, i: int) -> None:
        w, lex = self.w, self.lex
        lower = w.lowers[i]
        if w.is_code(i) or (self._is_title(i) and lower not in lex.sure_names):
            return
        if not w.is_capital(i):
            return
        last = self._extend(i)
        if lower in lex.sure_names and (len(w.words[i]) > 2):
            if w.words[i].isupper() and last == i and not self._shouted(i):
                return
            if lower in lex.cities and last == i and self._behind_place_word(i):
                return
            if (lower in PRONOUNS.get(self.language, ()) and last == i and w.starts_sentence(i)) or self._is_date(i):
                return
            alone = last == i and w.starts_sentence(i) and lower not in lex.core_names
            if (alone and not self._speaks(i) and not self._is_or_ends(i)) or self._names_a_thing(last):
                return  # a word that some far list holds as a name
            self._take(self._before(i), last, 0.8)
        elif last > i and self._has_last_name(i, last):
            self._take(i, last, 0.7)
        elif (lower in lex.ambiguous and self._speaks(i) and lower not in _MONTHS | _DETERMINERS) or (lower in lex.ambiguous and not self.nouns_are_capital and self._stands_alone(i)):
            self._take(i, last, 0.5)

    def _before(self, i: int) -> int:
        """The first word of the name: "Fifita, Tevita" and "Te Anna" begin before their known first name."""
        w, lex = self.w, self.lex
        if i == 0 or i - 1 <= self.done or not w.is_capital(i - 1) or (self.nouns_are_capital and w.gap(i - 1) == " "):
            return i
        lower, gap = w.lowers[i - 1], w.gap(i - 1)
        if gap == ", " and lower in lex.last_names and lower not in lex.common and lower not in lex.cities:
            return i - 1
        unknown = lower not in lex.common and not w.words[i - 1].isupper() and not w.starts_sentence(i - 1)
        return i - 1 if gap in (" ", "-") and unknown else i

    def _unknown(self, i: int) -> None:
        """A capitalised word that is in no list of first names: a name beside a last name or a verb."""
        w, lex = self.w, self.lex
        lower = w.lowers[i]
        if self._is_word(i) or len(lower) < 3 or w.words[i][1:] != w.words[i][1:].lower() or w.is_code(i):
            return
        if lower in lex.cities:
            return
        last = self._extend(i)
        if last > i:
            tail = [w.lowers[k] for k in range(i + 1, last + 1) if w.lowers[k] not in PARTICLES]
            listed = any(part in lex.last_names and part not in lex.common and len(part) > 3 for part in tail)
            if last + 1 < len(w) and w.lowers[last + 1] in _COMPANY:
                return
            if listed or self._speaks(last) or self._joined(last) or (not w.starts_sentence(i) and not self.nouns_are_capital):
                self._take(i, last, 0.5)
        elif (self._speaks(i) and not self.nouns_are_capital and lower not in PARTICLES) or (self.spans and not self.nouns_are_capital and self._beside_person(i)):
            self._take(i, i, 0.4)

    def _joined(self, last: int) -> bool:
        """Whether "and" with another capitalised word follows, or the year of a birth."""
        w = self.w
        following = last + 2 < len(w) and w.lowers[last + 1] in _AND and w.is_capital(last + 2) and w.gap(last) == " "
        return following or (w.gap(last).startswith(" (") and w.lowers[min(last + 1, len(w) - 1)] in _BORN)

    def _beside_person(self, i: int) -> bool:
        """One unknown word where a second person is expected: "Anna and Weng", "gives 3 to Weng"."""
        w = self.w
        if i == 0 or w.gap(i - 1) != " " or w.words[i].isupper():
            return False
        before = w.lowers[i - 1]
        if before in _AND or before == "than":
            return self.spans[-1].end >= w.begins[max(0, i - 2)]
        return before in ("to", "from") and any(word in _GIVES for word in w.lowers[max(0, i - 6) : i - 1])

    def _is_or_ends(self, i: int) -> bool:
        """Whether what follows fits a name at a sentence's start: "is", a comma, a possessive, the line's end."""
        w = self.w
        after = w.text[w.ends[i] : w.ends[i] + 2]
        return (
            after[:1] in (",", "\n", "", ":", ")")
            or after in ("'s", "’s")
            or (i + 1 < len(w) and w.lowers[i + 1] in _BE_AND and w.gap(i) == " ")
        )

    def _names_a_thing(self, last: int) -> bool:
        """Whether a noun follows that makes a thing of the name: "Victoria Falls", "Bayes Theorem"."""
        w = self.w
        return last + 1 < len(w) and w.gap(last) == " " and w.is_capital(last + 1) and w.lowers[last + 1] in _THINGS

    def _behind_place_word(self, i: int) -> bool:
        return i > 0 and self.w.lowers[i - 1] in _PLACE_WORDS and self.w.gap(i - 1) == " "

    def _is_date(self, i: int) -> bool:
        """Whether a month's name stands beside a number: "Jan 5", "12 Jan"."""
        w = self.w
        before = w.text[max(0, w.begins[i] - 3) : w.begins[i]]
        after = w.text[w.ends[i] : w.ends[i] + 3].lstrip(". ")
        short = w.lowers[i] in _MONTHS or w.lowers[i] in ("jan", "mar", "mai", "sep", "dec", "août")
        return short and (after[:1].isdigit() or before.rstrip(" .-/")[-1:].isdigit())

    # Words that are none.

    def _is_stop(self, i: int) -> bool:
        """Whether word i is never part of a name: a stop word, a contraction of one ("You'll")."""
        lower = self.w.lowers[i]
        if lower in self.lex.stop:
            return True
        stem, _, ending = lower.partition("'")
        return ending in ("ll", "ve", "re", "d", "m", "t", "s") and (stem in self.lex.stop or stem.endswith("n"))

    def _is_word(self, i: int) -> bool:
        """Whether word i is a common word or a form of one ("customers", "selected")."""
        lower, common = self.w.lowers[i], self.lex.common
        if lower in common or self._is_stop(i):
            return True
        if lower in self.lex.last_names or lower in self.lex.first_names:
            return False
        if not lower.endswith("ss") and any(
            lower.endswith(end) and len(lower) - len(end) > 3 and lower[: -len(end)] in common for end in _FORMS
        ):
            return True
        return bool(_WORD_ENDING.match(lower)) or (self.nouns_are_capital and bool(_GERMAN_NOUN.match(lower)))

    # What stands around.

    def _extend(self, first: int, any_case: bool = False, comma: bool = False, strong: bool = False) -> int:
        """The last word of the name that begins at `first`.

        any_case: lower case may go on; comma: "Fifita, Tevita" is one name; strong: a last name that is a word counts.
        """
        w, lex = self.w, self.lex
        last, k = first, first + 1
        while k < len(w) and k - first <= MAX_PARTS:
            gap = w.gap(k - 1)
            initial = w.is_initial(k - 1)
            joined = gap in (" ", "-", "\u00a0") or (initial and gap in (". ", "."))
            if not joined and not (comma and gap == ", " and last == first == k - 1):
                break
            lower = w.lowers[k]
            if lower in PARTICLES and gap != "-" and not w.is_initial(k):
                if not self._particle_leads_on(k):
                    break
            elif w.is_initial(k):
                if not w.gap(k).startswith((".", " ")) or (lower in "ia" and not w.gap(k).startswith(".")):
                    break
                last = k
            elif (gap == "-" and w.is_capital(k)) or self._may_be_last(k, any_case) or (strong and w.is_capital(k) and lower in lex.last_names and len(lower) > 3):
                last = k
            else:
                break
            k += 1
        return last

    def _particle_leads_on(self, k: int) -> bool:
        w = self.w
        for following in range(k + 1, min(k + 4, len(w))):
            if w.gap(following - 1) not in (" ", "-", "'", "’", "\u00a0"):
                return False
            if w.lowers[following] not in PARTICLES:
                return self._may_be_last(following, any_case=False)
        return False

    def _may_be_last(self, k: int, any_case: bool) -> bool:
        w, lex = self.w, self.lex
        lower, word = w.lowers[k], w.words[k]
        if self._is_stop(k) or len(lower) < 2 or (w.is_code(k) and w.text[w.ends[k] : w.ends[k] + 1] != "."):
            return False
        if not word[0].isupper():
            return any_case and not self._is_word(k)
        if lower in lex.last_names:
            return not (self.nouns_are_capital and lower in lex.common)
        return not self._is_word(k) and not (word.isupper() and not w.words[k - 1].isupper())

    def _has_last_name(self, i: int, last: int) -> bool:
        w, lex = self.w, self.lex
        tail = [k for k in range(i + 1, last + 1) if w.lowers[k] not in PARTICLES]
        listed = any(w.lowers[k] in lex.last_names and w.lowers[k] not in lex.common for k in tail)
        follows_name = w.lowers[i + 1] in lex.sure_names and w.starts_sentence(i) and w.lowers[i] in lex.stop
        if follows_name:
            return False  # "Will Anna come?"
        return listed or (not w.starts_sentence(i) and not self.nouns_are_capital)

    def _is_title(self, i: int) -> bool:
        return any(phrase.cue is Cue.TITLE and not phrase.before for phrase in phrases().get(self.w.lowers[i], ()))

    def _speaks(self, i: int) -> bool:
        """Whether a verb follows whose subject is a person."""
        w = self.w
        return i + 1 < len(w) and w.gap(i) in (" ", "\u00a0") and w.words[i + 1] in SPEAKS

    def _shouted(self, i: int) -> bool:
        """Whether the neighbours stand in capitals as well: then capitals say nothing."""
        w = self.w
        around = [k for k in (i - 1, i + 1) if 0 <= k < len(w)]
        return bool(around) and all(w.words[k].isupper() and len(w.words[k]) > 1 for k in around)

    def _stands_alone(self, i: int) -> bool:
        """A word with a capital in the middle of a sentence, no month and no heading: "and Rose wanted"."""
        w, lex = self.w, self.lex
        if (
            i == 0
            or w.starts_sentence(i)
            or w.lowers[i] in _MONTHS
            or w.lowers[i] in lex.cities
            or w.words[i].isupper()
        ):
            return False
        if w.lowers[i] in lex.stop or w.gap(i - 1) not in (" ", ", ", "\u00a0") or w.lowers[i - 1] in _DETERMINERS:
            return False
        following = i + 1 < len(w) and w.gap(i) == " " and w.is_capital(i + 1)
        return not w.is_capital(i - 1) and not following


_AND = frozenset(["and", "und", "et", "y", "e", "i", "en", "och", "&", "with"])
_BORN = frozenset(["born", "age", "aged", "geb", "geboren", "né", "née", "nacido", "nacida", "nato", "nata", "nascido", "nascida", "ur", "född", "dob"])
_GIVES = frozenset(
    ["give", "gives", "gave", "given", "send", "sends", "sent", "sell", "sells", "sold", "lend", "lends", "lent", "owe", "owes", "owed", "hand", "hands", "handed", "pays", "paid", "takes", "took", "gets", "got", "bought", "borrows", "borrowed"]
)
_ASKED = frozenset(["ask", "asked", "tell", "told", "texted", "pinged", "invited", "thanked", "frag"])
_TOLD_WHAT = frozenset(["that", "too", "to", "i", "we", "if", "he", "she", "im", "i'm", "not", "about", "where", "when", "what", "how"])
# Last words of phrases with which a speaker names himself.
_SELF = frozenset(
    ["its", "it's", "is", "im", "i'm", "am", "bin", "ist", "spricht", "suis", "c'est", "ici", "soy", "sono", "qui", "sou", "é", "a", "o", "ben", "jestem", "tu", "är"]
)
_BE_AND = _AND | frozenset(
    ["is", "was", "are", "were", "has", "had", "will", "would", "can", "ist", "war", "hat", "est", "était", "es", "era", "è", "sono", "é", "is", "was", "jest", "był", "är", "var"]
)
_THINGS = frozenset(
    ["falls", "river", "lake", "bridge", "park", "airport", "university", "college", "county", "island", "islands", "station", "center", "centre", "prize", "theorem", "effect", "law", "laws", "equation", "syndrome", "disease", "museum", "stadium", "hospital", "school", "institute", "foundation", "inc", "ltd", "gmbh", "bank", "award", "cup", "square", "tower", "hall", "mountain", "mountains", "bay", "beach", "ocean", "desert", "test", "principle", "paradox", "constant", "method", "algorithm", "distribution", "series", "sequence"]
)
_AFTER_TITLE = frozenset(["may", "will", "young", "king", "long", "little", "short", "good", "best", "wise", "white", "black", "green", "brown", "grace"])
