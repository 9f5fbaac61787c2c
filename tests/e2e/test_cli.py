"""The command line from outside: what it prints, what it refuses and how, and that a refusal leaves nothing behind."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.e2e.small import ERROR, STAGES, contents, run_stages, write_prompts, write_recipe
from tests.tiny import tiny_target, tiny_tokenizer

from eyas.cli import main
from eyas.features.reader import Features
from eyas.formats.head_dir import HeadMetadata, read_head, write_head
from eyas.model.head import Head
from eyas.model.vocab import DraftVocab

VERBS = {
    "quickstart",
    "run",
    *STAGES,
    "export",
    "bench",
    "tune",
    "drift",
    "generate",
    "serve",
    "show",
    "plan",
    "doctor",
    "deploy",
}


@pytest.fixture
def refused(capsys, tmp_path):
    """Run a command line that must end with exit code 2 and one message; returns the message.

    The lines that say which target and head are loaded may precede it.
    """

    def refuse(*arguments):
        assert main([str(argument) for argument in arguments]) == 2
        out, err = capsys.readouterr()
        messages = [line for line in err.splitlines() if re.match("eyas: (?!target |head )", line)]
        assert len(messages) == 1, err
        assert ERROR.fullmatch(messages[0]), messages[0]
        assert "Traceback" not in err
        assert out == ""
        left = [path.name for path in tmp_path.rglob("*") if path.name.endswith(".eyas-tmp")]
        assert left == []
        return messages[0]

    return refuse


def only_recipe(out):
    """The run directory holds no work of any stage."""
    return {path.name for path in out.rglob("*") if path.is_file()} <= {"recipe.toml"}


# --- help ------------------------------------------------------------------------------------------------------------


def test_help_starts_without_torch_and_names_the_verbs_that_work():
    code = (
        "import sys; from eyas.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"
    assert set(re.findall(r"^    ([a-z]+)\b", done.stdout, re.MULTILINE)) == VERBS


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"usage: eyas {verb}" in capsys.readouterr().out


def test_unknown_verb_and_missing_recipe(refused):
    assert refused("trian") == "eyas: error: Unknown verb 'trian'. Did you mean train? Read `eyas --help`."
    assert refused("train") == "eyas: error: RECIPE is missing. Read `eyas train --help`."
    assert "Did you mean --slots?" in refused("serve", "--slotz", "3")
    assert "--port is 'x', not a whole number" in refused("serve", "--port", "x")
    assert "--dtype is 'int8', but must be float32 or bfloat16" in refused("serve", "--dtype", "int8")
    assert "--fast" in refused("train", "recipes/tiny.toml", "--fast")


# --- what it does ----------------------------------------------------------------------------------------------------


def test_a_second_time_nothing_is_done(run, recipe):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != "recipe.toml"}
    run_stages(recipe, run)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_run_goes_through_every_stage_and_prints_the_results(run, recipe, capsys):
    assert main(["run", str(recipe), "--out", str(run), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((run / "report" / "results.json").read_bytes())
    assert printed["schema"] == 1
    assert printed["lossless"]["identical"] == printed["lossless"]["prompts"] == 2
    assert main(["doctor", str(run)]) == 0
    said = capsys.readouterr().out
    assert "ok: bench is finished" in said
    warnings = [line for line in said.splitlines() if line.startswith("warning")]
    assert [line for line in warnings if "Attention on this CPU" not in line] == []
    assert main(["plan", str(recipe), "--out", str(run)]) == 0
    assert "would run" not in capsys.readouterr().out
    # What a user throws away is made again.
    (run / "report" / "results.json").unlink()
    assert main(["doctor", str(run)]) == 2
    assert main(["bench", str(recipe), "--out", str(run)]) == 0
    assert (run / "report" / "results.json").is_file()


def test_eval_json_is_the_written_object_and_nothing_else(run, recipe, capsys):
    assert main(["eval", str(recipe), "--out", str(run), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((run / "eval" / "acceptance.json").read_bytes())
    (task,) = printed["tasks"].values()
    assert task["acceptance_length"] >= 1


def test_generate_answers_a_file_in_its_order_with_and_without_head(finished, target, tmp_path, capsys):
    asked = write_prompts(tmp_path / "asked.jsonl", 10)
    common = ["generate", "--target", str(target), "--input", str(asked), "--max-tokens", "20", "--json"]

    def answers(*more):
        assert main([*common, *more]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    plain, drafted = answers("--no-head"), answers("--head", str(finished / "head"), "--tree", "3,2,6")
    keys = {"prompt_ids", "token_ids", "text", "acceptance_length", "rounds", "ttft_ms", "tpot_ms"}
    assert all(keys <= set(answer) for answer in plain + drafted)
    assert [answer["token_ids"] for answer in drafted] == [answer["token_ids"] for answer in plain]
    texts = [tiny_tokenizer().decode(answer["prompt_ids"]) for answer in plain]
    assert all(f"what is {i} plus {3 * i}?" in text for i, text in enumerate(texts))
    assert all(answer["acceptance_length"] == 1 for answer in plain if answer["rounds"])


def test_generate_streams_one_answer(target, capsys):
    assert main(["generate", "--target", str(target), "--no-head", "--max-tokens", "8", "hello"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert "acceptance length 1.00" in captured.err


def test_show_marks_what_is_supervised(finished, recipe, capsys):
    assert main(["show", str(recipe), "--out", str(finished), "--index", "3"]) == 0
    captured = capsys.readouterr()
    assert "what is 3 plus 9?" in captured.out
    assert re.search(r"sums:3: \d+ tokens, \d+ supervised", captured.err)


# --- prompts that cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No prompt file"),
        ("", "is empty"),
        ("\n \n", "holds no record"),
        ('{"prompt": "a"}\n{"prompt": \n', "broken.jsonl:2"),
        ('{"messages": [{"role": "assistant", "content": "hi"}]}\n{"messages": []}\n', "no_user_turn"),
    ],
    ids=["missing", "empty", "blank", "not JSON", "no user turn"],
)
def test_bad_prompt_files(text, words, recipe, tmp_path, refused):
    source, out = tmp_path / "broken.jsonl", tmp_path / "out"
    if text is not None:
        source.write_text(text)
    message = refused("prompts", recipe, "--out", out, f"prompts.source={source}")
    assert words in message
    assert source.name in message
    assert only_recipe(out)


def test_a_few_bad_lines_are_dropped_and_named(recipe, tmp_path):
    source, out = write_prompts(tmp_path / "mostly.jsonl", 60), tmp_path / "out"
    with source.open("a") as file:
        file.write('{"prompt": \n{"messages": [{"role": "system", "content": "be kind"}]}\n')
    assert main(["prompts", str(recipe), "--out", str(out), f"prompts.source={source}"]) == 0
    ledger = json.loads((out / "prompts" / "ledger.json").read_bytes())
    assert (ledger["came"], ledger["kept"]) == (62, 60)
    assert "mostly.jsonl:61" in json.dumps(ledger)
    assert "no_user_turn" in json.dumps(ledger)


def test_no_license(target, tmp_path, refused):
    bare = write_recipe(tmp_path / "bare.toml", target, write_prompts(tmp_path / "sums.jsonl"))
    bare.write_text(bare.read_text().replace('license = "MIT"', ""))
    for verb in ("prompts", "run", "plan"):
        assert "no license" in refused(verb, bare, "--out", tmp_path / "out")
    assert only_recipe(tmp_path / "out")


def test_conversations_longer_than_the_context(recipe, tmp_path, refused):
    source, out = tmp_path / "long.jsonl", tmp_path / "out"
    words = " ".join(f"word{number}" for number in range(200))
    source.write_text(json.dumps({"prompt": f"Sort these: {words}"}) + "\n")
    assert main(["prompts", str(recipe), "--out", str(out), f"prompts.source={source}"]) == 0
    message = refused("respond", recipe, "--out", out, f"prompts.source={source}")
    assert "the 512 positions of the target" in message
    assert not any((out / "conversations").iterdir())
    # Beside others that fit it is dropped, and counted.
    source.write_text(source.read_text() + json.dumps({"prompt": "what is short?"}) + "\n")
    run_stages(recipe, out, ())
    for stage in ("prompts", "respond"):
        assert main([stage, str(recipe), "--out", str(out), f"prompts.source={source}"]) == 0
    ledger = json.loads((out / "conversations" / "ledger.json").read_bytes())
    assert ledger["dropped"]["too_long"] == {"count": 1, "ids": ["long:0"]}


def test_generate_refuses_a_prompt_longer_than_the_context(target, refused):
    assert "tokens" in refused("generate", "--target", target, "--no-head", "word " * 200)


# --- targets and heads that do not fit -------------------------------------------------------------------------------


@pytest.fixture
def no_template(target, tmp_path):
    bare = Path(shutil.copytree(target, tmp_path / "bare"))
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    return bare


def test_a_target_without_chat_template(no_template, recipe, finished, tmp_path, refused):
    out = tmp_path / "out"
    run_stages(recipe, out, ("prompts",))
    assert "chat template" in refused("respond", recipe, "--out", out, f"target.model={no_template}")
    assert not (out / "conversations").exists()
    assert "chat template" in refused("generate", "--target", no_template, "--no-head", "hello")
    assert main(["doctor", str(no_template)]) == 2
    assert main(["doctor", str(finished / "head"), "--target", str(no_template)]) == 2


def test_no_such_target(recipe, tmp_path, refused):
    assert "No directory" in refused("generate", "--target", tmp_path / "nowhere", "--no-head", "hello")
    run_stages(recipe, tmp_path / "out", ("prompts",))
    message = refused("respond", recipe, "--out", tmp_path / "out", f"target.model={tmp_path / 'nowhere'}")
    assert "nowhere" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32, "target_hidden_size": 32}, ("32", "48")),
        ({"vocab_size": 300}, ("300", "288")),
        ({"aux_layer_ids": (1, 2, 9)}, ("[1, 2, 9]", "4")),
    ],
    ids=["hidden size", "vocabulary", "layers"],
)
def test_a_head_that_does_not_fit(changes, words, finished, target, tmp_path, capsys, refused):
    stored = read_head(finished / "head")
    config = replace(stored.config, **changes)
    vocab = DraftVocab.from_counts(torch.ones(config.vocab_size, dtype=torch.int64), config.draft_vocab_size)
    write_head(tmp_path / "head", Head.init(config, 0), vocab, HeadMetadata(), torch.float32)
    message = refused("generate", "--target", target, "--head", tmp_path / "head", "hello")
    assert all(word in message for word in words), message
    assert main(["doctor", str(tmp_path / "head"), "--target", str(target)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ERROR.fullmatch(line)
    assert all(word in line for word in words), line


def test_eval_refuses_features_of_another_target(run, recipe, tmp_path, refused):
    other = tiny_target(tmp_path / "other", seed=1)
    before = contents(run / "head")
    for verb in ("train", "eval"):
        message = refused(verb, recipe, "--out", run, f"target.model={other}")
        assert len(re.findall(r"sha256:[0-9a-f]{64}", message)) == 2
    assert contents(run / "head") == before


@pytest.mark.parametrize("verb", ["capture", "eval"])
def test_a_device_that_cannot_be_had(verb, run, recipe, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)  # importing it fails
    before = contents(run)
    told = {"auto": "pip install 'eyas[large]'", "cuda:1000": "no device cuda:1000", "tpu": "cuda:N"}
    for device, words in told.items():
        assert words in refused(verb, recipe, "--out", run, "--device", device)
    assert "--device" in refused("train", recipe, "--out", run, "--device", "cpu")
    assert contents(run) == before


@pytest.mark.parametrize("device", ["auto", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_target_elsewhere(device, run, recipe):
    """The features are those of the CPU but for rounding; where there is nothing but a CPU, byte by byte."""
    if device == "auto":
        pytest.importorskip("accelerate")
    before, rows = contents(run), Features(run / "features")
    wanted = [next(rows.rows([i])).aux_TL for i in rows.indices("train")]
    for verb, directory in (("capture", "features"), ("eval", "eval")):
        shutil.rmtree(run / directory)
        assert main([verb, str(recipe), "--out", str(run), "--device", device]) == 0
    rows = Features(run / "features")
    for i, expected_TL in zip(rows.indices("train"), wanted, strict=True):
        torch.testing.assert_close(next(rows.rows([i])).aux_TL, expected_TL, atol=1e-3, rtol=1e-3)
    if torch.cuda.device_count() == 0:
        assert contents(run) == before


def test_a_damaged_shard(run, recipe, refused):
    shutil.rmtree(run / "head")
    shard = next((run / "features").glob("shard-*.safetensors"))
    data = shard.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    shard.write_bytes(data[:begin] + bytes(byte ^ 1 for byte in data[begin:]))
    message = refused("train", recipe, "--out", run)
    assert shard.name in message
    assert re.search(r"[0-9a-f]{8} instead of [0-9a-f]{8}", message)
    assert not (run / "head").exists() or not any((run / "head").iterdir())


# --- recipes and keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.setps=3", "Use train.steps"),
        ("trian.steps=3", "Use train"),
        ("train.steps=many", "a whole number"),
        ("train.steps=0", "at least 1"),
        ("target.dtype=floot32", "Use float32"),
        ("train.steps", "stage.key=value"),
        ("train=3", "a table"),
    ],
)
def test_wrong_keys(override, words, recipe, tmp_path, refused):
    assert words in refused("train", recipe, override, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "text"), [("none.toml", None), ("odd.toml", "train = [\n"), ("recipe.json", "{}")])
def test_wrong_recipes(name, text, tmp_path, refused):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert name in refused("run", tmp_path / name, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_stages_out_of_order(recipe, tmp_path, refused):
    for stage, needed in zip(STAGES[1:], STAGES[:-1], strict=True):
        message = refused(stage, recipe, "--out", tmp_path / "out")
        assert needed in message or "head" in message, message
    assert only_recipe(tmp_path / "out")


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of 256 KiB where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(small_disk, recipe, finished, capsys):
    out = small_disk / "run"
    run_stages(recipe, out, ("prompts", "respond"))
    capsys.readouterr()
    assert main(["capture", str(recipe), "--out", str(out)]) == 2
    (message,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("eyas:")]
    assert ERROR.fullmatch(message)
    assert "No space left" in message
    assert not list(out.rglob("*.eyas-tmp"))
    assert not (out / "features" / "provenance.json").exists()
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    run_stages(recipe, out)
    assert contents(out) == contents(finished)


def test_an_interrupt_during_finalisation_is_not_lost():
    code = """
