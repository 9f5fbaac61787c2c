import os
import stat

import pytest

from eyas.base.errors import InputError
from eyas.privacy.surrogates import KEY_VARIABLE, key_id, load_surrogate_key


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_a_key_is_made_once_and_is_for_this_user_alone(tmp_path):
    first = load_surrogate_key(None)
    path = tmp_path / "data" / "eyas" / "privacy.key"
    assert len(first) >= 32
    assert load_surrogate_key(None) == first
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    path.unlink()
    assert load_surrogate_key(None) != first


def test_a_file_goes_before_the_variable_and_that_before_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv(KEY_VARIABLE, "sixteen bytes and more")
    assert load_surrogate_key(None) == b"sixteen bytes and more"
    (tmp_path / "key").write_text("another key of enough bytes\n")
    assert load_surrogate_key(str(tmp_path / "key")) == b"another key of enough bytes"
    assert not (tmp_path / "data").exists()


def test_keys_that_are_none(monkeypatch, tmp_path):
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(InputError, match=f"{KEY_VARIABLE} has 5 bytes and needs at least 16"):
        load_surrogate_key(None)
    (tmp_path / "key").write_text("short")
    for name in ("key", "nowhere"):
        with pytest.raises(InputError) as caught:
            load_surrogate_key(str(tmp_path / name))
        assert "short" not in str(caught.value)


def test_what_is_written_down_of_a_key_tells_keys_apart_and_nothing_else():
    one, other = key_id(b"a key of sixteen bytes"), key_id(b"another of sixteen bytes")
    assert one != other
    assert key_id(b"a key of sixteen bytes") == one
    assert len(one) == 16
