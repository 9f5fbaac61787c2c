"""Finds names in prose that are in no list of names, by the words beside them or because no dictionary has them.

text                              evidence for a name
"text to my sister zofka about"   a relation ("sister") before it
"nachricht an Zorvek"             a message to someone
"R. Garenstead"                   an initial
"Zorvek (34)", "Zorvek, 34,"      an age
"Zorvek wohnt in"                 a verb whose subject is a person
"Zorvek ... She"                  a pronoun of a person after it
"meeting zofreka tonight"         a word of no dictionary, in a text about people

In a text that is not about people, a word of no dictionary is a brand, a term or a misspelling, and is no name. In
lower case, a misspelling is as likely as a name. There, the word before must announce a name.
"""

import re
from collections.abc import Iterator

from eyas.privacy.coreference import CASE_ENDINGS
from eyas.privacy.dictionary import is_compound, is_known, is_misspelling
from eyas.privacy.names_by_phrase import SPEECH_VERBS, THING_VERBS
from eyas.privacy.span import Span
from eyas.privacy.word_lists import PARTICLES, Lexicon, read_by_language, read_words
from eyas.privacy.words import (
    COMPANY_FORMS,
    CONJUNCTIONS,
    DETERMINERS,
    NAMED_THINGS,
    PERSON_VERBS,
    SPACES,
    WordContext,
    is_technical,
    split_words,
)

_POSSESSIVES = read_words("relations", "possessives", unaccented=True)
_RELATIONS = read_words("relations", "relations", unaccented=True)
_MESSAGES = read_words("relations", "messages", unaccented=True)
_RECIPIENT_WORDS = read_words("relations", "recipient_words", unaccented=True)
_CLAUSE_WORDS = read_words("relations", "clause_words", unaccented=True)
_PROSE_VERBS = read_words("verbs", "of_people", "of_people_in_prose", unaccented=True)
_PRONOUNS = read_words("context_words", "pronouns_of_persons")
_GERMAN_LEADS = read_words("context_words", "german_leads", unaccented=True)
_TOPIC_WORDS = read_words("context_words", "topic_words")
_BETWEEN_NAME_AND_VERB = read_words("context_words", "between_name_and_verb")
_PARTICIPLES = read_words("context_words", "participles")
_OBJECTS_OF_SPEECH = read_words("context_words", "objects_of_speech")
_COUNTING_VERBS = read_words("context_words", "counting_verbs")
_PLACE_PREPOSITIONS = read_words("context_words", "place_prepositions")
_TOGETHER = read_by_language("unlisted_names", "together", unaccented=True)
_SLANG = read_words("unlisted_names", "slang", unaccented=True)
_ARTICLES_BEFORE_NAMES = read_by_language("unlisted_names", "articles_before_names")
LEADS = _RELATIONS | _RECIPIENT_WORDS  # words that a name may follow
_NAMING_VERBS = _PROSE_VERBS - THING_VERBS
_NONE = frozenset[str]()
_LEADS = read_by_language("unlisted_names", "leads", unaccented=True)
_RECIPIENT_LEADS = {language: words | _RECIPIENT_WORDS for language, words in _LEADS.items()}
_ANY_LEADS = LEADS | SPEECH_VERBS | CONJUNCTIONS
_ALL_LEADS = {language: words | _ANY_LEADS for language, words in _LEADS.items()}
_VERBS = read_by_language("unlisted_names", "verbs", unaccented=True)
_ALL_VERBS = {language: words | _PROSE_VERBS for language, words in _VERBS.items()}

_AGE = re.compile(r" \((?:1\d|[2-9]\d)\)|, (?:[1-9]|[1-9]\d)(?:,| (?:years|jahre|ans|años|anni|anos|jaar|lat|år)\b)")
_CLAUSE_END = re.compile(r"[ ]?(?:[,.!?;:\n)]|\Z)")
# Endings of verbs and adjectives in lower case, which hardly end a name after "my sister".
_NO_NAME = re.compile(r".{2,}(?:s|ed|ing|ly|er|ir|ar|re|ra|ría|ando|endo|ował|owała|nie|łby|t|te|ten|ade|ar|ade)\Z")
_PRONOUN_REACH = 24  # words after a name in which a pronoun of a person counts
_FEW_CAPITALS = ("es", "fr", "it", "nl", "pl", "pt", "sv")  # languages without capitals on months and weekdays
_LETTER = "[A-Za-zÀ-ɏḀ-ỿ]"  # Latin: other scripts write no spaces or have no capitals
_SHAPE = re.compile(rf"{_LETTER}{{2,}}(?:['’-]{_LETTER}+)*\Z")
_ODD = re.compile(r"(.)\1\1|(?:(.)(.)\2\3){2}|\A[^aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýąęó]+\Z")
_SENTENCE_END = re.compile(r"[.!?\n]")
_POLISH_LAST_NAME = re.compile(r"..(?:[cs]k|dzk)(?:a|i|iego|iej|iemu|im|ą)\Z")


