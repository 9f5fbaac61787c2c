"""The data files keep their rules, and the lists built from them are cached until code or data change."""

import re
import shutil
from pathlib import Path

import pytest

from eyas.base.errors import InputError
from eyas.privacy import word_lists
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import PrivacyFilter
from eyas.privacy.word_lists import DATA, LANGUAGES, code_digest, load_cached, read_by_language, read_data_file

FILES = sorted(path.stem for path in DATA.glob("*.toml"))
TABLES_OF_OTHER_FORM = ("government_ids", "entity_labels")


@pytest.fixture
def counted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def build():
        calls.append(1)
        return b"content"

    return calls, build, tmp_path / "eyas"


def test_lists_are_built_once(counted):
    calls, build, _ = counted
    assert load_cached("privacy-x", "1", build, 3) == load_cached("privacy-x", "1", build, 3) == b"content"
    assert len(calls) == 1


def test_a_damaged_file_is_built_again(counted):
    calls, build, directory = counted
    load_cached("privacy-x", "1", build, 3)
    (path,) = directory.glob("privacy-x-1.bin")
    path.write_bytes(path.read_bytes()[:-3])
    assert load_cached("privacy-x", "1", build, 3) == b"content"
    load_cached("privacy-x", "1", build, 3)
    assert len(calls) == 2


def test_a_directory_that_is_not_writable_costs_only_time(counted, monkeypatch, tmp_path):
    calls, build, _ = counted
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_cached("privacy-x", "1", build, 3) == load_cached("privacy-x", "1", build, 3)
    assert len(calls) == 2


def test_the_digest_of_the_filter_covers_the_code(monkeypatch):
    class Nothing:
        name = "nothing"
        name_languages: frozenset[str] = frozenset(("en",))

        def find(self, texts, languages):
            return [[] for _ in texts]

    def digest():
        return PrivacyFilter(PrivacyConfig(), bytes(16), [Nothing()]).digest

    before = digest()
    monkeypatch.setattr("eyas.privacy.filter.code_digest", lambda: "other")
    assert digest() != before


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A copy of the data files that a test may change."""
    copy = tmp_path / "privacy" / "data"
    shutil.copytree(DATA, copy)
    monkeypatch.setattr(word_lists, "DATA", copy)
    read_data_file.cache_clear()
    code_digest.cache_clear()
    yield copy
    read_data_file.cache_clear()
    code_digest.cache_clear()


def test_the_digest_covers_the_data_files(data):
    before = code_digest()
    code_digest.cache_clear()
    assert code_digest() == before
    path = data / "titles.toml"
    path.write_text(path.read_text() + "# a comment\n")
    code_digest.cache_clear()
    assert code_digest() != before


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_who_reads_it_and_where_its_words_come_from(name):
    header = (DATA / f"{name}.toml").read_text("utf-8").split("\n\n")[0]
    readers = re.findall(r"\w+\.py", header)
    assert readers
    assert all((DATA.parent / reader).is_file() for reader in readers)
    assert "# Source: " in header


@pytest.mark.parametrize("name", [name for name in FILES if name not in TABLES_OF_OTHER_FORM])
def test_tables_keep_the_rules_and_are_read(name):
    sources = "".join(path.read_text("utf-8") for path in Path(word_lists.__file__).parent.glob("*.py"))
    for table in set(read_data_file(name)) - ({"cities"} if name == "cities" else set()):  # towns are capitalized
        entries = read_by_language(name, table)
        assert entries
        for language, text in read_data_file(name)[table].items():
            assert language in (*LANGUAGES, "any")
            assert text == text.lower(), f"[{table}] {language} has a capital letter"
            separator = "," if any("," in other for other in read_data_file(name)[table].values()) else None
            words = [" ".join(entry.split()) for entry in text.split(separator) if entry.strip()]
            assert sorted(words) == sorted(entries[language]), f"[{table}] {language} has an entry twice"
        assert all(entries.values()), f"[{table}] has a language without a word"
        assert f'"{table}"' in sources or f"'{table}'" in sources or table.endswith("_phrases"), table


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[titles]\nen = "mr\n', r"is not valid TOML \(line 2, column 9\)"),
        (None, r"cannot be read \(No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(data, text, problem):
    path = data / "titles.toml"
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        read_by_language("titles", "titles")
    assert str(path).removesuffix(".toml") in str(caught.value)


def test_words_without_their_accents():
    words = read_by_language("relations", "relations", unaccented=True)["fr"]
    assert {"frère", "frere"} <= words
    assert "cousine" in words
