"""What stands around a word of a text, and what that says about it: where a name ends, whether it is one at all."""

import re
from functools import lru_cache

from eyas.privacy.context_words import AGE_WORDS, BE_AND, CONJUNCTIONS, DETERMINERS, MONTHS, PLACE_WORDS, THING_NOUNS
from eyas.privacy.lexicon import PARTICLES, Lexicon
from eyas.privacy.name_phrases import PERSON_VERBS, Cue, index_phrases
from eyas.privacy.tokens import Words

MAX_PARTS = 6  # words in a name: "Maria do Carmo da Silva Santos"
# Endings of words that hardly end a name.
_WORD_ENDING = re.compile(
    r".{2,}(?:tion|sion|tions|sions|ment|ments|ness|less|ically|ology|graphy|ance|ence|ible|able|ables|ware|ships?"
    r"|hood|ized?|ised"
    r"|ful|fully|ity|ities|ism|isms|ists|ous|ously|ively|ive|ives|ating|ating|ated|ates|ifying|ified|ual|ually|ility"
    r"|ologist|ics"
    r"|zione|zioni|mente|idad|idades|dade|dades|ção|ções|ión|iones|eurs|euse|aires?|ements?|iques?|ość|ości|ować"
    r"|anie|enie|ning|het)\Z"
)
_FORMS = ("s", "es", "ed", "d", "ing", "ly", "er", "n")
_GERMAN_NOUN = re.compile(
    r".{2,}(?:ung|ungen|heit|keit|keiten|schaft|tion|tionen|tät|nis|tum|ment|chen|lein|ling|keits|rechnung|ismus"
    r"|ität)\Z"
)


@lru_cache(maxsize=20_000)
def _ends_as_word(lower: str, german: bool) -> bool:
    return bool(_WORD_ENDING.match(lower)) or (german and bool(_GERMAN_NOUN.match(lower)))