import os, signal, sys, time
from eyas import cli

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # Python raises here, in a place where it can only say so

def run(parsed):
    one = Finalised()
    del one
    time.sleep(5)
    return 0

cli._parse = lambda arguments: type("Parsed", (), {"function": "recipes:run_verb"})
cli._load_function = lambda name: run
sys.exit(cli.main([]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "stopped" in done.stderr


# --- what a run must not mix -----------------------------------------------------------------------------------------


def test_a_stage_refuses_what_is_out_of_step(recipe, finished, refused, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    # Other answers, and then training as if the features were made from them.
    assert main(["respond", str(recipe), "respond.max_tokens=5", "--out", str(out)]) == 0
    message = refused("train", recipe, "respond.max_tokens=5", "--out", out)
    assert "conversations" in message
    assert message.count("sha256:") == 2


def test_a_bench_before_its_stages_is_refused(recipe, refused, tmp_path):
    assert "eyas prompts" in refused("bench", recipe, "--out", tmp_path / "nothing")


@pytest.mark.parametrize("name", ["../up", "/abs", ".."])
def test_a_run_stays_below_runs(recipe, refused, name):
    assert "cannot be a directory below runs" in refused("run", recipe, f"name={name}")


@pytest.mark.parametrize(
    ("option", "value"), [("--seed", str(10**30)), ("--seed", "-1"), ("--tree", "6,4,4096"), ("--tree", "50,2000,90")]
)
def test_numbers_out_of_bounds(refused, option, value):
    assert option in refused("generate", "hello", option, value)


def test_equal_prompts_get_samples_of_their_own(tmp_path, capsys):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "Tell me about the harbour."}\n' * 4)
    assert main(["generate", "--input", str(path), "--temperature", "1", "--max-tokens", "24", "--json"]) == 0
    answers = [json.loads(line)["token_ids"] for line in capsys.readouterr().out.splitlines()]
    assert len({tuple(answer) for answer in answers}) > 1


def test_an_input_that_is_not_utf8(refused, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    assert "UTF-8" in refused("generate", "--input", path)


def test_half_a_character_is_no_text(refused, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "\\ud800 hi"}\n')
    assert "valid text" in refused("generate", "--input", path)


@pytest.mark.parametrize(
    ("stage", "module", "function", "override"),
    [
        ("capture", "eyas.features.store", "write_manifest", "capture.dtype=bfloat16"),
        ("train", "eyas.train.train.provenance", "finish_stage", "train.seed=9"),
        ("eval", "eyas.evaluation.evaluate.provenance", "finish_stage", "eval.seed=9"),
    ],
)
def test_work_on_another_recipe_stopped_half_way(
    recipe, finished, tmp_path, monkeypatch, stage, module, function, override
):
    # What another recipe had begun to write must not be taken for the finished work of this one.
    out = tmp_path / "copy"
    shutil.copytree(finished, out)

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.{function}", stop)
        assert main([stage, str(recipe), override, "--out", str(out)]) == 1
    assert main([stage, str(recipe), "--out", str(out)]) == 0
    assert contents(out) == contents(finished)


def test_a_refused_command_leaves_the_recipe_of_the_work_that_is_there(recipe, finished, refused, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    refused("prompts", recipe, "prompts.source=/nowhere.jsonl", "--out", out)
    assert contents(out) == contents(finished)
