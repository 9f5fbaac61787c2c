"""Splits a text into words, and answers questions about a word: is it a name here, and where does the name end?"""

import re
from dataclasses import dataclass
from functools import lru_cache

from eyas.privacy.word_lists import PARTICLES, Lexicon, read_words

SPACES = (" ", "\u00a0")
# Letters, with apostrophes inside ("O'Brien", "m'appelle"). Digits and underscores end a word.
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# Articles and prepositions that French, Italian and Portuguese join to a name: "d'Anna", "dell'Anna", "qu'Anna".
_ELISION = re.compile(r"(?:[dlnsjcmt]|qu|dell|all|dall|nell|sull|un|jusqu|lorsqu|puisqu)'(?=[^\W\d_])")
_SENTENCE_END = '.!?:;\n"“”„«»()[]{}•*-–—>|/\t#=,'

CONJUNCTIONS = read_words("context_words", "conjunctions")
DETERMINERS = read_words("context_words", "determiners")
COMPANY_FORMS = read_words("context_words", "company_forms")
MONTHS = read_words("context_words", "months")
BRANDS, TERMS = read_words("terms", "brands"), read_words("terms", "terms")
NAMED_THINGS = TERMS | BRANDS
TITLES = read_words("titles", "titles", "titles_of_fields")  # in fields and letters
TITLES_IN_TEXT = read_words("titles", "titles", "roles_as_titles")
PERSON_VERBS = read_words("verbs", "of_people", "of_people_or_owners")
_AFTER_SUBJECT = read_words("context_words", "forms_of_be", "conjunctions")
_AGE_WORDS = read_words("context_words", "age_words")
_PLACE_WORDS = read_words("context_words", "place_words")
_THING_NOUNS = read_words("context_words", "thing_nouns")
_SHORT_MONTHS = MONTHS | {"jan", "mar", "mai", "sep", "dec", "août"}

MAX_PARTS = 6  # words in a name: "Maria do Carmo da Silva Santos"
# Endings of words that hardly end a name.
_WORD_ENDING = re.compile(
    r".{2,}(?:[ts]ions?|ments?|ness|less|ically|ology|graphy|[ae]nce|ible|ables?|ware|ships?|hood|ized?|ised|ful|fully"
    r"|ity|ities|isms?|ists|ous|ously|ively|ives?|ating|ated|ates|ifying|ified|ual|ually|ility|ologist|ics"
    r"|zion[ei]|mente|idad|idades|dades?|ção|ções|ión|iones|eurs|euse|aires?|ements?|iques?|ość|ości|ować|anie|enie"
    r"|ning|het)\Z"
)
_GERMAN_NOUN = re.compile(
    r".{2,}(?:ung|ungen|heit|keits?|keiten|schaft|tion|tionen|tät|nis|tum|ment|chen|lein|ling|rechnung|ismus|ität)\Z"
)
_FORMS = ("s", "es", "ed", "d", "ing", "ly", "er", "n")
_TECHNICAL = re.compile(
    r"(?i)theorem|\bsatz|th[ée]or|teorem|stelling|twierdz|\bsats\b|algor[iy]t|transform|machine|m[áa]quina|macchina"
    r"|maszyn|maskin|m[ée]thod|m[ée]tod|\bchains?\b|kette|cha[iî]ne|catena|cadena|cadeia|łańcuch|kedj|keten|triangle"
    r"|dreieck|tri[áa]ng|driehoek|trójkąt|triangel|sequence|folge\b|\bsuite|reihe|s[ée]rie|successione|sucesi|sequência"
    r"|rij\b|ciąg|följd|distribu|verteil|verdeling|rozkład|fördelning|filter|\bcode|coding|codific|kod|program|script"
    r"|func|funktion|fonction|funzione|funç|funkcj|compil|langage|sprache|lenguaje|linguagg|linguagem|\btaal|język|språk"
    r"|librar|package|framework|install|syntax|integral|equation|équation|gleichung|ecuaci|equazion|equaç|vergelijking"
    r"|równani|ekvation|matrix|matri[cz]|graph|fra[ck]tal|\blaws?\b|gesetz|\bloi\b|\bley\b|legge|\blei\b|\bwet\b|prawo"
    r"|\blag\b|number|zahl|n[úu]mero|liczb|getal|prove\b|beweis|statisti|probab|array|class\b|loop|variable|implement"
    r"|constant|formula|formel|test\b|fraktal|tree|hash|numeric|numéri|approx|eliminat|distance|coefficient|dreiecks"
)
# Words of a question about words: a quoted word in such a text is a word.
_ABOUT_WORDS = re.compile(
    r"(?i)\b(?:words?|verbs?|nouns?|adjectives?|sentences?|synonyms?|rhymes?|means?|spell\w*|pronounc\w*|w[öo]rt\w*|satz"
    r"|verb\w*|substantiv\w*|bedeut\w*|mots?|verbes?|phrases?|signifie|palabras?|frases?|significa|parol[ae]|verbi"
    r"|significato|palavras?|woord\w*|werkwoord\w*|zin\b|betekent|słow\w*|czasownik\w*|zdani\w*|znaczy|ord|orden|betyder"
    r"|mening\w*|strings?|keyword\w*|token\w*)\b"
)
_QUOTES = "\"'“”„‚‘’«»`"