class ProseNames:
    """The rules that find a name by the words beside it.

    Arguments `i` and `first` are indices of words. `name_after` and `name_at` return the indices of the first and the
    last word of a name, or None if there is no name.
    """

    def __init__(self, context: WordContext, language: str) -> None:
        self.words, self.lexicon, self.context = context.words, context.lexicon, context
        self.language = language

    def name_after(self, i: int) -> tuple[int, int] | None:
        """Returns the name after word i. Word i is a relation ("sister") or the last word of "message to"."""
        words, lower, first = self.words, self.words.lowers[i], i + 1
        following = words.next_lower(i)
        owned = False
        if lower in _RELATIONS:
            owned = i > 0 and words.lowers[i - 1] in _POSSESSIVES
        elif _MESSAGES.isdisjoint(words.lowers[max(0, i - 2) : i]):
            return None
        if not following or following in DETERMINERS or following in _RELATIONS:
            return None
        if self.context.is_stop(first) or words.is_code(first):
            return None
        if not words.is_capital(first):
            return self._lower_name(first) if owned or lower in _RECIPIENT_WORDS else None
        sure = owned or self.context.nouns_are_capital
        if not sure and (self.context.is_word(first) or self._is_title_case(i, first)):
            return None
        return self._capital_name(first, place=lower in _RECIPIENT_WORDS)

    def _is_title_case(self, i: int, first: int) -> bool:
        """Returns True if word `first` is in a heading or a company name: "Teacher Appreciation Week", "Acme Corp"."""
        words, last = self.words, self.context.extend(first)
        is_company = words.next_lower(last) in COMPANY_FORMS
        return words.next_written(last)[:1].isupper() and (words.is_capital(i) or is_company)

    def _capital_name(self, first: int, place: bool) -> tuple[int, int] | None:
        lower, lexicon = self.words.lowers[first], self.lexicon
        # After a relation the ending of a word ("-lein") is no evidence, the list of words is.
        word = self.context.is_word(first) if place else lower in lexicon.common
        if word and (self.context.nouns_are_capital or not (lower in lexicon.sure_names or lower in lexicon.ambiguous)):
            return None
        is_town = place and lower in lexicon.cities and lower not in lexicon.sure_names
        return None if is_town or self.words.written[first].isupper() else (first, self.context.extend(first))

    def _lower_name(self, first: int) -> tuple[int, int] | None:
        words, lower = self.words, self.words.lowers[first]
        sure = lower in self.lexicon.sure_names
        if self.context.is_word(first) or len(lower) < 3 or "'" in lower or lower in PERSON_VERBS:
            return None
        if lower in _RELATIONS or lower in _MESSAGES or (not sure and is_known(lower, self.language)):
            return None
        if sure:
            return first, first
        following = words.next_lower(first)
        if words.lowers[first - 1] in _RECIPIENT_WORDS:
            # "email to convince him": a verb follows as often; a topic does not follow a verb.
            good = following in _TOPIC_WORDS
        else:
            ends = bool(_CLAUSE_END.match(words.text, words.ends[first]))
            good = ends or following in _CLAUSE_WORDS or following in _NAMING_VERBS
        return (first, first) if good and not _NO_NAME.match(lower) else None

    def name_at(self, i: int) -> tuple[int, int] | None:
        """Returns the name that begins at word i. Requirement: the word is capitalized and in no list of names."""
        words, context = self.words, self.context
        if words.is_initial(i):
            return self._name_with_initial(i)
        if context.is_word(i) or not self._has_shape_of_name(i):
            return None
        last = context.extend(i)
        if context.nouns_are_capital:
            good = self._is_german_name(i, last)
        else:
            aged = _AGE.match(words.text, words.ends[last])
            good = aged or self._has_verb(i, last) or self._has_pronoun(i, last)
        return (i, last) if good else None

    def _has_shape_of_name(self, i: int) -> bool:
        words, word, lower = self.words, self.words.written[i], self.words.lowers[i]
        if len(word) <= 2 or word.isupper() or words.is_code(i):
            return False
        return not (lower in self.lexicon.cities or lower in PARTICLES or words.previous_lower(i) in DETERMINERS)

    def _name_with_initial(self, i: int) -> tuple[int, int] | None:
        """Returns the name that begins with the initial i: "R. Garenstead", "J.R. Garenstead".

        An initial at the start of a line is the letter of a list item ("A. Answer") and begins no name.
        """
        words, context = self.words, self.context
        k = i
        while k + 1 < len(words) and words.is_initial(k + 1) and words.gap(k) in (".", ". ", " ") and k - i < 3:
            k += 1
        starts_line = i == 0 or "\n" in words.gap(i - 1)
        if k + 1 >= len(words) or words.gap(k) not in (". ", ".") or starts_line:
            return None
        first, word = k + 1, words.written[k + 1]
        if words.lowers[first] in PARTICLES and context.particle_continues(first):
            return i, context.extend(i)
        good = words.is_capital(first) and len(word) > 3 and not word.isupper() and not context.is_word(first)
        return (i, context.extend(first)) if good and not words.is_code(i) else None

    def _has_verb(self, i: int, last: int) -> bool:
        """Returns True if a verb whose subject is a person follows the name from word i to word `last`."""
        words = self.words
        verb = words.next_written(last)
        if not verb or last + 2 >= len(words):
            return False
        behind = words.written[last + 2]
        if verb in CONJUNCTIONS:
            return behind in _PRONOUNS and words.starts_sentence(i)
        if verb in _BETWEEN_NAME_AND_VERB and (behind in _PROSE_VERBS or behind in _PARTICIPLES):
            return True
        # "Photosynthesis works": the first word of a sentence needs a verb that only people do.
        thing = words.starts_sentence(i) and last == i and verb in THING_VERBS and behind not in _OBJECTS_OF_SPEECH
        return verb in _PROSE_VERBS and not thing

    def is_thing(self, i: int) -> bool:
        """Returns True if word i may name a thing: "Photosynthesis works by" -> True, "Zorvek has 12" -> False."""
        words = self.words
        verb = words.written[i + 1] if i + 1 < len(words) else ""
        if i + 2 < len(words) and words.written[i + 2] in _OBJECTS_OF_SPEECH:
            return False
        behind = words.text[words.ends[i] : words.ends[i] + 30]
        counts = verb in _COUNTING_VERBS and any(char.isdigit() for char in behind)
        return words.starts_sentence(i) and verb in THING_VERBS and not counts

    def _has_pronoun(self, i: int, last: int) -> bool:
        """Returns True if a verb, and "he" or "she" within 24 words, follow the name: "Zorvek has 12 apples. She"."""
        words = self.words
        verb = words.next_written(last)
        if not words.starts_sentence(i) or not verb.islower():
            return False
        is_verb = verb in THING_VERBS or verb in _PROSE_VERBS or verb in ("är", "var") or verb.endswith(("s", "ed"))
        return is_verb and not _PRONOUNS.isdisjoint(words.lowers[last + 2 : last + _PRONOUN_REACH])

    def _is_german_name(self, i: int, last: int) -> bool:
        """Returns True if the capitalized words i to `last` are a name in German, where all nouns are capitalized.

        A name starts a sentence or follows a word such as "mit". An age, a last name or a verb of people follows it.
        """
        words = self.words
        starts, led = words.starts_sentence(i), words.previous_lower(i) in _GERMAN_LEADS
        if not (starts or led):
            return False
        if _AGE.match(words.text, words.ends[last]):
            return True
        if led and last > i and not words.lowers[i].endswith(("en", "er", "ung")):
            return True
        verb = words.next_written(last)
        return verb in _PROSE_VERBS and not (starts and last == i and verb in THING_VERBS)


