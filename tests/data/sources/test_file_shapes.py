"""Files as the usual tools write them give the prompts that were written."""

import pytest
from data_files import FIXTURES, STORED, WRITERS, files, is_installed, read_turns
from data_options import Options
from file_shapes import PROMPTS, TURNS


@pytest.mark.parametrize(("tool", "name"), WRITERS)
def test_what_a_tool_writes_here(tmp_path, tool, name):
    if not is_installed(tool):
        pytest.skip(f"{tool} is not installed; the fixtures hold its files")
    keys, expected = WRITERS[tool, name](tmp_path)
    assert read_turns(keys) == expected


@pytest.mark.parametrize("name", STORED)
def test_what_a_tool_wrote(name):
    assert read_turns({"source": str(FIXTURES / name)}) == STORED[name]


def test_every_fixture_is_read():
    assert {path.name for path in FIXTURES.iterdir()} == {*STORED, "README.md"}
    assert len(PROMPTS) == len(set(PROMPTS))


def test_the_rows_of_prove_data(monkeypatch):
    monkeypatch.setattr("data_files.STORED", {})
    monkeypatch.setattr("data_files.WRITERS", {("json", "array"): WRITERS["json", "array"]})
    (row,) = files(Options())
    assert (row.name, row.figure, row.ok) == ("files, json array: records read as written", 1, True)
    monkeypatch.setattr("data_files.WRITERS", {("json", "array"): lambda at: (WRITERS["json", "array"](at)[0], TURNS)})
    (row,) = files(Options())
    assert (row.figure, row.ok) == (0, False)
