"""Verdicts by hand, and what `eyas drift` says and refuses."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.monitoring.outputs import CHAIN2, HEAD, TREE16, answer, entry, write_run

from eyas.base.config import build, load_toml
from eyas.bench.config import BenchConfig
from eyas.cli import main
from eyas.deploy.launch import ServedModel, build_launch
from eyas.deploy.vertex_deployment import ENDPOINT, build_requests
from eyas.monitoring.acceptance_log import build_record
from eyas.recipe import Recipe
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape, chain_shape

ERROR = re.compile(r"eyas: error: .+\n")
SHAPES = (TreeShape(6, 4, 16), chain_shape(2))
PROMISED = {
    "all": entry(4.0, 3.8, 4.2) | {"by_context": {"<=256": entry(4.0, 3.9, 4.1)}},
    "tasks": {"math": entry(4.5, 4.2, 4.8)},
}


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", {"tasks": {"chat": entry(4.0, 3.7, 4.3)}}, PROMISED)


def write_log(directory, *groups):
    """groups: (answers, accepted tokens of each round, what else is said of them)."""
    (directory / "acceptance").mkdir(parents=True)
    lines = []
    for count, accepted, rest in groups:
        made = {"context": 20, "temperature": 0.0, "task": None, "head": HEAD, "arm": TREE16} | rest
        for _ in range(count):
            one = answer(accepted, made["arm"], made["context"], temperature=made["temperature"])
            record = build_record(one, made["head"], made["task"], SHAPES)
            assert record is not None
            lines.append(record.to_line())
    (directory / "acceptance" / "log.jsonl").write_bytes(b"".join(lines))
    return directory


def ask(capsys, run, log, *words):
    """The exit code and the object."""
    code = main(["drift", str(run), str(log), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def verdicts(found):
    return {(part["slice"], part["name"], part["temperature"]): part["verdict"] for part in found["slices"]}


def test_what_was_promised_is_kept(run, tmp_path, capsys):
    log = write_log(tmp_path / "log", (30, [4, 3, 5, 4] * 5, {}), (12, [5, 4] * 10, {"task": "math"}))
    code, found = ask(capsys, run, log)
    assert (code, found["verdict"]) == (0, "keep")
    said = verdicts(found)
    assert said["all", None, "0"] == said["task", "math", "0"] == said["context", "<=256", "0"] == "as before"
    assert said["task", "chat", "0"] == "too few"
    (whole,) = (part for part in found["slices"] if part["slice"] == "all")
    assert whole["rounds"] == 42 * 20
    assert whole["acceptance_length"] == pytest.approx((30 * 80 + 12 * 90) / (42 * 20))
    assert whole["difference"] == pytest.approx(whole["acceptance_length"] / 4.0 - 1)


def test_a_slice_that_got_worse_asks_for_training(run, tmp_path, capsys):
    log = write_log(tmp_path / "log", (60, [4, 3, 5, 4] * 5, {}), (12, [3, 2] * 10, {"task": "math"}))
    code, found = ask(capsys, run, log)
    assert (code, found["verdict"]) == (3, "retrain")
    said = verdicts(found)
    assert said["task", "math", "0"] == "worse"
    assert said["all", None, "0"] == "as before"
    assert main(["drift", str(run), str(log)]) == 3
    out = capsys.readouterr().out
    assert "Train again" in out
    (line,) = (line for line in out.splitlines() if line.startswith("task math, temperature 0 "))
    assert line.split()[4:] == ["12", "240", "2.50", "(2.50-2.50)", "4.50", "(4.20-4.80)", "-44.4%", "worse"]


def test_a_slice_that_few_ask_for_does_not(run, tmp_path, capsys):
    log = write_log(tmp_path / "log", (200, [4, 3, 5, 4] * 5, {}), (12, [3, 2] * 10, {"task": "math"}))
    code, found = ask(capsys, run, log)
    assert (code, found["verdict"]) == (0, "keep")
    assert verdicts(found)["task", "math", "0"] == "worse"


def test_the_tenth_is_one_of_all_answers_whatever_trees_they_ran(tmp_path, capsys):
    """The evaluation's tree never ran; a task is promised with the bench's, a chain, which ran for a few answers."""
    chained = Recipe(bench=BenchConfig(depth=2, top_k=1, nodes=3))
    whole = {"all": entry(4.0, 3.8, 4.2) | {"by_context": {}}, "tree": {"depth": 6, "top_k": 4, "nodes": 32}}
    run = write_run(tmp_path / "run", {"tasks": {"chat": entry(2.9, 2.8, 3.0)}}, whole, chained)
    few, many = (12, [1, 2] * 10, {"task": "chat", "arm": CHAIN2}), (200, [4, 3] * 10, {})
    code, found = ask(capsys, run, write_log(tmp_path / "few", many, few))
    parts = {(part["slice"], part["name"]): part for part in found["slices"]}
    assert parts["all", None]["requests"] == 0, "no round of the tree that was evaluated"
    assert (parts["task", "chat"]["verdict"], parts["task", "chat"]["requests"]) == ("worse", 12)
    assert parts["task", "chat"]["share"] == pytest.approx(12 / 212)
    assert (code, found["verdict"]) == (0, "keep")
    code, found = ask(capsys, run, write_log(tmp_path / "more", (100, [4, 3] * 10, {}), few))
    assert (code, found["verdict"]) == (3, "retrain"), "12 of 112"


def test_a_little_below_is_no_drift_and_the_interval_of_the_promise_counts(tmp_path, capsys):
    """3.9 against 4.0 is within the margin; 3.5 lies inside what twenty prompts once promised."""
    log = write_log(tmp_path / "log", (40, [4, 4, 4, 4, 4, 4, 4, 4, 4, 3], {}))
    sure = write_run(tmp_path / "sure", {}, {"all": entry(4.0, 3.99, 4.01) | {"by_context": {}}})
    assert ask(capsys, sure, log)[1]["verdict"] == "keep"
    shutil.rmtree(log)
    write_log(log, (40, [4, 3] * 10, {}))
    assert ask(capsys, sure, log)[1]["verdict"] == "retrain"
    vague = write_run(tmp_path / "vague", {}, {"all": entry(4.0, 3.4, 4.6) | {"by_context": {}}})
    assert ask(capsys, vague, log)[1]["verdict"] == "keep"


def test_too_few_rounds_or_answers_say_nothing(run, tmp_path, capsys):
    log = write_log(tmp_path / "log", (9, [1] * 100, {}))
    assert ask(capsys, run, log)[1]["verdict"] == "unknown"
    shutil.rmtree(log)
    write_log(log, (19, [1] * 10, {}))
    assert ask(capsys, run, log)[1]["verdict"] == "unknown"
    shutil.rmtree(log)
    write_log(log, (20, [1] * 10, {}))
    assert ask(capsys, run, log)[1]["verdict"] == "retrain"


def test_another_temperature_and_another_head_are_not_compared(run, tmp_path, capsys):
    other = "sha256:" + "b" * 64
    log = write_log(tmp_path / "log", (40, [1] * 20, {"temperature": 1.0}), (30, [1] * 20, {"head": other}))
    code, found = ask(capsys, run, log)
    assert (code, found["verdict"], found["requests_of_other_heads"]) == (0, "unknown", 30)
    assert verdicts(found)["all", None, "<=1"] == "no promise"
    shutil.rmtree(log)
    write_log(log, (30, [1] * 20, {"head": other}))
    assert main(["drift", str(run), str(log)]) == 2
    assert other in capsys.readouterr().err


def test_days(run, tmp_path, capsys):
    log = write_log(tmp_path / "log", (40, [4] * 20, {}))
    path = log / "acceptance" / "log.jsonl"
    old = re.sub(r'"time": "20\d\d', '"time": "2001', path.read_text()).replace("[20, 80]", "[20, 20]")
    path.write_text(old + path.read_text())
    assert ask(capsys, run, log)[1]["verdict"] == "retrain"
    assert ask(capsys, run, log, "--days", "1")[1]["verdict"] == "keep"
    for days in ("1000000", "1e300"):  # before there were dates
        assert ask(capsys, run, log, "--days", days)[1]["verdict"] == "retrain"


def test_a_larger_tree_says_what_a_smaller_one_would_have_accepted():
    """Four accepted nodes, the last of which only trees of 20 nodes or more verify."""
    tree32, chain5 = Arm("tree32", TreeShape(8, 4, 32)), Arm("chain5", chain_shape(5))
    seen = AcceptanceTrace(tree32, 10, (2, 3, 9, 20), chain_accepted=1, chain_offered=6)
    assert [seen.num_tokens_with(TreeShape(d, 4, n)) for d, n in ((8, 32), (6, 16), (4, 8), (2, 16))] == [5, 4, 3, 3]
    assert seen.num_tokens_with(chain_shape(1)) is None
    assert seen.num_tokens_with(TreeShape(8, 4, 64)) is None
    assert AcceptanceTrace(chain5, 10, (2, 3, 4), 3, 5).num_tokens_with(chain_shape(2)) == 3
    assert AcceptanceTrace(chain5, 10, (2,), 1, 5).num_tokens_with(chain_shape(2)) == 2
    assert AcceptanceTrace(TREE16, 10, (2,), 1, 5).num_tokens_with(TreeShape(8, 4, 16)) is None


# --- refused ---------------------------------------------------------------------------------------------------------


def no_results(run):
    (run / "report" / "results.json").unlink()


def another_schema(run):
    (run / "report" / "results.json").write_text('{"schema": 7}')


def no_json(run):
    (run / "report" / "results.json").write_text("{")


def no_provenance(run):
    (run / "report" / "provenance.json").unlink()


def another_evaluation(run):
    (run / "eval" / "acceptance.json").write_text('{"schema": 2}')


def no_interval(run):
    (run / "report" / "results.json").write_text('{"schema": 1, "tasks": {"chat": {"acceptance_length": 3}}}')


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (no_results, r"results.json cannot be read \(No such file"),
        (another_schema, "results.json has schema 7, but this eyas reads schema 1"),
        (no_json, "results.json is not valid JSON"),
        (no_provenance, "report is unfinished"),
        (another_evaluation, "acceptance.json has schema 2"),
        (no_interval, "results.json has no valid value for tasks.chat.ci95"),
        (shutil.rmtree, "no directory"),
    ],
)
def test_a_run_that_promises_nothing(run, tmp_path, capsys, damage, named):
    log = write_log(tmp_path / "log", (40, [4] * 20, {}))
    damage(run)
    assert main(["drift", str(run), str(log)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert ERROR.fullmatch(err), err
    assert re.search(named, err)


def test_no_log_an_empty_one_and_wrong_usage(run, tmp_path, capsys):
    assert main(["drift", str(run), str(tmp_path)]) == 2
    assert "--sample-low-acceptance" in capsys.readouterr().err
    log = write_log(tmp_path / "log")
    assert main(["drift", str(run), str(log)]) == 2
    assert "has no outputs" in capsys.readouterr().err
    assert main(["drift", str(run), str(log), "--days", "0"]) == 2
    write_log(tmp_path / "other", (20, [4] * 20, {}))
    assert main(["drift", str(run), str(tmp_path / "other"), "--recipe", str(tmp_path / "x.toml")]) == 2
    assert "no prompts in" in capsys.readouterr().err


BROKEN = {
    "time": ('"2026-11-22T10:00:00"', '"yesterday"', "1", "null"),
    "rounds": ('{"<=256": {"6,4,16": [1e999, 4]}}', '{"<=256": {"6,4,16": [1, 99999999999999999999]}}', "[]", "7"),
    "temperature": ('"warm"', "null"),
}


def test_damaged_lines_are_left_out_and_said(run, tmp_path, capsys):
    log = write_log(tmp_path / "log", (40, [4] * 20, {}))
    path = log / "acceptance" / "log.jsonl"
    whole = path.read_text()
    line = json.loads(whole.splitlines()[0])
    broken = [
        "{" + ", ".join(f'"{name}": {value if name == key else json.dumps(line[name])}' for name in line) + "}"
        for key, values in BROKEN.items()
        for value in values
    ]
    path.write_text('{"time": 1}\n[]\n' + "\n".join(broken) + "\n" + whole + '{"time": "2026')
    for words in ([], ["--days", "7"]):
        code, found = main(["drift", str(run), str(log), "--json", *words]), capsys.readouterr()
        assert (code, json.loads(found.out)["requests"]) == (0, 40)
        assert f"{2 + len(broken)} lines" in found.err


def endpoint_of(recipe):
    """Where `eyas deploy vertex` would put a head of this recipe."""
    launch = build_launch(recipe.deploy, ServedModel(recipe.name, "org/model", Path("head"), HEAD))
    return build_requests(recipe.deploy.vertex, launch)[ENDPOINT]["endpointId"]


@pytest.mark.parametrize(("named", "endpoint"), [("", "first"), ('name = "live"\n', "live")])
def test_the_next_head_goes_where_the_last_one_is(run, tmp_path, named, endpoint):
    log = write_log(tmp_path / "log", (40, [4] * 20, {}))
    (log / "prompts.jsonl").write_bytes(b'{"messages": []}\n')
    deploy = f'[deploy]\n{named}image = "r/x:1"\nstorage = "gs://b"\n[deploy.vertex]\nproject = "my-project"\n'
    (run / "recipe.toml").write_text(f'name = "first"\n[target]\nhead = "embedded"\n{deploy}')
    out = tmp_path / "again.toml"
    assert main(["drift", str(run), str(log), "--recipe", str(out)]) == 0
    recipes = [build(Recipe, load_toml(path)) for path in (run / "recipe.toml", out)]
    assert [recipe.name for recipe in recipes] == ["first", "again"], "run directories of their own"
    assert [endpoint_of(recipe) for recipe in recipes] == [endpoint, endpoint]
    (run / "recipe.toml").write_text('name = "Scout_1"\n[target]\nhead = "embedded"\n')  # no name on any platform
    assert main(["drift", str(run), str(log), "--recipe", str(out)]) == 0


def test_the_recipe_is_the_runs_with_other_prompts(run, tmp_path, capsys):
    log = write_log(tmp_path / "log", (40, [4] * 20, {}))
    (log / "prompts.jsonl").write_bytes(b'{"messages": []}\n{"half')
    (run / "recipe.toml").write_text(
        'name = "first"\n[target]\nhead = "embedded"\n[features]\nurl = "memory://f/x/"\n[train]\nloss = "lk_log"\n'
    )
    out = tmp_path / "again.toml"
    assert main(["drift", str(run), str(log), "--recipe", str(out)]) == 0
    assert "1 prompts" in capsys.readouterr().err
    found = build(Recipe, load_toml(out))
    (source,) = found.prompts.all_sources()
    assert (source.license, source.name, source.keep_system) == ("LicenseRef-Own", "own-traffic", True)
    assert source.path == str(tmp_path / "again.prompts.jsonl")
    assert (tmp_path / "again.prompts.jsonl").read_bytes() == b'{"messages": []}\n'
    assert (tmp_path / "again.prompts.jsonl").stat().st_mode & 0o777 == 0o600
    assert found.name == "again"
    assert found.target.head is None
    assert found.train.init.endswith("embedded/head")
    assert found.train.head.intermediate_size is not None
    assert found.features.url == "memory://f/x-again"
    assert found.train.loss == "lk_log"
