r"""Finds names after a phrase that announces a name.

text                         phrase
"my name is tevita fifita"   an introduction (the name may be in lower case)
"met Tevita"                 a hint
"Dr. Fifita"                 a title
"Patient: Fifita, Tevita"    a label
"my boss Tevita"             a relation
"Hi Tevita,"                 a greeting
"Thanks,\nTevita"            a closing
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from eyas.privacy.labels import NON_VALUES
from eyas.privacy.word_lists import PARTICLES, read_words
from eyas.privacy.words import COMPANY_FORMS, CONJUNCTIONS, PERSON_VERBS, TITLES_IN_TEXT, WordContext

SPEECH_VERBS = read_words("verbs", "speech")
THING_VERBS = read_words("verbs", "of_things_too", unaccented=True)
GROUP_ADDRESSEES = read_words("letters", "group_addressees")
_WEAK_LABELS = read_words("labels", "weak_announcements")
_USER_LABELS = read_words("labels", "user_labels")
_CLAUSE_STARTS = read_words("context_words", "clause_starts")
_SELF_INTRODUCTIONS = read_words("context_words", "self_introductions")
_NAMES_AFTER_TITLES = read_words("context_words", "names_after_titles")
_TWO_SPACES = re.compile(r"[ \u00a0]{1,2}\Z")
_CLAUSE_END = re.compile(r"[ ]?(?:[,.!?;\n-]|\Z)")
_GREETING_END = re.compile(r"\s{0,3}(?:[,!\n]|\Z)")
_LINE_END = re.compile(r"[ \t.!,]{0,3}(?:\n|\Z)")


class Cue(Enum):
    """A kind of phrase that announces a name. The value of each member says where the name stands after the phrase."""

    INTRODUCTION = "my name is: a name follows, in lower case too"
    HINT = "met: a name may follow; it is capitalized, or a first name that is no ordinary word"
    TITLE = "Dr: a capitalized name follows"
    LABEL = "patient: a name follows after a colon or an equals sign"
    RELATION = "my boss: a name follows"
    GREETING = "hi: a name follows, then a comma, an exclamation mark or the end of the line"
    CLOSING = "thanks: a name follows on the next line, or after a comma at the end"


@dataclass(frozen=True)
class Phrase:
    """A phrase that announces a name.

    Attributes:
        before: The words of the phrase except the last one, in lower case: ("my", "name") for "my name is".
        cue: The kind of the phrase.
    """

    before: tuple[str, ...]
    cue: Cue


# What may stand between a phrase and the name.
_GAPS = {
    Cue.INTRODUCTION: re.compile(r"[\s:,\"'“”*_-]{1,4}\Z"),
    Cue.HINT: re.compile(r"[ \u00a0]{1,2}[\"“]?\Z"),
    Cue.TITLE: re.compile(r"(?:\.[ \u00a0]{0,2}|[ \u00a0]{1,2}|\.?/?[a-z]{0,2}\.?[ ])\Z"),
    Cue.LABEL: re.compile(
        r"(?:[\"'’`*\]) ]{0,4}(?::|=|=>|->|:=|\t|\|)\s{0,12}[\"'`*“<(\[]{0,3}|\s?>\s?|[ \t]*\n\s{0,12})\Z"
    ),
    Cue.RELATION: re.compile(r"(?:[ \u00a0]{1,2}|, ?| \(|: ?)\Z"),
    Cue.GREETING: re.compile(r",?[ \u00a0]{1,2}\Z"),
    Cue.CLOSING: re.compile(r"(?:[,.!]?\s{0,3}\n\s{0,6}[-–—~]?\s{0,2}|,[ ]{1,2}|[ ]?[-–—]{1,2}[ ]?|[ ])\Z"),
}


@cache
def index_phrases() -> Mapping[str, Sequence[Phrase]]:
    """Returns all phrases by their last word: "is" -> the phrase "my name is". The longest phrase comes first."""
    lists = {
        Cue.INTRODUCTION: read_words("name_phrases", "introductions"),
        Cue.HINT: read_words("name_phrases", "hints"),
        Cue.TITLE: TITLES_IN_TEXT,
        Cue.LABEL: read_words("labels", "names", "roles", "announcements"),
        Cue.RELATION: read_words("name_phrases", "relations"),
        Cue.GREETING: read_words("letters", "greetings", "greetings_of_chats"),
        Cue.CLOSING: read_words("letters", "closings", "closings_of_chats"),
    }
    index: dict[str, list[Phrase]] = {}
    for cue, phrases in lists.items():
        for phrase in phrases:
            *before, last = re.split(r"[ ._-]+", phrase.strip("."))
            index.setdefault(last, []).append(Phrase(tuple(before), cue))
    for group in index.values():
        group.sort(key=lambda phrase: (-len(phrase.before), list(Cue).index(phrase.cue), phrase.before))
    return index


NameMatch = tuple[int, int, float]  # index of the first and of the last word of a name, and the score


class PhraseRules:
    """The rules that find names after phrases in one text.

    Each method `_check_...` handles one kind of phrase. It returns the name that begins at word `first`, or None if
    word `first` begins no name. `i` is the index of the last word of the phrase.
    """

    def __init__(self, context: WordContext) -> None:
        self.words, self.lexicon, self.context = context.words, context.lexicon, context

    def find(self, i: int, person_end: int) -> Iterator[NameMatch]:
        """Yields the names after the phrases that end with word i, the longest phrase first.

        Args:
            i: Index of a word. Requirement: it is a key of `index_phrases()`.
            person_end: The end of the last name before word i, as a position in the text; -1 if there is none.
        """
        words, first = self.words, i + 1
        if first >= len(words):
            return
        gap = words.gap(i)
        for phrase in index_phrases()[words.lowers[i]]:
            size = len(phrase.before)
            if size and words.lowers[max(0, i - size) : i] != phrase.before:
                continue
            if not _GAPS[phrase.cue].match(gap):
                continue
            if phrase.cue is Cue.LABEL and "\n" in gap and ":" not in gap and not size:
                continue
            if phrase.cue is Cue.HINT and self.context.is_term(first):
                continue
            if phrase.cue is not Cue.LABEL and self.context.is_title(first):
                continue  # the title itself is a phrase
            match = self._check_phrase(phrase, i, person_end)
            if match:
                yield match

    def _check_phrase(self, phrase: Phrase, i: int, person_end: int) -> NameMatch | None:
        cue, first = phrase.cue, i + 1
        if cue is Cue.INTRODUCTION:
            return self._check_introduction(first)
        if cue is Cue.LABEL:
            return self._check_label(i, first, is_one_word=not phrase.before)
        if cue is Cue.TITLE:
            return self._check_title(i, first)
        if cue is Cue.GREETING:
            return self._check_greeting(first)
        if cue is Cue.CLOSING:
            return self._check_closing(first)
        name = self._check_person(first, cue, person_end)
        return name or (self._check_self(i, first, len(phrase.before)) if cue is Cue.HINT else None)

    def _check_title(self, i: int, first: int) -> NameMatch | None:
        words, context = self.words, self.context
        if "." in words.gap(i) and len(words.written[i]) > 4 and "\n" not in words.gap(i):
            return None  # a word at a sentence's end, no abbreviation
        lower = words.lowers[first]
        if lower in PARTICLES and context.particle_continues(first):
            return first, context.extend(first), 0.9
        named = words.is_capital(first) and (not context.is_stop(first) or lower in _NAMES_AFTER_TITLES)
        # "aunt smith", but not "aunt said".
        listed = lower in self.lexicon.last_names and not context.is_word(first) and lower not in PERSON_VERBS
        return (first, context.extend(first, strong=True), 0.9) if named or listed else None

    def _check_self(self, i: int, first: int, size: int) -> NameMatch | None:
        """Returns a name in lower case after a word such as "soy": "hola soy tevita," -> "tevita".

        The phrase must stand after a greeting or at the start of the text. size: words of the phrase before word i.
        """
        words, start = self.words, i - size
        if words.lowers[i] not in _SELF_INTRODUCTIONS or words.is_capital(first) or self.context.is_word(first):
            return None
        if len(words.written[first]) < 3 or not _CLAUSE_END.match(words.text, words.ends[first]):
            return None
        before = index_phrases().get(words.lowers[start - 1], ())
        greeted = start == 0 or any(phrase.cue is Cue.GREETING for phrase in before)
        return (first, first, 0.6) if greeted else None

    def _check_introduction(self, first: int) -> NameMatch | None:
        words, lexicon, context = self.words, self.lexicon, self.context
        lower, capital = words.lowers[first], words.is_capital(first)
        if context.is_stop(first) and not (capital and lower in lexicon.first_names):
            return None
        if capital:
            return first, context.extend(first, strong=True), 0.9
        if context.is_word(first) and lower not in lexicon.ambiguous:
            return None
        last = first
        while last + 1 < len(words) and last - first < 3 and _TWO_SPACES.match(words.gap(last)):
            following = words.lowers[last + 1]
            if following in PARTICLES and last + 2 < len(words) and words.lowers[last + 2] not in lexicon.common:
                last += 2
            elif following in lexicon.stop or (context.is_word(last + 1) and following not in lexicon.last_names):
                break
            else:
                last += 1
        return first, last, 0.8

    def _check_label(self, i: int, first: int, is_one_word: bool) -> NameMatch | None:
        words, lexicon, context = self.words, self.lexicon, self.context
        lower, label = words.lowers[first], words.lowers[i]
        weak = is_one_word and label in _WEAK_LABELS
        known = lower in lexicon.first_names or lower in lexicon.last_names
        if context.is_title(first) or (context.is_stop(first) and not (known and words.is_capital(first))):
            return None
        if (label in _USER_LABELS or label == "name") and self._is_user_name(first):
            return first, first + 1, 0.7
        if lower in NON_VALUES or words.is_code(first) or words.text.startswith("[", words.ends[first]):
            return None
        if context.is_word(first) and not known:
            return None
        if not words.is_capital(first):
            sure = lower in lexicon.sure_names if weak else not context.is_word(first)
            return (first, context.extend(first, any_case=True), 0.7) if sure else None
        last = context.extend(first, comma=True, strong=True)
        if last + 1 < len(words) and words.lowers[last + 1] in COMPANY_FORMS and words.gap(last).strip(" ,") == "":
            return None
        if last == first and (weak or lower in lexicon.cities) and lower not in lexicon.sure_names:
            return None
        return first, last, 0.85

    def _is_user_name(self, first: int) -> bool:
        """Returns True if word `first` and the next one are a user name, such as anna.schmidt or tevita_fifita."""
        words, lexicon = self.words, self.lexicon
        mark = words.gap(first)
        if first + 1 >= len(words) or mark not in (".", "_") or len(words.written[first]) < 2:
            return False
        pair = words.lowers[first], words.lowers[first + 1]
        return pair[0] in lexicon.sure_names or (mark == "." and lexicon.common.isdisjoint(pair))

    def _check_greeting(self, first: int) -> NameMatch | None:
        words, lexicon, context = self.words, self.lexicon, self.context
        lower = words.lowers[first]
        if context.is_stop(first) or lower in GROUP_ADDRESSEES:
            return None
        if words.is_capital(first):
            if context.is_word(first) and lower not in lexicon.first_names:
                return None
            last = context.extend(first)
            sure = lower in lexicon.first_names or last > first or _GREETING_END.match(words.text, words.ends[last])
            return (first, last, 0.8) if sure else None
        if "," in words.gap(first - 1) or words.is_code(first):
            return None
        ends = _GREETING_END.match(words.text, words.ends[first])
        unlisted = ends and len(lower) > 2 and not context.is_word(first)
        return (first, first, 0.6) if lower in lexicon.sure_names or unlisted else None

    def _check_closing(self, first: int) -> NameMatch | None:
        words, context = self.words, self.context
        lower, capital = words.lowers[first], words.is_capital(first)
        if lower not in self.lexicon.first_names and (context.is_stop(first) or context.is_word(first)):
            return None
        if not capital and (words.gap(first - 1) == " " or "'" in lower):
            return None
        last = context.extend(first, any_case=not capital, strong=True)
        return (first, last, 0.8) if _LINE_END.match(words.text, words.ends[last]) else None

    def _check_person(self, first: int, cue: Cue, person_end: int) -> NameMatch | None:
        """Returns the name after a hint ("met Tevita") or a relation ("my boss Tevita")."""
        words, lexicon, context = self.words, self.lexicon, self.context
        lower, before = words.lowers[first], words.lowers[first - 1]
        if context.is_stop(first) or words.is_code(first) or words.written[first] in PERSON_VERBS:
            return None
        if not words.is_capital(first):
            following = words.next_lower(first)
            sure = lower in lexicon.sure_names and lower not in lexicon.cities
            told = before in SPEECH_VERBS and words.text[:1].islower() and following in _CLAUSE_STARTS
            speaks = cue is Cue.RELATION and context.has_person_verb(first) and following not in THING_VERBS
            if sure or ((told or speaks) and not context.is_word(first)):
                return first, context.extend(first, any_case=True), 0.6
            return None
        if lower in lexicon.first_names:
            follows_and = lower in lexicon.ambiguous and before in CONJUNCTIONS
            if follows_and and (first < 2 or person_end < words.ends[first - 2]):
                return None  # "War and Peace"
            town = lower in lexicon.cities and (follows_and or (lower in lexicon.ambiguous and before == "met"))
            if context.nouns_are_capital or town or lower in lexicon.common:
                return None
            return first, context.extend(first), 0.7
        if (context.nouns_are_capital and cue is Cue.HINT) or context.is_word(first) or lower in lexicon.cities:
            return None
        last = context.extend(first)
        # One unlisted word after "with" or "from" is a product as often as a person.
        sure = cue is Cue.RELATION or last > first or context.has_person_verb(last) or before in SPEECH_VERBS
        return (first, last, 0.6) if sure and len(lower) > 2 and not words.written[first].isupper() else None
