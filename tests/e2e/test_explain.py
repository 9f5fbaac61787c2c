"""`eyas prompts --explain` and `--sample`: records before and after screening, read again from their source."""

import contextlib
import json
import os
import pty
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eyas.cli import main
from eyas.data.sources import file_formats

LETTER = "Please write to Anna Schmidt at anna.schmidt@acme-widgets.com that the printer is broken."
CARD = "Why is my card 4539 1488 0343 6467 refused by the shop?"
LINES = [
    json.dumps({"prompt": LETTER}),
    json.dumps({"messages": [{"role": "user", "content": CARD}, {"role": "assistant", "content": "Ask the bank."}]}),
    "",
    json.dumps({"prompt": "Name three trees that keep their leaves in winter."}),
    json.dumps({"prompt": "Name three trees that keep their leaves in winter."}),
    json.dumps({"prompt": "?"}),
    json.dumps({"no": "prompt"}),
    "{broken",
    *(json.dumps({"prompt": f"How do {word} and stones work together in an old mill?"})
      for word in ("apples", "ropes", "gears", "birds", "lamps", "wheels", "springs", "horses", "floods", "winds",
                   "bells", "sacks", "cats", "nets")),
]  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EYAS_PRIVACY_KEY", "a key of these tests, long enough")
    (tmp_path / "mine.jsonl").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "my.toml").write_text('[prompts]\nsource = "mine.jsonl"\nlicense = "MIT"\nworkers = 1\n')
    return tmp_path


def prompts(*arguments):
    return main(["prompts", "my.toml", *arguments])


