"""The built-in detector: offline, no model, nine languages. It joins what the other files of this room find."""

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from eyas.base.errors import UsageError
from eyas.privacy.span import Span, merge_spans
from eyas.privacy.tokens import split_words

VERSION = 1  # raised when what is found changes
_PACKAGES = ("presidio-analyzer", "phonenumbers", "python-stdnum", "faker", "detect-secrets", "spacy", "simplemma")


class BuiltinDetector:
    """Patterns, checksums, word lists and phrases. Raises UsageError where the extra `data` is not installed."""

    def __init__(self) -> None:
        try:
            self.name = f"builtin {VERSION} ({', '.join(f'{name} {version(name)}' for name in _PACKAGES)})"
            from eyas.privacy import lexicon
            from eyas.privacy import person_names as names

            self._lexicon = lexicon.load_lexicon()
        except (PackageNotFoundError, ImportError) as error:
            raise UsageError(
                f"the detector builtin without the package {error.name}",
                "the packages of the extra data",
                "run: pip install 'eyas[data]'",
            ) from None
        self._names = names.PersonNameDetector(self._lexicon)
        self.name_languages: frozenset[str] = frozenset(lexicon.LANGUAGES)

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Spans that do not overlap, in order, for each text."""
        return [merge_spans(self._find(text, language)) for text, language in zip(texts, languages, strict=True)]

    def _find(self, text: str, language: str) -> Iterator[Span]:
        from eyas.privacy import addresses, cards_accounts, government_ids, phone_email_ip, places, secrets, structure
        from eyas.privacy import unlisted_names as unlisted

        yield from secrets.find_secrets(text)
        contacts = list(phone_email_ip.find_emails(text))
        framed = list(structure.find_structured(text, self._lexicon, language))
        people = self._names.find(text, language)
        personal = bool(contacts or framed or people) or unlisted.is_about_people(text, language)
        yield from framed
        if any(char.isdigit() for char in text):  # none of these goes without a digit
            yield from cards_accounts.find_cards(text)
            yield from cards_accounts.find_accounts(text)
            yield from government_ids.find_government_ids(text, language)
            contacts += phone_email_ip.find_phone_numbers(text, language, personal)
            yield from phone_email_ip.find_ip_addresses(text)
            yield from addresses.find_postcode_towns(text, self._lexicon.cities)
        yield from contacts
        yield from addresses.find_addresses(text, language)
        towns = list(
            places.find_places(text, self._lexicon, language, personal, frozenset(span.end for span in people))
        )
        yield from towns
        sure_towns = [town for town in (*towns, *framed) if town.kind == "LOCATION" and town.score > places.WEAK_SCORE]
        names = frozenset(word for span in people for word in split_words(text[span.start : span.end]).lowers)
        strangers = unlisted.find_unlisted_names(text, self._lexicon, language, names, personal, bool(contacts))
        for span in (*people, *strangers):
            # "lives in Caldas da Rainha": what stands where a place does, and is on no list of names, is a place.
            if span.score > places.UNLISTED_SCORE or not any(
                town.start <= span.start < town.end for town in sure_towns
            ):
                yield span
