import errno
import json
import os
from dataclasses import replace

import pytest

from eyas.base.config import build
from eyas.base.errors import InputError, StageError, StorageError, UsageError
from eyas.base.provenance import digest_file, read_provenance, verify_contents
from eyas.chat.conversation import read_conversations
from eyas.data.prompts import run
from eyas.data.prompts_config import PromptsConfig
from eyas.data.select import language
from eyas.data.sources.source import SourceConfig
from eyas.evalsets import FAMILIES, example

SECRETS = ["jane.doe@acme-widgets.com", "hunter2000", "4539 6779 7904 9696", "AKIAQYLPMN5HFIRT4WZB"]


def write(path, *records):
    path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    return path


def questions(*texts):
    return [{"question": text} for text in texts]


def go(source, out, **keys):
    done = run(PromptsConfig(**{"source": source and str(source), "license": "MIT", **keys}), out, progress=False)
    assert done is not None
    return done


def ledger(out):
    return json.loads((out / "ledger.json").read_text())


def content(out):
    return {
        name: (out / name).read_bytes()
        for name in sorted(os.listdir(out))
        if name not in ("provenance.json", "croissant.json")
    }


def asked(number):
    """Prompts that differ enough to be none of each other's near-duplicates."""
    words = ("apples", "bricks", "clouds", "drums", "engines", "feathers", "gates", "hammers", "islands", "jars")
    return f"How do {words[number % 10]} and {words[number // 10 % 10]} number {number} work together?"


def test_what_comes_and_what_goes(tmp_path):
    records = [
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "What is an isotope?"},
                {"role": "assistant", "content": "a"},
            ]
        },
        {"prompt": f"Please write a polite answer to {SECRETS[0]} about the broken printer."},
        {"question": f"Why does my login with password={SECRETS[1]} fail?"},
        {"turns": ["How can I pay with this card?", SECRETS[2]]},
        *questions(asked(0), asked(0), asked(0).replace("?", " ?")),
        {"no": "shape"},
        {"turns": []},
        "",
        f'{{"broken": "{SECRETS[3]}',
        *questions(*(asked(i) for i in range(1, 25))),
        {"question": "hello!!"},
        {"question": "Wie geht es eigentlich den Kühen auf der Alm in diesem heißen Sommer?"},
        {"question": "วัวกินหญ้าที่ไหนในช่วงฤดูร้อน ช่วยบอกหน่อยครับ"},
    ]
    out = tmp_path / "prompts"
    go(write(tmp_path / "my.jsonl", *records), out, task="math")
    kept = list(read_conversations(out / "prompts.jsonl"))
    assert [prompt.id for prompt in kept] == ["my:0", "my:1", "my:4", *(f"my:{i}" for i in range(11, 35)), "my:36"]
    assert [(message.role, message.content) for message in kept[0].messages] == [("user", "What is an isotope?")]
    assert {prompt.tags["task"] for prompt in kept} == {"math"}
    assert (kept[0].tags["language"], kept[-1].tags["language"]) == ("en", "de")
    assert kept[1].changed == {"EMAIL": 1}
    assert "broken printer" in kept[1].messages[0].content
    found = ledger(out)
    (source,) = found["sources"]
    assert source["dropped"] == {
        "card": {"count": 1, "lines": ["my.jsonl:4"]},
        "duplicate": {"count": 1, "lines": ["my.jsonl:6"]},
        "near_duplicate": {"count": 1, "lines": ["my.jsonl:7"]},
        "no_task": {"count": 1, "lines": ["my.jsonl:36"]},
        "no_user_turn": {"count": 1, "lines": ["my.jsonl:9"]},
        "not_json": {"count": 1, "lines": ["my.jsonl:11"]},
        "secret": {"count": 1, "lines": ["my.jsonl:3"]},
        "unknown_shape": {"count": 1, "lines": ["my.jsonl:8"]},
        "unsupported_language": {"count": 1, "lines": ["my.jsonl:38"]},
    }
    assert found["dropped"] == dict.fromkeys(source["dropped"], 1)
    assert (found["came"], found["kept"], found["over_limit"], found["answers_thrown_away"]) == (37, 28, 0, 1)
    assert found["shapes"] == {"messages": 1, "prompt": 1, "question": 31, "turns": 2, "unknown": 1}
    assert found["languages"] == {"de": 1, "en": 27}
    assert found["entities"]["EMAIL"] == {"replaced": 1, "dropped": 0}
    assert found["entities"]["CARD"] == {"replaced": 0, "dropped": 1}
    assert source["licence"]["spdx"] == "MIT"
    assert source["files"] == {"my.jsonl": digest_file(tmp_path / "my.jsonl")}
    for name, data in content(out).items():
        assert not any(secret.encode() in data for secret in SECRETS), name
        assert str(tmp_path).encode() not in data, name
    verify_contents(out)


