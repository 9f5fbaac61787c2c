"""Lists kept between processes: read where they are right, made again where they are not."""

import pytest

from eyas.privacy import wordlist_cache as kept
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import PrivacyFilter


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def make():
        calls.append(1)
        return {"words": frozenset(("ä", "b"))}

    return calls, make, tmp_path / "eyas"


def test_made_once(made):
    calls, make, _ = made
    assert kept.load_cached("x", make) == kept.load_cached("x", make) == {"words": {"ä", "b"}}
    assert len(calls) == 1


def test_a_damaged_file_is_made_again(made):
    calls, make, directory = made
    kept.load_cached("x", make)
    (path,) = directory.glob("privacy-x-*")
    path.write_bytes(path.read_bytes()[:-3])
    assert kept.load_cached("x", make) == {"words": {"ä", "b"}}
    kept.load_cached("x", make)
    assert len(calls) == 2


def test_a_place_that_cannot_be_written_costs_only_time(made, monkeypatch, tmp_path):
    calls, make, _ = made
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept.load_cached("x", make) == kept.load_cached("x", make)
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
