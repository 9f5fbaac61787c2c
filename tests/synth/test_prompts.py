import json
import os

import pytest

from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.provenance import digest_file, read_provenance, require_digest
from eyas.chat.conversation import read
from eyas.evalsets import FAMILIES, example
from eyas.synth.prompts import PromptsConfig, run

SECRETS = ["jane.doe@example.org", "hunter2000", "4111 1111 1111 1111", "AKIAIOSFODNN7EXAMPLE"]


def write(path, *records):
    path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    return path


def questions(*texts):
    return [{"question": text} for text in texts]


def go(source, out, **keys):
    return run(PromptsConfig(**{"source": source and str(source), "license": "MIT", **keys}), out, progress=False)


def ledger(out):
    return json.loads((out / "ledger.json").read_text())


def content(out):
    return {name: (out / name).read_bytes() for name in sorted(os.listdir(out)) if name != "provenance.json"}


def test_what_comes_and_what_goes(tmp_path):
    records = [
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "a"},
            ]
        },
        {"prompt": f"mail {SECRETS[0]}"},
        {"question": f"password={SECRETS[1]}"},
        {"turns": ["pay with", SECRETS[2]]},
        *questions("q", "q"),
        {"no": "shape"},
        {"turns": []},
        "",
        f'{{"broken": "{SECRETS[3]}',
        *questions(*(f"q{i}" for i in range(12))),
    ]
    out = tmp_path / "prompts"
    go(write(tmp_path / "my.jsonl", *records), out, task="math")
    kept = list(read(out / "prompts.jsonl"))
    assert [prompt.id for prompt in kept] == ["my:0", "my:4", *(f"my:{i}" for i in range(10, 22))]
    assert [(message.role, message.content) for message in kept[0].messages] == [("system", "s"), ("user", "u")]
    assert all(prompt.tags == {"task": "math"} and prompt.source == "my" for prompt in kept)
    found = ledger(out)
    assert found["dropped"] == {
        "card_number": {"count": 1, "lines": ["my.jsonl:4"]},
        "duplicate": {"count": 1, "lines": ["my.jsonl:6"]},
        "email": {"count": 1, "lines": ["my.jsonl:2"]},
        "no_user_turn": {"count": 1, "lines": ["my.jsonl:8"]},
        "not_json": {"count": 1, "lines": ["my.jsonl:10"]},
        "secret_password": {"count": 1, "lines": ["my.jsonl:3"]},
        "unknown_shape": {"count": 1, "lines": ["my.jsonl:7"]},
    }
    assert (found["came"], found["kept"], found["over_limit"], found["answers_thrown_away"]) == (21, 14, 0, 1)
    assert found["shapes"] == {"messages": 1, "prompt": 1, "question": 15, "turns": 2, "unknown": 1}
    assert found["license"] == "MIT"
    assert found["files"] == {"my.jsonl": digest_file(tmp_path / "my.jsonl")}
    for name, data in content(out).items():
        assert not any(secret.encode() in data for secret in SECRETS), name
        assert str(tmp_path).encode() not in data, name
    assert "Licence: MIT" in (out / "card.md").read_text()
    require_digest(out)


def test_the_limit_draws_with_the_seed_and_keeps_the_order(tmp_path):
    source = write(tmp_path / "q.jsonl", *questions(*(f"q{i}" for i in range(100))))
    drawn = []
    for out, seed in ((tmp_path / "a", 0), (tmp_path / "b", 0), (tmp_path / "c", 1)):
        go(source, out, limit=10, seed=seed)
        drawn.append([int(prompt.id.split(":")[1]) for prompt in read(out / "prompts.jsonl")])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 10
    assert drawn[0] == sorted(drawn[0])
    assert ledger(tmp_path / "a")["over_limit"] == 90


def test_the_same_files_elsewhere_give_the_same_bytes(tmp_path):
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        go(write(tmp_path / place / "q.jsonl", *questions("a", "b")), tmp_path / place / "out")
    here, there = tmp_path / "here" / "out", tmp_path / "there" / "out"
    assert content(here) == content(there)
    assert read_provenance(here).parents == read_provenance(there).parents
    assert read_provenance(here).recipe == read_provenance(there).recipe