def test_a_line_for_every_record_that_came(tmp_path):
    """decisions.jsonl says what became of each, and of which one it is a repetition."""
    source = write(tmp_path / "q.jsonl", *questions(asked(1), asked(2), asked(1)), {"turns": []})
    go(source, tmp_path / "out", limit=1)
    said = [json.loads(line) for line in (tmp_path / "out" / "decisions.jsonl").read_text().splitlines()]
    assert [one["id"] for one in said] == ["q:0", "q:1", "q:2", "q:3"]
    reasons = [one["dropped"] for one in said]
    assert sorted(reasons[:2], key=str) == [None, "over_limit"]
    assert (said[2]["dropped"], said[2]["of"], reasons[3]) == ("duplicate", "q:0", "no_user_turn")


def test_system_messages_are_kept_where_the_recipe_says_so(tmp_path):
    said = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": asked(1)}]
    path = write(tmp_path / "q.jsonl", {"messages": said})
    sources = (SourceConfig(str(path), license="MIT", keep_system=True),)
    run(PromptsConfig(sources=sources), tmp_path / "out", progress=False)
    (kept,) = read_conversations(tmp_path / "out" / "prompts.jsonl")
    assert [message.to_json() for message in kept.messages] == said


def test_several_sources_and_their_repetitions(tmp_path):
    one = write(tmp_path / "one.jsonl", *questions(asked(1), asked(2)))
    two = write(tmp_path / "two.jsonl", *questions(asked(2) + " ", asked(3)))
    sources = (
        SourceConfig(str(one), license="MIT"),
        SourceConfig(str(two), license="CC0-1.0", task="other"),
        SourceConfig("builtin:quickstart", count=14),
    )
    run(PromptsConfig(sources=sources), tmp_path / "out", progress=False)
    found = ledger(tmp_path / "out")
    assert [(s["name"], s["came"], s["kept"], s["licence"]["spdx"]) for s in found["sources"]] == [
        ("one", 2, 2, "MIT"),
        ("two", 2, 1, "CC0-1.0"),
        ("eyas-quickstart", 14, 14, "Apache-2.0"),
    ]
    assert list(found["sources"][1]["dropped"]) == ["near_duplicate"]
    assert found["tasks"]["other"] == 1


def test_two_sources_whose_ids_would_be_the_same_are_refused(tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "train.jsonl", *questions(asked(ord(place))))
    one, two = (SourceConfig(str(tmp_path / place / "train.jsonl"), license="MIT") for place in ("a", "b"))
    with pytest.raises(InputError, match=r"Two sources have the name train, .*prompts\.sources its own name"):
        run(PromptsConfig(sources=(one, two)), tmp_path / "out", progress=False)
    with pytest.raises(InputError, match="Two sources have the name builtin:quickstart"):
        go(
            "builtin:quickstart",
            tmp_path / "out",
            license=None,
            limit=3,
            sources=(SourceConfig("builtin:quickstart", count=3),),
        )
    run(PromptsConfig(sources=(one, replace(two, name="other"))), tmp_path / "out", progress=False)
    assert [prompt.id for prompt in read_conversations(tmp_path / "out" / "prompts.jsonl")] == ["train:0", "other:0"]


def test_file_names_of_all_kinds(tmp_path):
    for number, name in enumerate(("a [1].jsonl", "b\u2028\x85#ü.jsonl")):
        path = write(tmp_path / name, *questions(asked(1), asked(2)))
        go(path, tmp_path / f"out{number}")
        ids = [f"{name.removesuffix('.jsonl')}:{number}" for number in range(2)]
        assert [prompt.id for prompt in read_conversations(tmp_path / f"out{number}" / "prompts.jsonl")] == ids
        said = (tmp_path / f"out{number}" / "decisions.jsonl").read_bytes().splitlines()
        assert [json.loads(line)["id"] for line in said] == ids
    (tmp_path / "w").mkdir()
    write(tmp_path / "w" / os.fsdecode(b"w\xfc.jsonl"), *questions(asked(1)))
    with pytest.raises(InputError, match="is not valid UTF-8"):
        go(tmp_path / "w", tmp_path / "out")