def explained(capsys, *arguments):
    """Returns the records that --explain or --sample prints as JSON."""
    capsys.readouterr()
    assert prompts("--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)["records"]


def files(place):
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_before_a_run(place, capsys):
    """Asserts that one command accepts ids and FILE:LINE, and writes nothing."""
    before = files(place)
    letter, card, short, unknown, broken = explained(
        capsys, "--explain", "mine:0", "mine.jsonl:2", f"{place}/mine.jsonl:6", "mine:6", "mine:7"
    )
    assert files(place) == before
    (message,) = letter["messages"]
    assert message["before"] == LETTER
    assert [found["value"] for found in message["found"]] == ["Anna Schmidt", "anna.schmidt@acme-widgets.com"]
    after = LETTER
    for found in message["found"]:
        assert LETTER[found["start"] : found["end"]] == found["value"]
        assert found["rule"].partition(".")[0] == "builtin"
        assert 0 < found["score"] <= 1
        after = after.replace(found["value"], found["surrogate"])
    assert message["after"] == after != LETTER
    assert letter["changed"] == {"PERSON": 1, "EMAIL": 1}
    assert set(letter["gates"].values()) == {None}
    assert "not known" in letter["notes"][0]
    assert (card["where"], card["dropped"], card["removed"]) == ("mine.jsonl:2", "card", {"answers": 1})
    (message,) = card["messages"]
    assert (message["before"], message["after"], message["found"][0]["surrogate"]) == (CARD, None, None)
    assert (short["id"], short["gates"]["quality"], short["dropped"]) == ("mine:5", "too_short", "too_short")
    assert (unknown["dropped"], unknown["value"], unknown["messages"]) == ("unknown_shape", {"no": "prompt"}, [])
    assert (broken["dropped"], broken["gates"]) == ("not_json", {"format": "not_json"})


def test_after_a_run(place, capsys):
    assert prompts("prompts.limit=8", "prompts.evalsets=[]") == 0
    settings = ("prompts.limit=8", "prompts.evalsets=[]")
    records = explained(capsys, *settings, "--explain", *(f"mine:{number}" for number in range(22) if number != 2))
    decided = (place / "runs" / "my" / "prompts" / "decisions.jsonl").read_text().splitlines()
    assert [record["run"] for record in records] == [json.loads(line) for line in decided]
    for record in records:
        run = record["run"]
        assert record["dropped"] == (f"{run['dropped']} of {run['of']}" if "of" in run else run["dropped"])
        assert record["changed"] == run.get("changed", {})
        assert record["notes"] == []
    reasons = [record["dropped"] for record in records]
    assert "duplicate of mine:3" in reasons
    assert "over_limit" in reasons
    kept = [json.loads(line) for line in (place / "runs" / "my" / "prompts" / "prompts.jsonl").read_text().splitlines()]
    after = {record["id"]: [message["after"] for message in record["messages"]] for record in records}
    assert [after[each["id"]] for each in kept] == [
        [message["content"] for message in each["messages"]] for each in kept
    ]


def test_a_source_that_changed_or_is_gone(place, capsys):
    assert prompts() == 0
    path = place / "mine.jsonl"
    path.write_text(path.read_text().replace("printer", "scanner"))
    (record,) = explained(capsys, "--explain", "mine:0")
    assert "mine.jsonl changed since the run" in record["notes"][0]
    assert "scanner" in record["messages"][0]["before"]
    path.write_text(path.read_text().replace("scanner", "printer"))
    (record,) = explained(capsys, "prompts.quality.min_chars=5", "--explain", "mine:0")
    assert "settings or eyas changed" in record["notes"][0]
    path.unlink()
    (record,) = explained(capsys, "--explain", "mine.jsonl:1")
    assert record["run"]["changed"] == {"PERSON": 1, "EMAIL": 1}
    assert "cannot be read again: No prompt file matches" in record["notes"][0]
    assert record["messages"] == []


def test_a_recipe_with_another_source_still_explains_the_run(place, capsys):
    assert prompts() == 0
    (place / "my.toml").write_text('[prompts]\nsource = "builtin:quickstart"\nlimit = 9\n')
    mine, chat = explained(capsys, "--explain", "mine:1", "quickstart-chat:0")
    assert mine["dropped"] == "card"
    assert (chat["source"], chat["dropped"], chat["gates"]) == ("eyas-quickstart", None, {"format": None})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine:22", "no record mine:22. The nearest file or source has mine:0 to mine:21"),
        ("mien.jsonl:3", "has mine.jsonl:1 to mine.jsonl:22"),
        ("mine.jsonl:0", "has mine.jsonl:1 to mine.jsonl:22"),
        ("mine.jsonl:3", "mine.jsonl:3 is blank"),
        ("mine", "no record mine"),
    ],
)
def test_unknown_names(place, capsys, name, message):
    assert prompts("--explain", name) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_a_line_that_two_sources_have_is_not_forgotten(place, capsys):
    (place / "other").mkdir()
    (place / "other" / "mine.jsonl").write_text(LINES[3] + "\n")
    source = 'prompts.sources=[{path="other/mine.jsonl",license="MIT",name="other"}]'
    assert prompts(source) == 0
    assert prompts(source, "--forget", "mine.jsonl:1") == 2
    assert "names 2 records. Use an id: mine:0 and other:0" in capsys.readouterr().err
    assert prompts(source, "--forget", "mine.jsonl:4") == 0
    assert capsys.readouterr().out.startswith("mine:3\n")


def test_a_sample_of_all_files(place, capsys):
    (place / "more.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Why is {n} odd or even?"}) + "\n" for n in range(3))
    )
    source = ("prompts.source=*.jsonl",)
    before = files(place)
    first = explained(capsys, *source, "--sample", "10")
    assert files(place) == before
    assert [record["source"] for record in first] == ["mine, more"] * 10
    assert sum(record["id"].startswith("more:") for record in first) == 3, "half of the sample, but it has three"
    assert len({record["id"] for record in first}) == 10
    assert explained(capsys, *source, "--sample", "10") == first
    ids = [record["id"] for record in explained(capsys, *source, "prompts.seed=1", "--sample", "10")]
    assert ids != [record["id"] for record in first]
    assert len(explained(capsys, *source, "--sample", "100")) == 24
    assert prompts("--sample", "0") == 2
    assert prompts("--sample", "1", "--explain", "mine:0") == 2


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colors_are_for_terminals(place, no_color, monkeypatch):
    reader, terminal = pty.openpty()
    monkeypatch.setenv("NO_COLOR", no_color)
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        reading = pool.submit(_read_all, reader)
        with os.fdopen(terminal, "w") as stdout:
            patch.setattr(sys, "stdout", stdout)
            assert prompts("--explain", "mine:0") == 0
        text = reading.result()
    os.close(reader)
    assert (b"\x1b[31mAnna Schmidt\x1b[0m" in text) is (no_color == "")
    assert (b"\x1b" in text) is (no_color == "")
    assert ("⟦Anna Schmidt⟧".encode() in text) is (no_color == "1")


