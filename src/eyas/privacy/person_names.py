"""Finds names of people in prose, by Faker's lists of names, by phrases before them, and by capital letters.

    text                         evidence for a name
    "my name is tevita fifita"   a phrase before it
    "asked Tevita Fifita about"  two capitalized words that are no ordinary words, inside a sentence
    "Natalia sold clips"         a first name that is no ordinary word
    "Mark has five apples"       a first name that is an ordinary word, too: a verb of people, a title or a last name

The search visits each word once and looks at a fixed number of words around it, so it takes linear time.
"""

from eyas.privacy.names_by_phrase import PhraseRules, index_phrases
from eyas.privacy.names_in_prose import LEADS, ProseNames
from eyas.privacy.span import Span
from eyas.privacy.word_lists import PARTICLES, PRONOUNS, Lexicon, read_words
from eyas.privacy.words import (
    BRANDS,
    COMPANY_FORMS,
    CONJUNCTIONS,
    DETERMINERS,
    MONTHS,
    WordContext,
    is_quoted_word,
    split_words,
)

_TRANSFER_VERBS = read_words("verbs", "transfer")
_NO_SUBJECTS = MONTHS | DETERMINERS  # words that are first names as well, but hardly before a verb


def find_person_names(text: str, lexicon: Lexicon, language: str) -> list[Span]:
    """Returns the spans of names, of kind "PERSON", sorted: "asked Anna Meier about" -> span of "Anna Meier".

    Args:
        text: The text.
        lexicon: The lists of names and words.
        language: The language of the text (ISO 639-1).
    """
    search = _NameSearch(WordContext(split_words(text), lexicon, language), language)
    search.run()
    return search.spans


