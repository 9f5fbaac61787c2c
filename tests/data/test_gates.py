"""The table of gates in card.md: every record is counted once, and the numbers of a gate continue those of the last."""

import json
from collections import Counter

import pytest

from eyas.data.ledger.ledger import GATES
from eyas.data.prompts import run
from eyas.data.prompts_config import PromptsConfig
from eyas.data.sources.source import SourceConfig
from eyas.privacy.config import PrivacyConfig

PLAIN = "How do {} and {} work together in an old clock?"
FIRST = [  # the gate that drops each record, and the gate that changes it
    ("format", None, {"no": "prompt"}),
    ("forgotten", None, {"prompt": "Where do wild geese spend the winter months?"}),
    ("quality", None, {"prompt": "?"}),
    ("evaluation sets", None, {"prompt": "Compose an engaging travel blog post about a recent trip to Hawaii, "
                               "highlighting cultural experiences and must-see attractions."}),
    ("personal data", None, {"prompt": "Why is my card 4539 1488 0343 6467 refused by the shop?"}),
    (None, None, {"prompt": PLAIN.format("wheels", "springs")}),
    ("duplicates", None, {"prompt": PLAIN.format("wheels", "springs")}),
    (None, "personal data", {"prompt": "Please write to joanna.brook@acme-widgets.com that the printer is broken."}),
    (None, "format", {"messages": [{"role": "user", "content": "What is the use of a keel on a small boat?"},
                                   {"role": "assistant", "content": "It keeps the boat upright."}]}),
    ("duplicates", "format", {"messages": [{"role": "user", "content": "What is the use of a keel on a small boat?"},
                                           {"role": "assistant", "content": "None."}]}),
]  # fmt: skip
SECOND = [
    ("duplicates", None, {"prompt": PLAIN.format("wheels", "springs") + " "}),
    (None, None, {"prompt": "Name three trees that keep their leaves in winter."}),
    ("personal data", None, {"prompt": "Miksi taivas on sininen ja ruoho vihreää kesällä, kun aurinko paistaa?"}),
]  # fmt: skip


def counted(cases):
    """Returns {gate: (dropped, changed)}, from the cases as they are written here."""
    return {gate: (sum(each[0] == gate for each in cases), sum(each[1] == gate for each in cases)) for gate in GATES}


def table(text):
    """Returns {(source, gate): the numbers of the row}."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {(row[0], row[1]): [int(cell) for cell in row[2:]] for row in rows if len(row) == 6 and row[1] in GATES}


@pytest.fixture
def out(tmp_path):
    for name, cases in (("first", FIRST), ("second", SECOND)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(each[2]) + "\n" for each in cases))
    (tmp_path / "forgotten.jsonl").write_text('{"id": "first:1"}\n')
    sources = tuple(SourceConfig(str(tmp_path / f"{name}.jsonl"), license="MIT") for name in ("first", "second"))
    run(PromptsConfig(sources=sources, limit=3), tmp_path / "prompts", progress=False)
    return tmp_path / "prompts"


def test_a_record_for_every_gate(out):
    found = table((out / "card.md").read_text())
    assert list(found) == [(source, gate) for source in ("all sources", "first", "second") for gate in GATES]
    kept: Counter[str] = Counter()
    for line in (out / "prompts.jsonl").read_text().splitlines():
        kept[json.loads(line)["source"]] += 1
    assert sum(kept.values()) == 3
    for name, cases in (("first", FIRST), ("second", SECOND)):
        wanted, left = counted(cases), len(cases)
        for gate in GATES[:-1]:
            dropped, changed = wanted[gate]
            assert found[name, gate] == [left, dropped, changed, left - dropped], (name, gate)
            left -= dropped
        assert found[name, "selection"] == [left, left - kept[name], 0, kept[name]]
    for gate in GATES:
        both = zip(found["first", gate], found["second", gate], strict=True)
        assert found["all sources", gate] == [one + other for one, other in both]
    assert all(found["all sources", gate][1] for gate in GATES), "every gate drops a record here"


def test_languages_whose_names_are_missed_are_named(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(each[2]) + "\n" for each in SECOND))
    config = PromptsConfig(source=str(path), license="MIT", privacy=PrivacyConfig(unsupported_language="keep"))
    run(config, tmp_path / "prompts", progress=False)
    text = (tmp_path / "prompts" / "card.md").read_text()
    assert "Names of persons are not found, or often missed, in these languages:" in text
    assert "| fi | 1 |" in text
