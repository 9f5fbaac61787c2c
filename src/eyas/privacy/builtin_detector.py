"""The built-in detector of personal data: it works offline and needs no download.

It runs the detectors in the other files of this package and joins their spans.
"""

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from eyas.privacy.addresses import find_addresses, find_postcode_towns
from eyas.privacy.case_insensitive import plain_text
from eyas.privacy.documentation_values import without_documentation
from eyas.privacy.identifiers import find_accounts, find_cards, find_identifiers
from eyas.privacy.labeled_values import find_birth_dates, find_labeled_values, find_labels
from eyas.privacy.name_tagger import Tagger
from eyas.privacy.phone_email_ip import find_emails, find_ip_addresses, find_phone_numbers
from eyas.privacy.places import UNLISTED_SCORE, WEAK_SCORE, find_listed_towns, find_places
from eyas.privacy.private_values import find_private_values
from eyas.privacy.secrets import find_secrets
from eyas.privacy.span import Span, merge_spans
from eyas.privacy.structured_text import find_structured
from eyas.privacy.word_lists import LANGUAGES, load_lexicon
from eyas.privacy.words import split_words

VERSION = 9  # increased when the same text gives other spans
_PACKAGES = ("phonenumbers", "python-stdnum", "faker", "detect-secrets", "simplemma")


class BuiltinDetector:
    """A detector that uses patterns, checksums, word lists and phrases."""

    name_languages: frozenset[str] = frozenset(LANGUAGES)

    def __init__(self) -> None:
        """Loads the lexicon. Raises ImportError if a package of the extra `data` is not installed."""
        self.name = f"builtin {VERSION} ({', '.join(f'{name} {version(name)}' for name in _PACKAGES)})"
        self._towns = load_lexicon().cities | load_lexicon().towns

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns one list of spans for each text; the spans of a text are sorted and do not overlap."""
        found = []
        for text, language in zip(texts, languages, strict=True):
            spans, tagger = self._find(text, language)
            values = list(find_private_values(plain_text(text), merge_spans(spans), language))
            if values:  # the text is about a person
                spans += _find_towns(tagger, True, spans)
            found.append(merge_spans(without_documentation(text, (*spans, *values))))
        return found

    def _find(self, text: str, language: str) -> tuple[list[Span], Tagger]:
        """Returns the spans of a text, and the tagger that read it."""
        plain = plain_text(text)  # has the same positions
        phones = find_phone_numbers(plain, language, is_personal=False)
        contacts = list(without_documentation(text, (*find_emails(plain), *phones)))
        structured = list(without_documentation(text, find_structured(text, language)))
        labeled = list(without_documentation(text, find_labeled_values(plain, language)))
        tagger = Tagger(split_words(text), language, has_data=bool(contacts or structured or labeled))
        labels = {(label.start, label.end) for label in find_labels(plain)}  # "Kundennummer 4711"
        people = [span for span in tagger.run() if (span.start, span.end) not in labels]
        is_personal = bool(contacts or structured or labeled or people) or tagger.is_personal
        numbers = list(without_documentation(text, self._find_numbers(plain, language, is_personal)))
        dates = find_birth_dates(plain, people, language)
        towns = _find_towns(tagger, is_personal or bool(numbers), people)
        found = [*find_secrets(plain), *structured, *contacts, *labeled, *numbers, *dates, *towns]
        sure_towns = [span for span in found if span.kind == "LOCATION" and span.score > WEAK_SCORE]
        for span in people:
            # "lives in Caldas da Rainha": a name that is on no list and stands in the position of a place is a place.
            is_sure = span.score > UNLISTED_SCORE and not tagger.is_uncased
            if is_sure or not any(town.start <= span.start < town.end for town in sure_towns):
                found.append(span)
        return found, tagger

    def _find_numbers(self, plain: str, language: str, is_personal: bool) -> Iterator[Span]:
        """Yields numbers and addresses."""
        if any(char.isdigit() for char in plain):  # each of these holds a digit
            yield from find_cards(plain)
            yield from find_accounts(plain)
            yield from find_identifiers(plain, language, is_personal)
            if is_personal:
                yield from find_phone_numbers(plain, language, is_personal)
            yield from find_ip_addresses(plain)
            yield from find_postcode_towns(plain, self._towns)
        yield from find_addresses(plain, language)


def _find_towns(tagger: Tagger, is_personal: bool, people: Sequence[Span]) -> Iterator[Span]:
    if tagger.is_uncased:
        return find_listed_towns(tagger.words, tagger.language, is_personal, people)
    return find_places(tagger, is_personal)