@dataclass(frozen=True)
class Words:
    """The words of a text. Methods take the index i of a word.

    Attributes:
        text: The whole text.
        starts: The position of the first character of each word.
        ends: The position after the last character of each word: word i is text[starts[i]:ends[i]].
        written: The words as the text writes them.
        lowers: The words in lower case.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    written: tuple[str, ...]
    lowers: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.written)

    def gap(self, i: int) -> str:
        """Returns the text between word i and the next word; for the last word, the text after it."""
        return self.text[self.ends[i] : self.starts[i + 1] if i + 1 < len(self.starts) else len(self.text)]

    def next_written(self, i: int) -> str:
        """Returns the word after word i; "" if anything but one space stands between them, or if no word follows."""
        return self.written[i + 1] if i + 1 < len(self.written) and self.gap(i) in SPACES else ""

    def next_lower(self, i: int) -> str:
        """Returns the word after word i in lower case, or "" as `next_written` does."""
        return self.lowers[i + 1] if i + 1 < len(self.lowers) and self.gap(i) in SPACES else ""

    def previous_lower(self, i: int) -> str:
        """Returns the word before word i in lower case; "" if anything but one space stands between them."""
        return self.lowers[i - 1] if i > 0 and self.gap(i - 1) in SPACES else ""

    def is_capital(self, i: int) -> bool:
        """Returns True if word i begins with a capital letter."""
        return self.written[i][0].isupper()

    def is_initial(self, i: int) -> bool:
        """Returns True if word i is one capital letter, such as the first two words of "J. R. Smith"."""
        return len(self.written[i]) == 1 and self.written[i].isupper()

    def starts_sentence(self, i: int) -> bool:
        """Returns True if any word is capitalized at this position: at the start, after a full stop, a bullet, a quote.

        There, a capital letter does not show that the word is a name.
        """
        if i == 0:
            return True
        before = self.gap(i - 1).strip(" \u00a0")
        # An abbreviation's full stop ("Mr. May", "J. May") counts as an end, a comma or a hyphen alone does not.
        return bool(before) and before[-1] in _SENTENCE_END and before not in (",", "-")

    def is_code(self, i: int) -> bool:
        """Returns True if word i is part of program code: an identifier, a call, a path or an attribute."""
        before = self.text[max(0, self.starts[i] - 2) : self.starts[i]]
        after = self.text[self.ends[i] : self.ends[i] + 2]
        if before[-1:] == " " == after[:1]:
            return False  # most words
        if after[:1] in ("_", "(", "<") or after == "::" or after[:1].isdigit():
            return True
        if after[:1] == "." and after[1:].isalpha() and after[1:].islower():
            return True  # "Anna.name", but not the end of a sentence
        return before[-1:] in ("_", "$", "@", "#", "\\") or (before[-1:] == "." and before[:1].isalnum())


@lru_cache(maxsize=4)  # several detectors walk over one text, one after another
def split_words(text: str) -> Words:
    """Returns the words of the text. "Anna's" and "d'Anna" both become the word "Anna"."""
    matches = list(_WORD.finditer(text))
    words = [match[0] for match in matches]
    starts, ends = [match.start() for match in matches], [match.end() for match in matches]
    for i, word in enumerate(words) if "'" in text or "’" in text else ():
        if "'" in word or "’" in word:
            plain = word.replace("’", "'")
            elision = _ELISION.match(plain)
            if elision and plain[elision.end()].isupper():
                starts[i] += elision.end()
                plain = plain[elision.end() :]
            # "It's" and "name's" stay whole: phrases hold them.
            if plain.endswith(("'s", "'S")) and plain[0].isupper() and plain.lower() not in ("it's", "let's", "here's"):
                ends[i] -= 2
                plain = plain[:-2]
            words[i] = plain
    return Words(text, tuple(starts), tuple(ends), tuple(words), tuple(map(str.casefold, words)))


def is_technical(text: str) -> bool:
    """Returns True if a word of the text belongs to mathematics, statistics or programming: "theorem", "algorithm"."""
    return bool(_TECHNICAL.search(text))


def is_quoted_word(text: str, start: int, end: int) -> bool:
    """Returns True for a quoted word in a text about language: "Rose" in `Use the word "Rose" in a sentence`.

    Such a word is no name. The word is text[start:end], without its quotation marks.
    """
    quoted = 0 < start <= end < len(text) and text[start - 1] in _QUOTES and text[end] in _QUOTES
    return quoted and bool(_ABOUT_WORDS.search(text))


@lru_cache(maxsize=20_000)
def _ends_as_word(lower: str, german: bool) -> bool:
    return bool(_WORD_ENDING.match(lower)) or (german and bool(_GERMAN_NOUN.match(lower)))


class WordContext:
    """Answers questions about the words of one text, with the lexicon and the language of the text.

    Methods take the index of a word: `i` for any word, `first` and `last` for the first and the last word of a name. A
    method looks only at a fixed number of words around it, so that the detectors take linear time.
    """

    def __init__(self, words: Words, lexicon: Lexicon, language: str) -> None:
        self.words = words
        self.lexicon = lexicon
        self.nouns_are_capital = language == "de"
        self._is_technical: bool | None = None  # computed when the first term is met

    def is_joined(self, last: int) -> bool:
        """Returns True if the words after the name show a person: "and" with a capitalized word, or "(born"."""
        words = self.words
        if words.next_lower(last) in CONJUNCTIONS and last + 2 < len(words) and words.is_capital(last + 2):
            return True
        return words.gap(last).startswith(" (") and words.lowers[min(last + 1, len(words) - 1)] in _AGE_WORDS

    def fits_sentence_start(self, i: int) -> bool:
        """Returns True if the text after word i allows a name: "is", "and", a comma, a colon, "'s", a line end."""
        words = self.words
        after = words.text[words.ends[i] : words.ends[i] + 2]
        is_end = after[:1] in (",", "\n", "", ":", ")") or after in ("'s", "’s")
        return is_end or words.next_lower(i) in _AFTER_SUBJECT

    def is_thing_name(self, last: int) -> bool:
        """Returns True if the word after the name makes it the name of a thing: "Victoria Falls", "Bayes Theorem"."""
        return self.words.next_lower(last) in _THING_NOUNS and self.words.is_capital(last + 1)

    def follows_place_word(self, i: int) -> bool:
        """Returns True if the word before word i announces a place, such as "in" or "from"."""
        return self.words.previous_lower(i) in _PLACE_WORDS

    def is_date(self, i: int) -> bool:
        """Returns True if word i is the name of a month beside a number: "Jan 5", "12 Jan"."""
        words = self.words
        before = words.text[max(0, words.starts[i] - 3) : words.starts[i]]
        after = words.text[words.ends[i] : words.ends[i] + 3].lstrip(". ")
        beside_number = after[:1].isdigit() or before.rstrip(" .-/")[-1:].isdigit()
        return words.lowers[i] in _SHORT_MONTHS and beside_number

    def is_stop(self, i: int) -> bool:
        """Returns True if word i is never part of a name: a stop word or its contraction ("You'll")."""
        lower = self.words.lowers[i]
        if lower in self.lexicon.stop:
            return True
        if "'" not in lower:
            return False
        stem, _, ending = lower.partition("'")
        return ending in ("ll", "ve", "re", "d", "m", "t", "s") and (stem in self.lexicon.stop or stem.endswith("n"))

    def is_word(self, i: int) -> bool:
        """Returns True if word i is an ordinary word, a form of one ("customers", "selected"), or ends like one."""
        lower, common = self.words.lowers[i], self.lexicon.common
        if lower in common or self.is_stop(i):
            return True
        if lower in self.lexicon.last_names or lower in self.lexicon.first_names:
            return False
        if lower.endswith(_FORMS) and not lower.endswith("ss"):
            stems = (lower[: -len(end)] for end in _FORMS if lower.endswith(end))
            if any(len(stem) > 3 and stem in common for stem in stems):
                return True
        return _ends_as_word(lower, self.nouns_are_capital)

    def is_term(self, i: int) -> bool:
        """Returns True if word i names a thing in a technical text: "Gauss", "Julia", "Boyer-Moore".

        Returns False if the words around it show a person: a verb such as "said", a first or a last name beside it.
        """
        words, lexicon = self.words, self.lexicon
        if words.lowers[i] not in TERMS or self.has_person_verb(i):
            return False
        before = words.lowers[max(0, i - 1)]
        if before in lexicon.sure_names and before not in TERMS:
            return False
        following = words.next_lower(i)
        has_last_name = following in lexicon.last_names and following not in TERMS and words.is_capital(i + 1)
        if has_last_name and not self.is_word(i + 1):
            return False
        if self._is_technical is None:
            self._is_technical = is_technical(words.text)
        return self._is_technical

    def extend(self, first: int, any_case: bool = False, comma: bool = False, strong: bool = False) -> int:
        """Returns the index of the last word of the name that begins at word `first`; `first` if it has one word.

        Args:
            first: Index of the first word of the name.
            any_case: A word in lower case may continue the name.
            comma: A comma may stand in the name: "Fifita, Tevita".
            strong: A listed last name continues the name even if it is an ordinary word: "Young".
        """
        words, last_names = self.words, self.lexicon.last_names
        last, k = first, first + 1
        while k < len(words) and k - first <= MAX_PARTS:
            gap, lower = words.gap(k - 1), words.lowers[k]
            joined = gap in (" ", "-", "\u00a0") or (words.is_initial(k - 1) and gap in (". ", "."))
            if not joined and not (comma and gap == ", " and last == first == k - 1):
                break
            if lower in PARTICLES and gap != "-" and not words.is_initial(k):
                if not self.particle_continues(k):
                    break
            elif words.is_initial(k):
                if not words.gap(k).startswith((".", " ")) or (lower in "ia" and not words.gap(k).startswith(".")):
                    break
                last = k
            elif (
                (gap == "-" and words.is_capital(k))
                or self.can_end_name(k, any_case)
                or (strong and words.is_capital(k) and lower in last_names and len(lower) > 3)
            ):
                last = k
            else:
                break
            k += 1
        return last

    def particle_continues(self, k: int) -> bool:
        """Returns True if the particle at word k begins a last name, as "van" in "van der Berg"."""
        words = self.words
        for following in range(k + 1, min(k + 4, len(words))):
            if words.gap(following - 1) not in (" ", "-", "'", "’", "\u00a0"):
                return False
            if words.lowers[following] not in PARTICLES:
                return self.can_end_name(following, any_case=False)
        return False

    def can_end_name(self, k: int, any_case: bool) -> bool:
        """Returns True if word k may be the last word of a name that begins before it.

        Args:
            k: Index of the word.
            any_case: The word may be in lower case.
        """
        words, lexicon = self.words, self.lexicon
        lower, word = words.lowers[k], words.written[k]
        listed = lower in lexicon.last_names
        if listed and word[0].isupper() and words.lowers[k - 1] in lexicon.sure_names and len(lower) > 3:
            return True  # "Heiko Graf"
        if self.is_stop(k) or len(lower) < 2 or (words.is_code(k) and not words.text.startswith(".", words.ends[k])):
            return False
        if not word[0].isupper():
            return any_case and word not in PERSON_VERBS and not self.is_word(k)
        if listed:
            return not (self.nouns_are_capital and lower in lexicon.common)
        return not self.is_word(k) and not (word.isupper() and not words.written[k - 1].isupper())

    def has_last_name(self, i: int, last: int) -> bool:
        """Returns True if the words after first name i, up to word `last`, are its last name.

        Inside a sentence, any capitalized word is enough, except in German. Elsewhere it must be a listed last name.
        """
        words, lexicon = self.words, self.lexicon
        if words.lowers[i + 1] in lexicon.sure_names and words.starts_sentence(i) and words.lowers[i] in lexicon.stop:
            return False  # "Will Anna come?"
        tail = [words.lowers[k] for k in range(i + 1, last + 1) if words.lowers[k] not in PARTICLES]
        listed = any(lower in lexicon.last_names and lower not in lexicon.common for lower in tail)
        return listed or (not words.starts_sentence(i) and not self.nouns_are_capital)

    def is_title(self, i: int) -> bool:
        """Returns True if word i is a title: "Mr", "Frau", "aunt"."""
        return self.words.lowers[i] in TITLES_IN_TEXT

    def has_person_verb(self, i: int) -> bool:
        """Returns True if the word after word i is a verb whose subject is a person, such as "said"."""
        return self.words.next_written(i) in PERSON_VERBS

    def is_among_capitals(self, i: int) -> bool:
        """Returns True if the words beside word i are in capitals, too. Then capitals say nothing about word i."""
        words = self.words
        around = [words.written[k] for k in (i - 1, i + 1) if 0 <= k < len(words)]
        return bool(around) and all(word.isupper() and len(word) > 1 for word in around)

    def is_lone_capital(self, i: int) -> bool:
        """Returns True if word i alone is capitalized inside a sentence, and is no month: "and Rose wanted"."""
        words, lower = self.words, self.words.lowers[i]
        if i == 0 or words.starts_sentence(i) or words.written[i].isupper():
            return False
        if lower in MONTHS or lower in self.lexicon.cities or lower in self.lexicon.stop:
            return False
        if words.gap(i - 1) not in (*SPACES, ", ") or words.lowers[i - 1] in DETERMINERS:
            return False
        if words.lowers[i - 1] in CONJUNCTIONS and i > 1 and words.is_capital(i - 2) and self.is_word(i - 2):
            return False  # "War and Peace"
        return not words.is_capital(i - 1) and not words.next_written(i)[:1].isupper()
