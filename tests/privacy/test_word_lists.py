"""The data files keep their rules, and the lists built from them are cached until code or data change."""

import re
import shutil

import pytest

from eyas.base.errors import InputError
from eyas.privacy import word_lists
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import PrivacyFilter
from eyas.privacy.word_lists import (
    LANGUAGES,
    PACKAGE,
    code_digest,
    read_by_language,
    read_data_file,
    read_tables,
    tables_of_files,
)

# Tables that a folder without names may have, besides labels.
LABEL_TABLES = (
    "number_words",
    "words_before_values",
    "value_copulas",
    "at_words",
    "dot_words",
    "non_secrets",
    "month_names",
)
FOLDERS = PACKAGE / "languages"
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.toml"))


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
def package(tmp_path, monkeypatch):
    """A copy of the package whose data files a test may change."""
    copy = tmp_path / "privacy"
    shutil.copytree(PACKAGE, copy)
    monkeypatch.setattr(word_lists, "PACKAGE", copy)
    caches = (read_data_file, read_tables, code_digest)
    for cache in caches:
        cache.cache_clear()
    yield copy
    for cache in caches:
        cache.cache_clear()


def test_the_digest_covers_the_data_files(package):
    before = code_digest()
    code_digest.cache_clear()
    assert code_digest() == before
    path = package / "languages" / "fr" / "names.toml"
    path.write_text(path.read_text() + "# a comment\n")
    code_digest.cache_clear()
    assert code_digest() != before


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_where_its_content_comes_from(name):
    header = (PACKAGE / name).read_text("utf-8").split("\n\n")[0]
    assert "# Source: " in header


@pytest.mark.parametrize("table", sorted(read_tables()))
def test_tables_keep_the_rules_and_are_read(table):
    sources = "".join(path.read_text("utf-8") for path in PACKAGE.glob("*.py"))
    entries = read_by_language(table)
    for language, text in read_tables()[table].items():
        assert language in (*LANGUAGES, "any") or (table.endswith("_labels") or table in LABEL_TABLES)
        assert text == text.lower() or table == "cities", f"[{table}] {language} has a capital letter"
        words = [" ".join(entry.split()) for entry in text.split("," if "," in text else None) if entry.strip()]
        assert sorted(words) == sorted(entries[language]), f"[{table}] {language} has an entry twice"
        assert entries[language], f"[{table}] {language} has no entry"
    is_named = f'"{table}"' in sources or f"'{table}'" in sources or table.endswith("_phrases")
    assert is_named or table in tables_of_files("words", "names", "phrases", "labels", "places", "context", "topics"), (
        table
    )


def test_the_readme_explains_every_table_and_no_other():
    explained = re.findall(r"(?m)^\| `(\w+)` \|", (FOLDERS / "README.md").read_text("utf-8"))
    assert sorted(explained) == sorted(read_tables())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('titles = "mr\n', r"is not valid TOML \(line 1, column 13\)"),
        (None, r"cannot be read \(No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(package, text, problem):
    path = package / "languages" / "fr" / "names.toml"
    if text is None:
        path.unlink()
        path.symlink_to("missing.toml")
    else:
        path.write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        read_tables()
    assert str(path).removesuffix(".toml") in str(caught.value)


def test_words_without_their_accents():
    words = read_by_language("relations", unaccented=True)["fr"]
    assert {"frère", "frere"} <= words
    assert "cousine" in words
