"""Finds places that tell something about a person: after "I live in", or listed towns in a text about a person."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from eyas.privacy.dictionary import is_known
from eyas.privacy.name_features import NameFeatures
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.word_lists import UNICASED, Lexicon, read_entries, read_words
from eyas.privacy.words import NAMED_THINGS, Words, load_matcher

UNLISTED_SCORE = 0.5  # of a place in no list of towns, after a phrase that announces a place
WEAK_SCORE = 0.3  # of a place in no list of towns, after a preposition: a person may follow it, too
_PATTERNS = load_patterns("places")
_PREPOSITIONS = read_words("prepositions_of_places")
_TABLES = frozenset(("words_of_living", "words_of_stays", "nouns_of_places"))
_REACH_OF_LIVING, _REACH_OF_STAYS = 4, 2  # words before a preposition
_VERB_LAST = ("de", "nl")  # languages whose verb follows the place: "nach Kiel gezogen"
_TOWNS = ("towns", "towns_that_are_words")
_TABLES_OF_TOWNS = (*_TOWNS, "words_of_living", "words_after_public_places", "words_before_public_places")
_REACH_OF_TOWNS = 24  # characters between a town and a word such as "live"
_REACH_UNSPACED = 3  # the same in languages without spaces between words
_MIN_TOWN = 2  # characters that stay of a town


def find_places(features: NameFeatures, is_personal: bool) -> Iterator[Span]:
    """Yields the spans of places, of kind "LOCATION": "I live in Paris" -> span of "Paris".

    "Paris is the capital of France" alone tells nothing about a person, so "Paris" is not yielded there.

    Args:
        features: The words of the text, and the entries of the language folders beside them.
        is_personal: The text is about a person: it names one, or holds an e-mail address.
    """
    for match in _PATTERNS["names"].finditer(features.words.text):
        start = match.start()
        lives, stays, preposition = _find_announcement(features, start, match.end())
        if not lives and not is_personal:
            continue
        if length := _city_length(match[0], features.lexicon, features.language, preposition):
            yield Span(start, start + length, "LOCATION", 0.8 if lives else 0.5)
        elif (lives or stays or preposition) and _is_place(match[0], features.lexicon):
            yield Span(start, match.end(), "LOCATION", UNLISTED_SCORE if lives or stays else WEAK_SCORE)


def find_listed_towns(words: Words, language: str, is_personal: bool, people: Sequence[Span]) -> Iterator[Span]:
    """Yields the spans of listed towns in a language without capital letters.

    Args:
        words: The words of the text, as the tagger splits them.
        language: The language of the text (ISO 639-1).
        is_personal: The text is about a person. In another one, a town counts only beside words such as "live".
        people: The names in the text, which are no towns.
    """
    text, done, is_spaced = words.text, 0, language in UNICASED
    found = list(load_matcher(_TABLES_OF_TOWNS, language).find(words))
    starting, ending = {(start, table) for start, _, table in found}, {(end, table) for _, end, table in found}
    living = sorted({end for _, end, table in found if table == "words_of_living"})
    names = {k for span in people for k in range(span.start, span.end)}
    homes = tuple(read_entries("words_behind_homes", language))
    suffixes = tuple(read_entries("endings_of_places", language))
    for start, end, table in found:
        is_home = text.startswith(homes, end)  # "松本在住": the town, not the last name
        if table not in _TOWNS or start < done or (start in names and not is_home):
            continue
        first = start - (_REACH_OF_TOWNS if is_spaced else _REACH_UNSPACED)
        last = end + _REACH_OF_TOWNS if is_spaced else start
        near = living[bisect_left(living, first) : bisect_right(living, last)]
        lives = is_home or any("\n" not in text[min(k, end) : max(k, start)] for k in near)
        is_public = any((at, "words_after_public_places") in starting for at in (end, end + 1))
        is_public |= any((at, "words_before_public_places") in ending for at in (start, start - 1))
        if not is_public and (lives or (is_personal and (start, "towns_that_are_words") not in starting)):
            done = end
            end -= text[start:end].endswith(suffixes or "\n") and end - start > _MIN_TOWN  # "倉吉市" -> "倉吉"
            yield Span(start, end, "LOCATION", 0.8 if lives else 0.5)


def _find_announcement(features: NameFeatures, start: int, end: int) -> tuple[bool, bool, bool]:
    """Returns if words of living, if words of a stay, and if a preposition stand before text[start:end].

    Words of living are "live" and "moved"; words of a stay are "trip" and "arrived". A verb may also stand right after
    the place: "nach Kiel gezogen".
    """
    words, text = features.words, features.words.text
    last = bisect_left(words.starts, start) - 1
    if last < 0:
        return False, False, False
    gap, tables = text[words.ends[last] : start], features.ending.get(words.ends[last], ())
    if _PATTERNS["end_of_label"].search(gap):  # "City: Kiel"
        return "words_of_living" in tables, False, False
    if gap.strip() in ("", ".") and "nouns_of_places" in tables:
        return False, True, True
    is_elided = _PATTERNS["elided"].match(gap) is not None
    if not is_elided and (gap.strip() or words.lowers[last] not in _PREPOSITIONS):
        return False, False, False
    lives = stays = False
    first = last if is_elided else last - 1
    for distance, i in enumerate(range(first, max(-1, first - _REACH_OF_LIVING), -1)):
        if _PATTERNS["clause_end"].search(words.gaps[i]):
            break
        tables = features.ending.get(words.ends[i], ())
        lives |= "words_of_living" in tables
        stays |= "words_of_stays" in tables and distance < _REACH_OF_STAYS
    following = bisect_left(words.starts, end)
    if features.language in _VERB_LAST and following < len(words) and text[end : words.starts[following]] == " ":
        stays |= not _TABLES.isdisjoint(features.ending.get(words.ends[following], ()))
    return lives, stays, True


def _is_place(name: str, lexicon: Lexicon) -> bool:
    """Returns True if capitalized words may name a place.

    They may not if all of them are common words, or if there is only one: a first name, a brand or a stop word, to
    which countries and months belong.
    """
    words = [word for word in _PATTERNS["edge_of_part"].split(name.casefold()) if len(word) > 2]
    if not words or all(word in lexicon.common for word in words):
        return False
    if " " not in name and "'" not in name and (words[0] in lexicon.sure_names or words[0] in NAMED_THINGS):
        return False
    return len(words) > 1 or words[0] not in lexicon.stop


def _city_length(words: str, lexicon: Lexicon, language: str, preposition: bool) -> int:
    """Returns the number of characters of the longest listed town at the start of `words`; 0 if there is none.

    "New York Times" -> 8.

    Args:
        words: Capitalized words.
        lexicon: The lists of names and words.
        language: The language of the text (ISO 639-1).
        preposition: The word before them announces a place, such as "in". If it is False, a town that is also a common
            word, such as "Nice", is no town.
    """
    length = len(words)
    while length > 0:
        name = words[:length].casefold()
        is_word = name in lexicon.common and " " not in name
        is_listed = name in lexicon.cities or (name in lexicon.towns and (preposition or not is_known(name, language)))
        if is_listed and name not in lexicon.stop and (preposition or not is_word):
            return length
        length = max(words.rfind(" ", 0, length), words.rfind("-", 0, length))
    return 0