def _read_all(reader):
    text = b""
    with contextlib.suppress(OSError):  # Linux raises EIO when the other end is closed
        while chunk := os.read(reader, 4096):
            text += chunk
    return text


def test_a_record_cannot_control_the_terminal(place, capsys):
    Path("mine.jsonl").write_text(json.dumps({"prompt": "What does \x1b[2J do, and \u202e this?"}) + "\n")
    assert prompts("--explain", "mine:0") == 0
    out = capsys.readouterr().out
    assert "␛[2J" in out
    assert not {"\x1b", "\u202e"} & set(out)


def test_a_sample_of_a_large_file_reads_random_lines(place, capsys, monkeypatch):
    monkeypatch.setattr(file_formats, "SAMPLED_BYTES", 0)
    data = (place / "mine.jsonl").read_bytes()
    drawn = set()
    for seed in range(6):
        for record in explained(capsys, f"prompts.seed={seed}", "--sample", "5"):
            begin = int(record["id"].removeprefix("mine@"))
            assert record["where"] == f"mine.jsonl, byte {begin}"
            line = data[begin:].split(b"\n")[0].decode()
            assert line in LINES
            if record["messages"]:
                assert json.dumps(record["messages"][0]["before"]) in line
            drawn.add(line)
    assert len(drawn) > 10


def test_a_sample_of_parquet(place, capsys):
    texts = [f"Is {number} odd or even, and why?" for number in range(30)]
    pq.write_table(pa.table({"prompt": texts}), place / "numbers.parquet", row_group_size=7)
    records = explained(capsys, "prompts.source=numbers.parquet", "--sample", "9")
    numbers = [int(record["id"].removeprefix("numbers:")) for record in records]
    assert len(set(numbers)) == 9
    assert [record["messages"][0]["before"] for record in records] == [texts[number] for number in numbers]
    assert [record["where"] for record in records] == [f"numbers.parquet:{number + 1}" for number in numbers]


def test_ids_from_a_column(place, capsys):
    rows = [{"uuid": f"a-{number}", "prompt": f"Is {number} odd or even, and why?"} for number in range(5)]
    (place / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    records = explained(capsys, "prompts.columns.id=uuid", "--explain", "mine:a-3", "mine.jsonl:2")
    assert [record["id"] for record in records] == ["mine:a-3", "mine:a-1"]


def test_values_that_stay_are_listed(place, capsys):
    """Asserts that a public name is shown with its rule although nothing is replaced, and that `keep` is obeyed."""
    texts = ("Who won the battle of Waterloo, and why did Napoleon Bonaparte lose it?", LETTER)
    (place / "mine.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    (place / "keep.txt").write_text("Anna Schmidt\n")
    public, kept = explained(capsys, "prompts.privacy.keep=keep.txt", "--explain", "mine:0", "mine:1")
    stays = {each["value"]: each["surrogate"] for each in public["messages"][0]["found"]}
    assert stays["Napoleon Bonaparte"] is None
    assert public["messages"][0]["after"] == texts[0]
    assert "Anna Schmidt" in kept["messages"][0]["after"]
    assert prompts("--explain", "mine:0") == 0
    out = capsys.readouterr().out
    assert "Napoleon Bonaparte stays" in out
    assert "⟦" not in out
