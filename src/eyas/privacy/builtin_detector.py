"""The built-in detector: offline, no model, nine languages. It joins what the other files of this room find."""

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from eyas.base.errors import UsageError
from eyas.privacy.span import Span, merge
from eyas.privacy.tokens import split

VERSION = 1  # raised when what is found changes
_PACKAGES = ("presidio-analyzer", "phonenumbers", "python-stdnum", "faker", "detect-secrets", "spacy", "simplemma")


class BuiltinDetector:
    """Patterns, checksums, word lists and phrases. Raises UsageError where the extra `data` is not installed."""

    def __init__(self) -> None:
        try:
            self.name = f"builtin {VERSION} ({', '.join(f'{name} {version(name)}' for name in _PACKAGES)})"
            from eyas.privacy import name_lists as lexicon
            from eyas.privacy import names

            self._lexicon = lexicon.lexicon()
        except (PackageNotFoundError, ImportError) as error:
            raise UsageError(
                f"the detector builtin without the package {error.name}",
                "the packages of the extra data",
                "run: pip install 'eyas[data]'",
            ) from None
        self._names = names.Names(self._lexicon)
        self.name_languages: frozenset[str] = frozenset(lexicon.LANGUAGES)

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Spans that do not overlap, in order, for each text."""
        return [merge(self._find(text, language)) for text, language in zip(texts, languages, strict=True)]

    def _find(self, text: str, language: str) -> Iterator[Span]:
        from eyas.privacy import account, address, contact, identifier, place, secret, structure
        from eyas.privacy import unlisted_names as stranger

        yield from secret.secrets(text)
        contacts = list(contact.emails(text))
        framed = list(structure.structured(text, self._lexicon, language))
        people = self._names.find(text, language)
        personal = bool(contacts or framed or people) or stranger.is_about_people(text, language)
        yield from framed
        if any(char.isdigit() for char in text):  # none of these goes without a digit
            yield from account.cards(text)
            yield from account.accounts(text)
            yield from identifier.identifiers(text, language)
            contacts += contact.phones(text, language, personal)
            yield from contact.ip_addresses(text)
            yield from address.towns(text, self._lexicon.cities)
        yield from contacts
        yield from address.addresses(text, language)
        towns = list(place.places(text, self._lexicon, language, personal, frozenset(span.end for span in people)))
        yield from towns
        sure_towns = [town for town in (*towns, *framed) if town.kind == "LOCATION" and town.score > place.LOW]
        names = frozenset(word for span in people for word in split(text[span.begin : span.end]).lowers)
        strangers = stranger.strangers(text, self._lexicon, language, names, personal, bool(contacts))
        for span in (*people, *strangers):
            # "lives in Caldas da Rainha": what stands where a place does, and is on no list of names, is a place.
            if span.score > place.SCORE or not any(town.begin <= span.begin < town.end for town in sure_towns):
                yield span