def is_about_people(text: str, language: str) -> bool:
    """Returns True if the text mentions "my sister", a message to someone or a wedding, and is not technical."""
    lowers = split_words(text).lowers
    together, leads = _TOGETHER.get(language, _NONE), _RECIPIENT_LEADS.get(language, _RECIPIENT_WORDS)
    for i, lower in enumerate(lowers):
        if (
            lower in together
            or (lower in _RELATIONS and i > 0 and lowers[i - 1] in _POSSESSIVES)
            or (lower in _MESSAGES and not leads.isdisjoint(lowers[i + 1 : i + 4]))
        ):
            return not is_technical(text)
    return False


def find_unlisted_names(
    text: str, lexicon: Lexicon, language: str, names: frozenset[str], has_contact: bool
) -> Iterator[Span]:
    """Yields the spans of names that are in no list of names.

    Args:
        text: A text. Requirement: it is about people (see `is_about_people`), or it holds personal data.
        lexicon: The lists of names and words.
        language: The language of the text (ISO 639-1).
        names: The words of the names that were found before, in lower case. Their inflected forms are not yielded.
        has_contact: The text holds a phone number or an e-mail address. Then a name in lower case needs no word before
            it that announces a name.
    """
    context = WordContext(split_words(text), lexicon, language)
    return _UnlistedNameSearch(context, language, names, has_contact).run()


