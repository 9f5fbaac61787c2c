"""Words that a dictionary holds, and the file that caches it. All names are made up."""

import hashlib

import pytest

from eyas.privacy import dictionary
from eyas.privacy.dictionary import is_compound, is_known, is_misspelling


@pytest.mark.parametrize(
    ("words", "language"),
    [
        ("house houses went running", "en"),
        ("haus häuser lief straße terminverschiebung", "de"),
        ("maison mangeait éléphant", "fr"),
        ("canción comieron niños", "es"),
        ("perché mangiavamo gatti", "it"),
        ("coração comeram irmãs", "pt"),
        ("huizen gegeten één", "nl"),
        ("domu dziękuję żółty", "pl"),
        ("husen möte åt", "sv"),
    ],
)
def test_inflected_forms_are_known(words, language):
    assert [word for word in words.split() if not is_known(word, language)] == []


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv"])
def test_made_up_names_are_unknown(language):
    names = "zofreka garenstead quindar brelindo torvella jurandeva wiebrandus zdzimirka bröndulf"
    assert [name for name in names.split() if is_known(name, language)] == []


@pytest.mark.parametrize(
    ("word", "language"),
    [
        ("elephant", "fr"),
        ("cancion", "es"),
        ("perche", "it"),
        ("coracao", "pt"),
        ("dziekuje", "pl"),
        ("zolty", "pl"),
        ("mote", "sv"),
        ("hausern", "de"),
    ],
)
def test_accents_may_be_left_out(word, language):
    assert is_known(word, language)


@pytest.mark.parametrize(
    ("word", "language"),
    [
        ("ayúdame", "es"),
        ("ayudame", "es"),
        ("dímelo", "es"),
        ("comprarlo", "es"),
        ("aiutami", "it"),
        ("dimmelo", "it"),
        ("mangiarlo", "it"),
        ("ajudá-lo", "pt"),
        ("dizer-lhe", "pt"),
    ],
)
def test_a_verb_with_its_pronouns_is_known(word, language):
    assert is_known(word, language)


def test_english_words_are_known_in_every_language():
    assert is_known("download", "pl")
    assert not is_known("maison", "pl")


def test_a_language_without_a_dictionary_knows_english_alone():
    assert is_known("house", "xx")
    assert not is_known("haus", "xx")


@pytest.mark.parametrize(
    ("word", "language"),
    [
        ("heizkostenabrechnung", "de"),
        ("mietvertragskündigung", "de"),
        ("verjaardagsfeest", "nl"),
        ("ziekenhuisopname", "nl"),
        ("sommarstuga", "sv"),
    ],
)
def test_compounds(word, language):
    assert is_compound(word, language)


@pytest.mark.parametrize(("word", "language"), [("zofreka", "de"), ("wiebrandus", "nl"), ("bröndulf", "sv")])
def test_names_are_no_compounds(word, language):
    assert not is_compound(word, language)


@pytest.mark.parametrize(
    ("word", "language"),
    [
        ("portugese", "en"),
        ("definitly", "en"),
        ("acommodate", "en"),
        ("warscheinlich", "de"),
        ("malheuresement", "fr"),
        ("problemático", "es"),
    ],
)
def test_slips(word, language):
    assert is_known(word, language) or is_misspelling(word, language)


@pytest.mark.parametrize("word", ["garenstead", "quindarella", "zofreka", "wiebrandus"])
def test_names_are_no_slips(word):
    assert not is_misspelling(word, "en")


def clear_caches() -> None:
    """Drops what the process has loaded and computed: the next word is read from the file."""
    for value in vars(dictionary).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clear_caches()
    yield tmp_path / "eyas"
    clear_caches()


def test_a_damaged_file_is_built_again(directory):
    assert is_known("house", "en")
    (path,) = directory.glob("words-en-*")
    data = path.read_bytes()
    assert hashlib.sha256(data[32:]).digest() == data[:32]
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    for damaged in (data[:-4], b"", bytes(changed)):
        path.unlink()  # the other file may still be mapped
        path.write_bytes(damaged)
        clear_caches()
        assert is_known("house", "en")
        assert not is_known("garenstead", "en")
        assert path.read_bytes() == data


def test_an_intact_file_is_read_and_not_built(directory, monkeypatch):
    assert is_known("house", "en")
    clear_caches()
    monkeypatch.setattr("simplemma.strategies.dictionaries.stream_dictionary_factory.StreamDictionaryFactory", None)
    assert is_known("house", "en")
    assert not is_known("garenstead", "en")


def test_a_directory_that_is_not_writable_costs_only_time(directory, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert is_known("house", "en")
    assert not is_known("garenstead", "en")
