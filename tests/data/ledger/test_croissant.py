import hashlib
import json
import socket

import mlcroissant
import pytest
from tests.data.ledgers import a_ledger

from eyas.chat.conversation import Conversation, Message
from eyas.data.ledger.cards import list_licenses, render_croissant

PROMPTS = [
    Conversation("mine:0", "mine", (Message("user", "Zähle bis drei."),), {"language": "de", "task": "chat"}),
    Conversation(
        "mine:1",
        "mine",
        (Message("system", "Be short."), Message("user", "1 + 1?"), Message("user", "And 2 + 2?\n\u2028")),
        {"language": "en"},
        {"PERSON": 1},
    ),
    Conversation("logs:0", "logs", (Message("user", "12"),), {}),
]


@pytest.fixture
def written(tmp_path, monkeypatch):
    def refuse(*args):
        raise AssertionError("no network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    data = b"".join(prompt.to_line() for prompt in PROMPTS)
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(data)
    (tmp_path / "croissant.json").write_bytes(render_croissant(a_ledger(), file, "acme-prompts", "ACME", "2026-11-20"))
    return tmp_path


def test_it_validates_and_its_records_are_the_prompts(written):
    dataset = mlcroissant.Dataset(written / "croissant.json")
    issues = dataset.metadata.ctx.issues
    assert issues.errors == set()
    assert issues.warnings == set()
    records = list(dataset.records("prompts"))
    assert [record["prompts/id"] for record in records] == [b"mine:0", b"mine:1", b"logs:0"]
    assert [record["prompts/source"] for record in records] == [b"mine", b"mine", b"logs"]
    for record, prompt in zip(records, PROMPTS, strict=True):
        messages = [
            {key.rpartition("/")[2]: value.decode() for key, value in message.items()}
            for message in record["prompts/messages"]
        ]
        assert messages == [message.to_json() for message in prompt.messages]
        for tag in ("language", "task"):
            assert record[f"prompts/{tag}"] == (prompt.tags[tag].encode() if tag in prompt.tags else None)


def test_size_and_digest_are_those_of_the_file(written):
    data = (written / "prompts.jsonl").read_bytes()
    distribution = json.loads((written / "croissant.json").read_text())["distribution"][0]
    assert distribution["contentSize"] == f"{len(data)} B"
    assert distribution["sha256"] == hashlib.sha256(data).hexdigest()


def test_equal_ledgers_give_equal_bytes(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b"{}\n")
    first = render_croissant(a_ledger(), file, "a", "ACME", "2026-11-20")
    assert first == render_croissant(json.loads(json.dumps(a_ledger())), file, "a", "ACME", "2026-11-20")
    assert json.loads(first)["datePublished"] == "2026-11-20"


def test_licences_are_urls_where_spdx_has_them():
    ledger = a_ledger()
    spdx = ["MIT", "CC-BY-4.0 AND MIT", "LicenseRef-Own", "MIT OR Apache-2.0"]
    ledger["sources"] = [{"licence": {"spdx": text}} for text in spdx]
    assert list_licenses(ledger) == [
        "LicenseRef-Own",
        "MIT OR Apache-2.0",
        "https://spdx.org/licenses/CC-BY-4.0",
        "https://spdx.org/licenses/MIT",
    ]