class _NameSearch:
    """The search of `find_person_names` in one text.

    Arguments `i`, `first` and `last` are indices of words. Each method `_check_...` adds the name that begins at word i
    to `spans`, if there is one.
    """

    def __init__(self, context: WordContext, language: str) -> None:
        self.words, self.lexicon, self.context = context.words, context.lexicon, context
        self.pronouns = PRONOUNS.get(language, frozenset())
        self.phrases = PhraseRules(context)
        self.prose = ProseNames(context, language)
        self.spans: list[Span] = []
        self.done = -1  # index of the last word that is part of a name in `spans`

    def run(self) -> None:
        """Searches the whole text and fills `spans`."""
        index, words, lexicon = index_phrases(), self.words, self.lexicon
        for i, lower in enumerate(words.lowers):
            if lower in index:
                for match in self.phrases.find(i, self.spans[-1].end if self.spans else -1):
                    if self._add(*match):
                        break
            behind = self.prose.name_after(i) if lower in LEADS else None
            if behind and behind[0] > self.done:
                self._add(*behind, 0.6)
            # Without a capital letter a phrase alone makes a name.
            if i <= self.done or not words.written[i][0].isupper() or self.context.is_term(i):
                continue
            if lower in BRANDS and lower not in lexicon.sure_names:
                continue
            if lower in lexicon.first_names:
                self._check_first_name(i)
            else:
                self._check_unlisted(i)
            name = self.prose.name_at(i) if i > self.done else None
            if name:
                self._add(*name, 0.5)

    def _add(self, first: int, last: int, score: float) -> bool:
        """Adds the span from word `first` to word `last`, unless an earlier rule has added its last word.

        Returns False if the only word is quoted in a text about language, and so is no name.
        """
        words = self.words
        if first == last and is_quoted_word(words.text, words.starts[first], words.ends[first]):
            return False
        if last > self.done:
            self.spans.append(Span(words.starts[first], words.ends[last], "PERSON", score))
            self.done = last
        return True

    def _check_first_name(self, i: int) -> None:
        words, lexicon, context = self.words, self.lexicon, self.context
        lower = words.lowers[i]
        if words.is_code(i) or (context.is_title(i) and lower not in lexicon.sure_names):
            return
        last = context.extend(i)
        if lower in lexicon.sure_names and len(words.written[i]) > 2:
            if not self._is_other_word(i, last):
                self._add(self._start_of_name(i), last, 0.8)
        elif last > i and context.has_last_name(i, last):
            self._add(i, last, 0.7)
        elif lower in lexicon.ambiguous and (
            (context.has_person_verb(i) and lower not in _NO_SUBJECTS)
            or (not context.nouns_are_capital and context.is_lone_capital(i))
        ):
            self._add(i, last, 0.5)

    def _is_other_word(self, i: int, last: int) -> bool:
        """Returns True if a listed first name is something else here: a town, a month, a word in capitals."""
        words, lexicon, context = self.words, self.lexicon, self.context
        lower, starts = words.lowers[i], words.starts_sentence(i)
        if context.is_date(i) or context.is_thing_name(last):
            return True
        if last > i:
            return False
        if words.written[i].isupper() and not context.is_among_capitals(i):
            return True
        if (lower in lexicon.cities and context.follows_place_word(i)) or (starts and lower in self.pronouns):
            return True
        # A word that some far list holds as a name.
        unusual = starts and lower not in lexicon.core_names
        return unusual and not context.has_person_verb(i) and not context.fits_sentence_start(i)

    def _start_of_name(self, i: int) -> int:
        """Returns the index of the first word of the name that contains the first name i.

        It is i - 1 if the name begins one word earlier: "Fifita, Tevita", or "Te Anna" with an unlisted word.
        """
        words, lexicon = self.words, self.lexicon
        if i == 0 or i - 1 <= self.done or not words.is_capital(i - 1):
            return i
        lower, gap = words.lowers[i - 1], words.gap(i - 1)
        if self.context.nouns_are_capital and gap == " ":
            return i
        if gap == ", " and lower in lexicon.last_names and lower not in lexicon.common and lower not in lexicon.cities:
            return i - 1
        unlisted = lower not in lexicon.common and not words.written[i - 1].isupper()
        return i - 1 if gap in (" ", "-") and unlisted and not words.starts_sentence(i - 1) else i

    def _check_unlisted(self, i: int) -> None:
        """Adds the name at word i, which is in no list of first names: before a last name, a verb, or beside a name."""
        words, context = self.words, self.context
        lower, word = words.lowers[i], words.written[i]
        if context.is_word(i) or len(lower) < 3 or word[1:] != word[1:].lower() or words.is_code(i):
            return
        if lower in self.lexicon.cities:
            return
        last = context.extend(i)
        if last > i:
            if self._is_name_of_several(i, last):
                self._add(i, last, 0.5)
        elif not context.nouns_are_capital and (
            (context.has_person_verb(i) and lower not in PARTICLES and not self.prose.is_thing(i))
            or (self.spans and self._is_beside_person(i))
        ):
            self._add(i, i, 0.4)

    def _is_name_of_several(self, i: int, last: int) -> bool:
        """Returns True if the capitalized words from i to `last` are the name of a person."""
        words, lexicon, context = self.words, self.lexicon, self.context
        if last + 1 < len(words) and words.lowers[last + 1] in COMPANY_FORMS:
            return False
        if any(context.is_term(k) for k in range(i + 1, last + 1)):
            return False
        starts = words.starts_sentence(i)
        # A German sentence may begin with a verb and a noun: "Erstelle Tabelle".
        if starts and context.nouns_are_capital and words.lowers[i].endswith(("e", "en", "ern")):
            return False
        tail = [words.lowers[k] for k in range(i + 1, last + 1) if words.lowers[k] not in PARTICLES]
        listed = any(part in lexicon.last_names and part not in lexicon.common and len(part) > 3 for part in tail)
        if listed or context.has_person_verb(last):
            return True
        return not starts and (context.is_joined(last) or not context.nouns_are_capital)

    def _is_beside_person(self, i: int) -> bool:
        """Returns True if the words before word i announce another person: "Anna and Weng", "gives 3 to Weng"."""
        words = self.words
        before = words.previous_lower(i)
        if words.written[i].isupper():
            return False
        if before in CONJUNCTIONS or before == "than":
            return self.spans[-1].end >= words.starts[max(0, i - 2)]
        return before in ("to", "from") and any(word in _TRANSFER_VERBS for word in words.lowers[max(0, i - 6) : i - 1])