class _UnlistedNameSearch:
    """The search of `find_unlisted_names` in one text. Arguments `i` are indices of words."""

    def __init__(self, context: WordContext, language: str, names: frozenset[str], has_contact: bool) -> None:
        self.words, self.lexicon, self.context = context.words, context.lexicon, context
        self.language, self.names, self.has_contact = language, names, has_contact
        self.leads = _ALL_LEADS.get(language, _ANY_LEADS)
        self.verbs = _ALL_VERBS.get(language, _PROSE_VERBS)

    def run(self) -> Iterator[Span]:
        words, done = self.words, -1
        starts = [words.is_capital(i) for i in range(len(words)) if i == 0 or _SENTENCE_END.search(words.gap(i - 1))]
        in_lower_case = sum(starts) * 3 <= len(starts)
        for i in range(len(words)):
            if i <= done:
                continue
            if words.is_capital(i):
                if not (self._is_unknown(i) or self._is_proper(i)) or self._is_thing(i) or self._is_mention(i):
                    continue
                done = self.context.extend(i)
                place = words.previous_lower(i) in _PLACE_PREPOSITIONS
            elif in_lower_case and (self.has_contact or self._is_led(i)) and self._may_be_name(i):
                done, place = self._end_in_lower_case(i), False
            else:
                continue
            yield Span(words.starts[i], words.ends[done], "LOCATION" if place else "PERSON", 0.4)

    def _is_unknown(self, i: int) -> bool:
        """Returns True if word i is a plain word that is in no word list and in no dictionary."""
        words, lower, word = self.words, self.words.lowers[i], self.words.written[i]
        if len(lower) < 3 or not _SHAPE.match(word) or word.isupper() or word[1:] != word[1:].lower():
            return False
        if lower in self.lexicon.common or lower in self.lexicon.cities or lower in NAMED_THINGS or lower in PARTICLES:
            return False
        if words.is_code(i) or self.context.is_stop(i) or _ODD.search(lower) or is_known(lower, self.language):
            return False
        # A capital letter inside a sentence is evidence enough that it is no compound and no slang; not in German.
        proper = words.is_capital(i) and not self.context.nouns_are_capital
        return proper or not (lower in _SLANG or is_compound(lower, self.language))

    def _is_proper(self, i: int) -> bool:
        """Returns True for a dictionary word used as a name: capitalized inside a sentence, unlike its neighbors."""
        words, lower, word = self.words, self.words.lowers[i], self.words.written[i]
        if self.language not in _FEW_CAPITALS or words.starts_sentence(i) or not _SHAPE.match(word) or words.is_code(i):
            return False
        if len(lower) < 4 or word[1:] != word[1:].lower() or lower in NAMED_THINGS or self.context.is_word(i):
            return False
        is_alone = not words.is_capital(i - 1) and not words.next_written(i)[:1].isupper()
        return is_alone and words.gap(i - 1) in SPACES

    def _is_thing(self, i: int) -> bool:
        """Returns True if word i names a thing: an article stands before it, or "Inc" or "GmbH" after it."""
        words, last = self.words, self.context.extend(i)
        before = words.previous_lower(i)
        named = before in _PLACE_PREPOSITIONS or before in _ARTICLES_BEFORE_NAMES.get(self.language, ())
        company = last + 1 < len(words) and words.lowers[last + 1] in COMPANY_FORMS
        return company or (before in DETERMINERS and not named)

    def _is_mention(self, i: int) -> bool:
        """Returns True if word i is an inflected form of a name found before, which coreference.py finds."""
        lower = self.words.lowers[i]
        return self.language in CASE_ENDINGS and any(lower[:-size] in self.names for size in (1, 2, 3))

    def _is_led(self, i: int) -> bool:
        """Returns True if the word before word i announces a person, or if a verb follows: "zofka arrives"."""
        words, before = self.words, self.words.previous_lower(i)
        if before:
            return before in self.leads or self.context.is_title(i - 1)
        opens_clause = i == 0 or not words.gap(i - 1).strip(" ,.!?;\n")
        return opens_clause and words.next_lower(i) in self.verbs

    def _may_be_name(self, i: int) -> bool:
        """Returns True if word i, in lower case, is a listed name, or an unknown word that is no misspelling."""
        lower, lexicon = self.words.lowers[i], self.lexicon
        if lower in _PROSE_VERBS or lower in _RELATIONS:
            return False
        listed = lower in lexicon.sure_names or (lower in lexicon.last_names and not is_known(lower, self.language))
        if listed and lower not in lexicon.common and len(lower) > 3:
            return True
        return self._is_unknown(i) and (self.has_contact or not is_misspelling(lower, self.language))

    def _end_in_lower_case(self, i: int) -> int:
        """Returns the index of the last word of a name in lower case. i: index of its first word."""
        words, lexicon, last = self.words, self.lexicon, i
        while last - i < 2 and last + 1 < len(words) and words.gap(last) == " ":
            lower = words.lowers[last + 1]
            listed = lower in lexicon.last_names or (self.language == "pl" and _POLISH_LAST_NAME.search(lower))
            if not (listed and lower not in lexicon.common) and not self._is_unknown(last + 1):
                break
            last += 1
        return last