def test_an_empty_path_is_not_the_working_directory():
    with pytest.raises(UsageError, match="A prompt source has an empty path"):
        PromptsConfig(source="").all_sources()


def test_the_limit_draws_with_the_seed_and_keeps_the_order(tmp_path):
    source = write(tmp_path / "q.jsonl", *questions(*(asked(i) for i in range(100))))
    drawn = []
    for out, seed in ((tmp_path / "a", 0), (tmp_path / "b", 0), (tmp_path / "c", 1)):
        go(source, out, limit=10, seed=seed)
        drawn.append([int(prompt.id.split(":")[1]) for prompt in read_conversations(out / "prompts.jsonl")])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 10
    assert drawn[0] == sorted(drawn[0])
    assert ledger(tmp_path / "a")["over_limit"] == 90


def test_the_same_files_elsewhere_give_the_same_bytes(tmp_path):
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        go(write(tmp_path / place / "q.jsonl", *questions(asked(1), asked(2))), tmp_path / place / "out")
    here, there = tmp_path / "here" / "out", tmp_path / "there" / "out"
    assert content(here) == content(there)
    assert read_provenance(here).parents == read_provenance(there).parents
    assert read_provenance(here).recipe == read_provenance(there).recipe


def test_a_finished_directory_is_left_alone_and_another_recipe_replaces_it(tmp_path):
    source = write(tmp_path / "q.jsonl", *questions(asked(1), asked(2)))
    first = go(source, tmp_path / "out")
    stamp = (tmp_path / "out" / "prompts.jsonl").stat().st_mtime_ns
    assert go(source, tmp_path / "out") == first
    assert (tmp_path / "out" / "prompts.jsonl").stat().st_mtime_ns == stamp
    assert go(source, tmp_path / "out", limit=1).digest != first.digest
    write(source, *questions(asked(1), asked(3)))
    assert go(source, tmp_path / "out").digest != first.digest


def test_several_files_have_ids_that_differ(tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "q.jsonl", *questions(asked(ord(place)), asked(ord(place) + 20)))
    go(tmp_path / "*" / "q.jsonl", tmp_path / "out")
    assert [prompt.id for prompt in read_conversations(tmp_path / "out" / "prompts.jsonl")] == [
        "q:0",
        "q:1",
        "q:2",
        "q:3",
    ]
    assert list(ledger(tmp_path / "out")["sources"][0]["files"]) == ["q.jsonl", "q.jsonl (2)"]
    go(tmp_path / "a", tmp_path / "named", source_name="mine")
    assert [prompt.id for prompt in read_conversations(tmp_path / "named" / "prompts.jsonl")] == ["mine:0", "mine:1"]


def test_the_grammar_needs_no_licence_and_asks_all_families(tmp_path):
    run(PromptsConfig(source="builtin:quickstart", limit=15), tmp_path / "out", progress=False)
    kept = list(read_conversations(tmp_path / "out" / "prompts.jsonl"))
    assert len(kept) == 15
    assert {prompt.tags["task"] for prompt in kept} == set(FAMILIES)
    assert ledger(tmp_path / "out")["sources"][0]["licence"]["spdx"] == "Apache-2.0"
    assert ledger(tmp_path / "out")["dropped"] == {}
    written = example("chat", "quickstart", 1)
    asked = [message["content"] for message in written.messages if message["role"] != "assistant"]
    assert [message.content for prompt in kept if prompt.id == written.id for message in prompt.messages] == asked


def test_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes('\ufeff{"question": "why is\u2028that so"}\r\n\r\n{"question": "what is a canoe"}'.encode())
    go(path, tmp_path / "out")
    assert [prompt.messages[0].content for prompt in read_conversations(tmp_path / "out" / "prompts.jsonl")] == [
        "why is\u2028that so",
        "what is a canoe",
    ]