class WordContext:
    """Questions about word i of one text. Each looks at a bounded number of neighbours."""

    def __init__(self, words: Words, lexicon: Lexicon, language: str) -> None:
        self.words = words
        self.lexicon = lexicon
        self.nouns_are_capital = language == "de"

    def is_joined(self, last: int) -> bool:
        """Whether "and" with another capitalised word follows, or the year of a birth."""
        w = self.words
        following = (
            last + 2 < len(w) and w.lowers[last + 1] in CONJUNCTIONS and w.is_capital(last + 2) and w.gap(last) == " "
        )
        return following or (w.gap(last).startswith(" (") and w.lowers[min(last + 1, len(w) - 1)] in AGE_WORDS)

    def fits_sentence_start(self, i: int) -> bool:
        """Whether what follows fits a name at a sentence's start: "is", a comma, a possessive, the line's end."""
        w = self.words
        after = w.text[w.ends[i] : w.ends[i] + 2]
        return (
            after[:1] in (",", "\n", "", ":", ")")
            or after in ("'s", "’s")
            or (i + 1 < len(w) and w.lowers[i + 1] in BE_AND and w.gap(i) == " ")
        )

    def is_thing_name(self, last: int) -> bool:
        """Whether a noun follows that makes a thing of the name: "Victoria Falls", "Bayes Theorem"."""
        w = self.words
        return last + 1 < len(w) and w.gap(last) == " " and w.is_capital(last + 1) and w.lowers[last + 1] in THING_NOUNS

    def follows_place_word(self, i: int) -> bool:
        return i > 0 and self.words.lowers[i - 1] in PLACE_WORDS and self.words.gap(i - 1) == " "

    def is_date(self, i: int) -> bool:
        """Whether a month's name stands beside a number: "Jan 5", "12 Jan"."""
        w = self.words
        before = w.text[max(0, w.starts[i] - 3) : w.starts[i]]
        after = w.text[w.ends[i] : w.ends[i] + 3].lstrip(". ")
        short = w.lowers[i] in MONTHS or w.lowers[i] in ("jan", "mar", "mai", "sep", "dec", "août")
        return short and (after[:1].isdigit() or before.rstrip(" .-/")[-1:].isdigit())

    def is_stop(self, i: int) -> bool:
        """Whether word i is never part of a name: a stop word, a contraction of one ("You'll")."""
        lower = self.words.lowers[i]
        if lower in self.lexicon.stop:
            return True
        if "'" not in lower:
            return False
        stem, _, ending = lower.partition("'")
        return ending in ("ll", "ve", "re", "d", "m", "t", "s") and (stem in self.lexicon.stop or stem.endswith("n"))

    def is_word(self, i: int) -> bool:
        """Whether word i is a common word or a form of one ("customers", "selected")."""
        lower, common = self.words.lowers[i], self.lexicon.common
        if lower in common or self.is_stop(i):
            return True
        if lower in self.lexicon.last_names or lower in self.lexicon.first_names:
            return False
        if (
            lower.endswith(_FORMS)
            and not lower.endswith("ss")
            and any(
                lower.endswith(end) and len(lower) - len(end) > 3 and lower[: -len(end)] in common for end in _FORMS
            )
        ):
            return True
        return _ends_as_word(lower, self.nouns_are_capital)

    def extend(self, first: int, any_case: bool = False, comma: bool = False, strong: bool = False) -> int:
        """The last word of the name that begins at `first`.

        any_case: lower case may go on; comma: "Fifita, Tevita" is one name; strong: a last name that is a word counts.
        """
        w, lex = self.words, self.lexicon
        last, k = first, first + 1
        while k < len(w) and k - first <= MAX_PARTS:
            gap = w.gap(k - 1)
            initial = w.is_initial(k - 1)
            joined = gap in (" ", "-", "\u00a0") or (initial and gap in (". ", "."))
            if not joined and not (comma and gap == ", " and last == first == k - 1):
                break
            lower = w.lowers[k]
            if lower in PARTICLES and gap != "-" and not w.is_initial(k):
                if not self.particle_continues(k):
                    break
            elif w.is_initial(k):
                if not w.gap(k).startswith((".", " ")) or (lower in "ia" and not w.gap(k).startswith(".")):
                    break
                last = k
            elif (
                (gap == "-" and w.is_capital(k))
                or self.can_end_name(k, any_case)
                or (strong and w.is_capital(k) and lower in lex.last_names and len(lower) > 3)
            ):
                last = k
            else:
                break
            k += 1
        return last

    def particle_continues(self, k: int) -> bool:
        w = self.words
        for following in range(k + 1, min(k + 4, len(w))):
            if w.gap(following - 1) not in (" ", "-", "'", "’", "\u00a0"):
                return False
            if w.lowers[following] not in PARTICLES:
                return self.can_end_name(following, any_case=False)
        return False

    def can_end_name(self, k: int, any_case: bool) -> bool:
        w, lex = self.words, self.lexicon
        lower, word = w.lowers[k], w.written[k]
        if word[0].isupper() and lower in lex.last_names and w.lowers[k - 1] in lex.sure_names and len(lower) > 3:
            return True  # "Heiko Graf"
        if self.is_stop(k) or len(lower) < 2 or (w.is_code(k) and w.text[w.ends[k] : w.ends[k] + 1] != "."):
            return False
        if not word[0].isupper():
            return any_case and word not in PERSON_VERBS and not self.is_word(k)
        if lower in lex.last_names:
            return not (self.nouns_are_capital and lower in lex.common)
        return not self.is_word(k) and not (word.isupper() and not w.written[k - 1].isupper())

    def has_last_name(self, i: int, last: int) -> bool:
        w, lex = self.words, self.lexicon
        tail = [k for k in range(i + 1, last + 1) if w.lowers[k] not in PARTICLES]
        listed = any(w.lowers[k] in lex.last_names and w.lowers[k] not in lex.common for k in tail)
        follows_name = w.lowers[i + 1] in lex.sure_names and w.starts_sentence(i) and w.lowers[i] in lex.stop
        if follows_name:
            return False  # "Will Anna come?"
        return listed or (not w.starts_sentence(i) and not self.nouns_are_capital)

    def is_title(self, i: int) -> bool:
        return any(
            phrase.cue is Cue.TITLE and not phrase.before for phrase in index_phrases().get(self.words.lowers[i], ())
        )

    def has_person_verb(self, i: int) -> bool:
        """Whether a verb follows whose subject is a person."""
        w = self.words
        return i + 1 < len(w) and w.gap(i) in (" ", "\u00a0") and w.written[i + 1] in PERSON_VERBS

    def is_among_capitals(self, i: int) -> bool:
        """Whether the neighbours stand in capitals as well: then capitals say nothing."""
        w = self.words
        around = [k for k in (i - 1, i + 1) if 0 <= k < len(w)]
        return bool(around) and all(w.written[k].isupper() and len(w.written[k]) > 1 for k in around)

    def is_lone_capital(self, i: int) -> bool:
        """A word with a capital in the middle of a sentence, no month and no heading: "and Rose wanted"."""
        w, lex = self.words, self.lexicon
        if (
            i == 0
            or w.starts_sentence(i)
            or w.lowers[i] in MONTHS
            or w.lowers[i] in lex.cities
            or w.written[i].isupper()
        ):
            return False
        if w.lowers[i] in lex.stop or w.gap(i - 1) not in (" ", ", ", "\u00a0") or w.lowers[i - 1] in DETERMINERS:
            return False
        if w.lowers[i - 1] in CONJUNCTIONS and i > 1 and w.is_capital(i - 2) and self.is_word(i - 2):
            return False  # "War and Peace"
        following = i + 1 < len(w) and w.gap(i) == " " and w.is_capital(i + 1)
        return not w.is_capital(i - 1) and not following