def test_a_finished_directory_is_left_alone_and_another_recipe_replaces_it(tmp_path):
    source = write(tmp_path / "q.jsonl", *questions("a", "b"))
    first = go(source, tmp_path / "out")
    stamp = (tmp_path / "out" / "prompts.jsonl").stat().st_mtime_ns
    assert go(source, tmp_path / "out") == first
    assert (tmp_path / "out" / "prompts.jsonl").stat().st_mtime_ns == stamp
    assert go(source, tmp_path / "out", limit=1).digest != first.digest
    write(source, *questions("a", "c"))
    assert go(source, tmp_path / "out").digest != first.digest


def test_several_files_have_ids_that_differ(tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "q.jsonl", *questions(f"{place}1", f"{place}2"))
    go(tmp_path / "*" / "q.jsonl", tmp_path / "out")
    assert [prompt.id for prompt in read(tmp_path / "out" / "prompts.jsonl")] == ["q:0", "q:1", "q:2", "q:3"]
    assert list(ledger(tmp_path / "out")["files"]) == ["q.jsonl", "q.jsonl (2)"]
    go(tmp_path / "a", tmp_path / "named", source_name="mine")
    assert [prompt.id for prompt in read(tmp_path / "named" / "prompts.jsonl")] == ["mine:0", "mine:1"]


def test_the_grammar_needs_no_licence_and_asks_all_families(tmp_path):
    run(PromptsConfig(source="builtin:quickstart", limit=15), tmp_path / "out", progress=False)
    kept = list(read(tmp_path / "out" / "prompts.jsonl"))
    assert len(kept) == 15
    assert {prompt.tags["task"] for prompt in kept} == set(FAMILIES)
    assert ledger(tmp_path / "out")["license"] == "Apache-2.0"
    assert ledger(tmp_path / "out")["dropped"] == {}
    written = example("chat", "quickstart", 1)
    asked = [message["content"] for message in written.messages if message["role"] != "assistant"]
    assert [message.content for prompt in kept if prompt.id == written.id for message in prompt.messages] == asked


def test_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes('\ufeff{"question": "a\u2028b"}\r\n\r\n{"question": "c"}'.encode())
    go(path, tmp_path / "out")
    assert [prompt.messages[0].content for prompt in read(tmp_path / "out" / "prompts.jsonl")] == ["a\u2028b", "c"]


@pytest.mark.parametrize(
    ("lines", "keys", "match"),
    [
        ([], {}, "empty prompt file"),
        (["", " "], {}, "no record in"),
        ([*questions("a", "b"), "{"], {}, r"1 of 3 lines that are not JSON, the first at q.jsonl:3"),
        (questions("a"), {"license": None}, "no licence"),
        (questions("a"), {"license": " "}, "no licence"),
        (questions("a"), {"source": None}, "no prompts.source"),
        (questions("a"), {"source": "builtin:quickstart", "license": None}, "without prompts.limit"),
        (questions("a"), {"source": "builtin:quickstart", "limit": 3}, "found prompts.license=MIT"),
        (questions("a"), {"source": "builtin:other"}, "builtin:train or builtin:quickstart"),
        (questions("a"), {"source": "nowhere/*.jsonl"}, "no prompt file"),
        (
            [{"turns": []}, {"prompt": "x@example.org"}],
            {},
            r"no prompt left of the 2 records .*email 1, no_user_turn 1",
        ),
    ],
)
def test_bad_input_writes_nothing(tmp_path, lines, keys, match):
    source = write(tmp_path / "q.jsonl", *lines)
    with pytest.raises(InputError, match=match) as caught:
        go(keys.pop("source", source), tmp_path / "out", **keys)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_one_bad_line_in_twenty_is_dropped_and_two_are_too_many(tmp_path):
    good = questions(*(f"q{i}" for i in range(19)))
    go(write(tmp_path / "q.jsonl", *good, "[" * 100_000), tmp_path / "out")
    assert ledger(tmp_path / "out")["dropped"]["not_json"] == {"count": 1, "lines": ["q.jsonl:20"]}
    with pytest.raises(InputError, match="2 of 20 lines"):
        go(write(tmp_path / "q.jsonl", *good[1:], "nope", "nope"), tmp_path / "out")


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StageError, match="cannot be written"):
        go(write(tmp_path / "q.jsonl", *questions("a")), tmp_path / "file" / "out")


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(UsageError, match="limit=0"):
        PromptsConfig(limit=0)
