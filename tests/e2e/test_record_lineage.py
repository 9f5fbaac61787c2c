"""`--explain` and `--forget`: what happened to a record, and its removal from everything made from it."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.e2e.small import ERROR

from eyas import record_lineage as lineage
from eyas.base.provenance import read_provenance, verify_contents
from eyas.base.storage import StoragePath
from eyas.chat.conversation import read_conversation_dir, read_conversations
from eyas.cli import main
from eyas.features.reader import Features
from eyas.features.store import read_manifest


def prompts(recipe, run, *arguments):
    return main(["prompts", str(recipe), "--out", str(run), *arguments])


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def stages(capsys):
    """Returns {gate or stage: what it did} of one explained record."""
    rows = (line.strip().partition("  ") for line in lines(capsys) if re.match(r"  \w", line))
    return {name: text.strip() for name, _, text in rows if text}


@pytest.fixture
def trained(run):
    """Ids that the head was trained on, in the order of the features."""
    rows = read_manifest(StoragePath.of(run / "features")).rows
    return [row.id.partition("#")[0] for row in rows if row.split == "train"]


def test_explain_names_every_stage(recipe, run, trained, capsys):
    assert prompts(recipe, run, "--explain", trained[0]) == 0
    told = stages(capsys)
    assert told["source"] == "sums, license MIT (allowed)"
    assert told["selection"] == "passed"
    assert told["prompts"] == "kept, replaced: nothing"
    assert re.fullmatch(r"1 answers, \d+ tokens \((stop|length)\)", told["respond"])
    assert re.fullmatch(r"\d+ tokens for train", told["capture"])
    assert re.fullmatch(r"sha256:[0-9a-f]{64} was trained on it", told["head"])


def test_explain_names_the_reason_of_a_dropped_record(recipe, tmp_path, capsys):
    source = tmp_path / "q.jsonl"
    texts = [
        "My card is 4539 6779 7904 9696, why is it refused?",
        "what is 3 plus 4 plus 5?",
        "what is 3 plus 4 plus 5?",
    ]
    source.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    out = tmp_path / "run"
    assert prompts(recipe, out, f"prompts.source={source}") == 0
    for record, reason in (("q:0", "dropped: card"), ("q:2", "dropped: duplicate of q:1")):
        capsys.readouterr()
        assert prompts(recipe, out, f"prompts.source={source}", "--explain", record) == 0
        assert stages(capsys)["prompts"] == reason


def test_forget_removes_a_record_from_every_directory(recipe, run, trained, capsys):
    """Each directory is finished afterwards, and made from the current state of the one before."""
    gone, number = trained[1], len(list(read_conversations(run / "prompts" / "prompts.jsonl")))
    before = read_provenance(run / "features").digest
    texts = {row.id: row for row in read_manifest(StoragePath.of(run / "features")).rows}
    assert prompts(recipe, run, "--forget", gone) == 0
    told = lines(capsys)
    assert [line.split()[0] for line in told] == [gone, "removed", "removed", "removed", "head"]
    assert "run `eyas train` again" in told[-1]
    assert gone not in {prompt.id for prompt in read_conversations(run / "prompts" / "prompts.jsonl")}
    assert gone not in {one.id for one in read_conversation_dir(run / "conversations")}
    rows = read_manifest(StoragePath.of(run / "features")).rows
    assert [row.id for row in rows] == [name for name in texts if name.partition("#")[0] != gone]
    assert read_provenance(run / "features").digest != before
    for stage, parent, name in (
        ("conversations", "prompts", "prompts"),
        ("features", "conversations", "conversations"),
    ):
        verify_contents(run / stage)
        assert read_provenance(run / stage).parents[name] == read_provenance(run / parent).digest
    ledger = json.loads((run / "prompts" / "ledger.json").read_bytes())
    assert (ledger["kept"], ledger["dropped"]["forgotten"]) == (number - 1, 1)
    assert json.loads((run / "conversations" / "ledger.json").read_bytes())["conversations"] == number - 1
    capsys.readouterr()
    assert prompts(recipe, run, "--explain", gone) == 0
    told = stages(capsys)
    assert told["prompts"] == "dropped: forgotten"
    assert re.fullmatch(r".+; heads trained on it: sha256:[0-9a-f]{64}", told["forgotten"])


def test_forget_names_an_export_of_the_head(recipe, run, trained, capsys):
    """An export of a head that was not trained on the record is not named."""
    assert main(["export", str(recipe), "--out", str(run)]) == 0
    capsys.readouterr()
    assert prompts(recipe, run, "--forget", trained[0]) == 0
    assert str(run / "export") in lines(capsys)[-1]
    assert main(["train", str(recipe), "--out", str(run)]) == 0
    capsys.readouterr()
    assert prompts(recipe, run, "--forget", trained[1]) == 0
    assert lines(capsys)[-1].startswith("  head sha256:")


def test_other_rows_keep_their_bytes(recipe, run, trained):
    first = Features(run / "features")
    before = {row.id: next(first.rows([i])) for i, row in enumerate(first.manifest.rows)}
    assert prompts(recipe, run, "--forget", trained[0]) == 0
    features = Features(run / "features")
    for i, info in enumerate(features.manifest.rows):
        row = next(features.rows([i]))
        assert row.ids_T.tolist() == before[info.id].ids_T.tolist()
        assert row.aux_TL.equal(before[info.id].aux_TL)


def test_a_forgotten_record_is_not_taken_again(recipe, run, trained, capsys):
    assert prompts(recipe, run, "--forget", trained[0]) == 0
    assert prompts(recipe, run, "prompts.seed=5") == 0
    assert trained[0] not in {prompt.id for prompt in read_conversations(run / "prompts" / "prompts.jsonl")}
    assert json.loads((run / "prompts" / "ledger.json").read_bytes())["dropped"] == {"forgotten": 1}


def test_the_run_continues_after_it(recipe, run, trained, capsys):
    """The stages before the head are finished; the head is trained again on what is left."""
    assert prompts(recipe, run, "--forget", trained[0]) == 0
    stamps = {path: path.stat().st_mtime_ns for path in (run / "features").glob("shard-*.safetensors")}
    for stage in ("prompts", "respond", "capture"):
        assert main([stage, str(recipe), "--out", str(run)]) == 0
    assert stamps == {path: path.stat().st_mtime_ns for path in (run / "features").glob("shard-*.safetensors")}
    seen = read_provenance(run / "head").digest
    assert main(["train", str(recipe), "--out", str(run)]) == 0
    assert read_provenance(run / "head").digest != seen
    capsys.readouterr()
    assert main(["doctor", str(run)]) == 2  # eval is of the old head
    assert "eval" in capsys.readouterr().err


def sums_hold(run):
    """Asserts that the ledgers count what the files hold, for each source and in all."""
    ledger = json.loads((run / "prompts" / "ledger.json").read_bytes())
    kept = list(read_conversations(run / "prompts" / "prompts.jsonl"))
    assert sum(source["kept"] for source in ledger["sources"]) == ledger["kept"] == len(kept)
    for one in (ledger, *ledger["sources"]):
        dropped = sum(said if isinstance(said, int) else said["count"] for said in one["dropped"].values())
        assert one["came"] == one["kept"] + one["over_limit"] + dropped
        counted = (one["tasks"].values(), one["languages"].values(), one["lengths"]["counts"])
        assert [sum(counts) for counts in counted] == [one["kept"]] * 3
    changed = sum((Counter(prompt.changed) for prompt in kept), Counter())
    assert {kind: both["replaced"] for kind, both in ledger["entities"].items() if both["replaced"]} == changed
    if (run / "conversations" / "ledger.json").is_file():
        answers = json.loads((run / "conversations" / "ledger.json").read_bytes())
        turns = [turn for one in read_conversation_dir(run / "conversations") for turn in one.turns]
        assert answers["prompts"] == answers["conversations"] + sum(one["count"] for one in answers["dropped"].values())
        assert answers["answers"] == sum(answers["finish"].values()) == len(turns)
        assert answers["tokens"] == sum(len(turn.token_ids) for turn in turns)
        assert sum(answers["tasks"].values()) == answers["conversations"]


def test_each_source_has_its_own_counts(recipe, tmp_path, capsys):
    """Also if another source has a file of the same name, and for the prompts of eyas.evalsets."""
    out = tmp_path / "run"
    for place, texts in (("a", ("what is 3 plus 4?",)), ("b", ("Is Anna Kowalski there?", "Where do geese sleep?"))):
        (tmp_path / place).mkdir()
        (tmp_path / place / "q.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    table = f'{{path="{tmp_path}/b/q.jsonl",license="CC0-1.0",name="b"}},{{path="builtin:quickstart",count=3}}'
    arguments = (f"prompts.source={tmp_path}/a/q.jsonl", f"prompts.sources=[{table}]")
    assert prompts(recipe, out, *arguments) == 0
    sums_hold(out)
    for record, source in (("b:0", "b, license CC0-1.0"), ("quickstart-code:0", "eyas-quickstart, license Apache-2.0")):
        capsys.readouterr()
        assert prompts(recipe, out, *arguments, "--explain", record) == 0
        assert stages(capsys)["source"] == f"{source} (allowed)"
        assert prompts(recipe, out, *arguments, "--forget", record) == 0
        sums_hold(out)
    ledger = json.loads((out / "prompts" / "ledger.json").read_bytes())
    assert [source["kept"] for source in ledger["sources"]] == [1, 1, 2]
    assert ledger["sources"][1]["dropped"] == {"forgotten": {"count": 1, "lines": ["q.jsonl:1"]}}


def test_all_rows_of_a_shard_may_be_removed(recipe, run, capsys):
    manifest = read_manifest(StoragePath.of(run / "features"))
    assert len(manifest.shards) > 1
    for record in {row.id.partition("#")[0]: None for row in manifest.rows if row.shard == 0}:
        capsys.readouterr()
        assert prompts(recipe, run, "--forget", record) == 0
        assert f"  removed from {run / 'features'}" in lines(capsys)
    left = read_manifest(StoragePath.of(run / "features"))
    assert [shard.name for shard in left.shards] == [shard.name for shard in manifest.shards[1:]]
    assert [row.id for row in left.rows] == [row.id for row in manifest.rows if row.shard]
    names = sorted(path.name for path in (run / "features").glob("shard-*.safetensors"))
    assert names == [shard.name for shard in left.shards]
    for i in range(len(left.rows)):
        next(Features(run / "features").rows([i]))
    sums_hold(run)
    assert main(["train", str(recipe), "--out", str(run)]) == 0


def test_duplicates_of_a_forgotten_record_do_not_replace_it(recipe, tmp_path, capsys):
    source, out = tmp_path / "q.jsonl", tmp_path / "run"
    text = "How do apples and bricks number 3 work together?"
    texts = (text, "where do geese sleep?", text.replace("?", " ?"), text)
    source.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    assert prompts(recipe, out, f"prompts.source={source}") == 0
    for record, told in (
        ("q:3", "(duplicate of q:0) and will not be taken again; forget q:0, too"),
        ("q:0", "not be taken either: q:2, q:3"),
    ):
        capsys.readouterr()
        assert prompts(recipe, out, f"prompts.source={source}", "--forget", record) == 0
        assert told in "".join(lines(capsys))
    assert prompts(recipe, out, f"prompts.source={source}", "prompts.seed=5") == 0
    assert [prompt.id for prompt in read_conversations(out / "prompts" / "prompts.jsonl")] == ["q:1"]
    sums_hold(out)


def test_a_head_is_named_for_every_record_of_its_training(recipe, run, trained, capsys):
    assert prompts(recipe, run, "--forget", trained[0]) == 0
    capsys.readouterr()
    assert prompts(recipe, run, "--forget", trained[1]) == 0
    assert "was trained on it: run `eyas train` again" in lines(capsys)[-1]


def test_a_second_call_completes_a_killed_one(recipe, run, trained, capsys, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(lineage, "_forget_conversation", killed)
        assert prompts(recipe, run, "--forget", trained[0]) == 1
    assert trained[0] in {one.id for one in read_conversation_dir(run / "conversations")}
    assert prompts(recipe, run, "--forget", trained[0]) == 0
    assert trained[0] not in {one.id for one in read_conversation_dir(run / "conversations")}
    assert trained[0] not in {row.id.partition("#")[0] for row in read_manifest(StoragePath.of(run / "features")).rows}


def test_unfinished_stages_are_cleared(recipe, run, trained):
    work = run / "prompts.work"
    work.mkdir()
    (work / "00000.jsonl").write_text("screened for other settings")
    for stage in ("conversations", "features"):
        (run / stage / "provenance.json").unlink()
    assert prompts(recipe, run, "--forget", trained[0]) == 0
    assert not work.exists()
    assert not [*(run / "conversations").glob("part-*"), *(run / "features").glob("shard-*.safetensors")]
    assert not (run / "features" / "manifest.json").exists()


def test_answers_to_older_prompts_stay_out_of_date(recipe, run):
    """Forgetting does not turn them into answers to the prompts that were selected since."""
    assert prompts(recipe, run, "prompts.limit=5") == 0
    kept = [prompt.id for prompt in read_conversations(run / "prompts" / "prompts.jsonl")]
    left_out = next(f"sums:{i}" for i in range(24) if f"sums:{i}" not in kept)
    for record in (kept[0], left_out):
        assert prompts(recipe, run, "prompts.limit=5", "--forget", record) == 0
        assert record not in {one.id for one in read_conversation_dir(run / "conversations")}
    assert main(["respond", str(recipe), "--out", str(run), "prompts.limit=5"]) == 0
    assert [one.id for one in read_conversation_dir(run / "conversations")] == kept[1:]


def test_wrong_usage(recipe, run, tmp_path, capsys):
    cases = (
        (run, ["--explain", "sums:999"], "no record sums:999"),
        (run, ["--explain", "sums:1", "--forget", "sums:1"], "--explain and --forget cannot be used together"),
        (tmp_path / "empty", ["--forget", "sums:1"], "Run `eyas prompts` first"),
    )
    for place, arguments, named in cases:
        assert prompts(recipe, Path(place), *arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert ERROR.fullmatch(err.strip()), err
        assert named in err