@pytest.mark.parametrize(
    ("lines", "keys", "match"),
    [
        ([], {}, "The prompt file q.jsonl is empty"),
        (["", " "], {}, "holds no record"),
        (
            [*questions(asked(1), asked(2)), "{"],
            {},
            r"1 of 3 lines of .*q.jsonl are not JSON or UTF-8, the first one at q.jsonl:3",
        ),
        (questions("a"), {"license": None}, "no license on record"),
        (questions("a"), {"license": " "}, "no license on record"),
        (questions("a"), {"source": None}, "has no prompts.source"),
        (questions("a"), {"source": "builtin:quickstart", "license": None}, "does not say how many prompts"),
        (
            questions("a"),
            {"source": "builtin:quickstart", "limit": 3},
            "prompts.license=MIT does not fit builtin:quickstart",
        ),
        (
            questions("a"),
            {"source": "builtin:other", "license": None, "limit": 3},
            "builtin:train or builtin:quickstart",
        ),
        (questions("a"), {"source": "nowhere/*.jsonl"}, "No prompt file matches nowhere"),
        (
            [{"turns": []}, {"prompt": "My card is 4539 6779 7904 9696."}],
            {},
            r"None of the 2 records .*card 1, no_user_turn 1",
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
    good = questions(*(asked(i) for i in range(19)))
    go(write(tmp_path / "q.jsonl", *good, "[" * 100_000), tmp_path / "out")
    assert ledger(tmp_path / "out")["sources"][0]["dropped"]["not_json"] == {"count": 1, "lines": ["q.jsonl:20"]}
    with pytest.raises(InputError, match="2 of 20 lines"):
        go(write(tmp_path / "q.jsonl", *good[1:], "nope", "nope"), tmp_path / "out")


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StageError, match="cannot be written"):
        go(write(tmp_path / "q.jsonl", *questions(asked(1))), tmp_path / "file" / "out")


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "where", ["eyas.data.select.deduplicate.NearDuplicates.add", "py3langid.langid._load_model_file"]
)
def test_a_full_disk_in_the_middle(tmp_path, monkeypatch, where):
    source = write(tmp_path / "q.jsonl", *questions(asked(1)))
    language._load_identifier.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(where, full)
        with pytest.raises(StorageError, match="No space left"):
            go(source, tmp_path / "out")
    go(source, tmp_path / "out")
    assert not (tmp_path / "out.work").exists()


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="limit = 0"):
        build(PromptsConfig, {"limit": 0})
    with pytest.raises(UsageError, match="seed = -1"):
        build(PromptsConfig, {"seed": -1})
    with pytest.raises(UsageError, match=r"duplicate = 0\.5 is out of range. .*at least 0\.7"):
        build(PromptsConfig, {"duplicate": 0.5})


def test_bad_records_are_dropped_each_for_its_reason(tmp_path):
    """Encodings mixed in one file, NUL bytes, five megabytes, turns that say nothing."""
    good = [json.dumps(record).encode() for record in questions(*(asked(i) for i in range(80)))]
    bad = {
        "not_json": [
            '{"question": "Wie groß ist das Häuschen?"}'.encode("latin-1"),
            '{"question": "a"}'.encode("utf-16-le"),
            b'{"question": "raw \x00 byte"}',
            b"[" * 100_000,
        ],
        "too_long": [json.dumps({"question": "What comes after this? " + "word " * 1_000_000}).encode()],
        "no_user_turn": [
            b'{"question": ""}',
            b'{"messages": [{"role": "user", "content": " \\n "}]}',
            b'{"messages": [{"role": "assistant", "content": "only me"}]}',
        ],
        "not_text": [b'{"question": null}', b'{"question": "half a pair \\ud800"}'],
        "control_characters": [b'{"question": "What is \\u0000 in C, and why?"}'],
        "damaged_encoding": [
            '{"question": "Was ist für dich ein schöner Tag?"}'.encode().replace(b"\xc3", b"\xc3\x83\xc2")
        ],
        "tool_turns": [b'{"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]}'],
    }
    path = tmp_path / "q.jsonl"
    path.write_bytes(b"\n".join([*good, *(line for lines in bad.values() for line in lines)]))
    go(path, tmp_path / "out")
    assert ledger(tmp_path / "out")["dropped"] == {reason: len(lines) for reason, lines in sorted(bad.items())}
    assert ledger(tmp_path / "out")["kept"] == len(good)
    assert (tmp_path / "out" / "prompts.jsonl").stat().st_size < 100_000
