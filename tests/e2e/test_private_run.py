"""The command of docs/privacy.md: from raw files and a production log to a head, with a record of it all."""

import json
import re
import shlex
from pathlib import Path

import pytest

from eyas.chat.conversation import read_conversations
from eyas.cli import main

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^    (eyas .+)$", (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8"), re.MULTILINE)
FIRST = ("Natalie", "Weng", "Betty", "Julie", "James", "Mark", "Alexa", "Tina", "Ralph", "Lidia")
THINGS = ("clips", "pages", "cupcakes", "books", "flowers", "coins", "stickers", "cards", "apples", "pencils")
PLANTED = (
    "joanna.brook@acme-widgets.com",
    "+44 20 8834 0958",
    "Petrosyan",
    "AKIAQYLPMN5HFIRT4WZB",
    "4539677979049696",
)
QUICK = (
    "prompts.workers=1",
    "respond.max_tokens=32",
    "train.epochs=1",
    "train.draft_vocab_size=512",
    "train.head.intermediate_size=64",
    "bench.prompts_per_task=1",
    "bench.max_tokens=8",
    "bench.repeats=1",
    "bench.concurrency=[]",
    "bench.lossless_prompts=1",
    "bench.lossless_tokens=4",
)


def sums(number):
    """Like the questions of GSM8K."""
    who, what = FIRST[number % 10], THINGS[number // 10 % 10]
    return (
        f"{who} has {number + 3} {what} and gets {2 * number + 1} more. Then {who} gives a {number % 5 + 2}th "
        f"of the {what} to a friend who keeps {number * 7} in box {number}. How many {what} are left in the end?"
    )


@pytest.fixture
def files(tmp_path):
    records = [{"question": sums(number), "answer": "#### 1"} for number in range(120)]
    records += [
        {"question": f"My name is Aram Petrosyan, write to {PLANTED[0]} or call {PLANTED[1]}. {sums(500)}"},
        {"question": f"Why does AWS say no to {PLANTED[3]}? {sums(501)}"},
        {"question": f"I paid 12 pounds with card {PLANTED[4]}. {sums(502)}"},
    ]
    (tmp_path / "gsm8k-train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    log = [{"messages": [{"role": "user", "content": sums(1000 + number)}]} for number in range(160)]
    log += [
        {"messages": [{"role": "user", "content": f"Write a haiku about box {number} of tea."}]} for number in range(40)
    ]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log))
    return tmp_path


def test_from_raw_files_to_a_head(files, monkeypatch, capsys):
    command = next(one for one in COMMANDS if one.startswith("eyas run"))
    monkeypatch.chdir(files)
    (files / "recipes").symlink_to(ROOT / "recipes")
    words = [word.replace("prompts.limit=1000", "prompts.limit=60") for word in shlex.split(command)[1:]]
    assert main([*words, *QUICK]) == 0
    err = capsys.readouterr().err
    assert "traffic  gsm8k-train: topics" in err
    run = files / "runs" / "private"
    ledger = json.loads((run / "prompts" / "ledger.json").read_bytes())
    assert [source["name"] for source in ledger["sources"]] == ["eyas-quickstart", "gsm8k-train"]
    assert ledger["kept"] == 60
    assert ledger["traffic"]["production"] == {"prompts": 200}
    assert ledger["traffic"]["after"]["tv"] < ledger["traffic"]["before"]["tv"]
    assert ledger["traffic"]["shortfall"]  # nobody asks for haikus there
    assert ledger["sources"][1]["dropped"]["secret"]["count"] == 1
    assert ledger["sources"][1]["dropped"]["card"]["count"] == 1
    assert len(list(read_conversations(run / "prompts" / "prompts.jsonl"))) == 60
    for path in (path for path in run.rglob("*") if path.is_file() and path.suffix != ".safetensors"):
        text = path.read_text()
        assert not [value for value in PLANTED if value in text], path
        assert "haiku" not in text, path  # of the log nothing is kept
    assert not [value for value in (*PLANTED, "haiku") if value in err]
    for name in ("card.md", "croissant.json", "decisions.jsonl"):
        assert (run / "prompts" / name).is_file()
    assert "## Data and licenses" in (run / "head" / "README.md").read_text()
    assert main(["doctor", str(run)]) == 0
    others = [shlex.split(one)[1:] for one in COMMANDS if one != command]
    assert [words[-2] for words in others] == ["--sample", "--explain", "--forget"]
    for words in others:
        assert main(words) == 0
    said = capsys.readouterr()
    assert "gsm8k-train:17" in said.out + said.err
    assert "gsm8k-train:17" not in (run / "prompts" / "prompts.jsonl").read_text()
