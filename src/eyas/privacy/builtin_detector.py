"""The built-in detector of personal data: it works offline, without a model, for nine languages.

It runs the detectors in the other files of this package and joins their spans.
"""

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from eyas.privacy.addresses import find_addresses, find_postcode_towns
from eyas.privacy.cards_accounts import find_accounts, find_cards
from eyas.privacy.government_ids import find_government_ids
from eyas.privacy.labels import ValueMatcher
from eyas.privacy.letters import find_letter_names
from eyas.privacy.names_in_prose import find_unlisted_names, is_about_people
from eyas.privacy.person_names import find_person_names
from eyas.privacy.phone_email_ip import find_emails, find_ip_addresses, find_phone_numbers
from eyas.privacy.places import UNLISTED_SCORE, WEAK_SCORE, find_places
from eyas.privacy.secrets import find_secrets
from eyas.privacy.span import Span, merge_spans
from eyas.privacy.structured_text import find_field_values, find_table_values
from eyas.privacy.word_lists import LANGUAGES, Lexicon, load_lexicon
from eyas.privacy.words import split_words

VERSION = 1  # increased when the same text gives other spans
_PACKAGES = ("phonenumbers", "python-stdnum", "faker", "detect-secrets", "simplemma")


class BuiltinDetector:
    """A detector that uses patterns, checksums, word lists and phrases."""

    name_languages: frozenset[str] = frozenset(LANGUAGES)

    def __init__(self) -> None:
        """Loads the lexicon. Raises ImportError if a package of the extra `data` is not installed."""
        self.name = f"builtin {VERSION} ({', '.join(f'{name} {version(name)}' for name in _PACKAGES)})"
        self._lexicon = load_lexicon()

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns one list of spans for each text; the spans of a text are sorted and do not overlap."""
        return [merge_spans(self._find(text, language)) for text, language in zip(texts, languages, strict=True)]

    def _find(self, text: str, language: str) -> Iterator[Span]:
        yield from find_secrets(text)
        contacts = list(find_emails(text))
        structured = list(find_structured(text, self._lexicon, language))
        people = find_person_names(text, self._lexicon, language)
        is_personal = bool(contacts or structured or people) or is_about_people(text, language)
        yield from structured
        if any(char.isdigit() for char in text):  # each of these holds a digit
            yield from find_cards(text)
            yield from find_accounts(text)
            yield from find_government_ids(text, language)
            contacts += find_phone_numbers(text, language, is_personal)
            yield from find_ip_addresses(text)
            yield from find_postcode_towns(text, self._lexicon.cities)
        yield from contacts
        yield from find_addresses(text, language)
        towns = list(find_places(text, self._lexicon, language, is_personal, frozenset(span.end for span in people)))
        yield from towns
        if is_personal or contacts:
            names = frozenset(word for span in people for word in split_words(text[span.start : span.end]).lowers)
            people += find_unlisted_names(text, self._lexicon, language, names, bool(contacts))
        sure_towns = [town for town in (*towns, *structured) if town.kind == "LOCATION" and town.score > WEAK_SCORE]
        for span in people:
            # "lives in Caldas da Rainha": a name that is on no list and stands in the position of a place is a place.
            if span.score > UNLISTED_SCORE or not any(town.start <= span.start < town.end for town in sure_towns):
                yield span


def find_structured(text: str, lexicon: Lexicon, language: str) -> Iterator[Span]:
    """Yields spans in tables, in fields ("name: Anna"), and in letters and e-mails ("Dear Anna,").

    Args:
        text: The text.
        lexicon: The lists of names and words.
        language: The language of the text (ISO 639-1).
    """
    matcher = ValueMatcher(lexicon, language)
    has_lines = "\n" in text
    if has_lines:
        yield from find_table_values(text, matcher)
    if ":" in text or "=" in text or "</" in text:
        yield from find_field_values(text, matcher)
    if has_lines or ":" in text:
        yield from find_letter_names(text, matcher)
