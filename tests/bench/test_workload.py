"""Prompts of a measurement: from a file of any form, synthetic, or the builtin evaluation set."""

import json
from pathlib import Path

import pytest

from eyas.base.errors import InputError
from eyas.base.provenance import StageInputs, finish_stage
from eyas.bench.bench import BenchInputs, _public_config, build_origin
from eyas.bench.config import BenchConfig
from eyas.bench.results import redact_location
from eyas.bench.workload import Prompt, interleave_tasks, load_workload, run_paired
from eyas.chat.conversation import Message
from eyas.chat.render import render_prompt
from eyas.evalsets import FAMILIES
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(EMBEDDED)


def written(path: Path, *records: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_file_by_task(target: Target, tmp_path: Path) -> None:
    """The first prompts of each task, without later turns; a prompt too long for an answer is counted."""
    context = target.info.max_positions
    ducks = {"role": "user", "content": "and ducks?"}
    file = written(
        tmp_path / "mixed.jsonl",
        {"prompt": "how many geese?", "task": "birds"},
        {
            "messages": [ducks, {"role": "assistant", "content": "two"}],
            "task": "birds",
        },
        {"prompt": "a third bird", "task": "birds"},
        {"prompt": "word " * context, "task": "long"},
        {"prompt": "what is 3 plus 4?"},
    )
    found, num_too_long = load_workload(BenchConfig(prompts=str(file), prompts_per_task=2), tmp_path, target)
    assert {task: len(some) for task, some in found.items()} == {"birds": 2, "mixed": 1}
    assert num_too_long == 1
    second = [Message("user", "and ducks?")]
    assert found["birds"][1].ids == tuple(render_prompt(second, target.tokenizer))
    alone = written(tmp_path / "long.jsonl", {"prompt": "word " * context})
    with pytest.raises(InputError, match="has more than"):
        load_workload(BenchConfig(prompts=str(alone)), tmp_path, target)
    with pytest.raises(InputError, match=r"none\.jsonl"):
        load_workload(BenchConfig(prompts=str(tmp_path / "none.jsonl")), tmp_path, target)


def test_other_prompts_have_another_digest(target: Target, tmp_path: Path) -> None:
    """The digest depends on the content of the file, not on its name."""
    evaluated = tmp_path / "eval"
    evaluated.mkdir()
    (evaluated / "acceptance.json").write_text("{}")
    finish_stage(evaluated, StageInputs(stage="eval", recipe="r", parents={"head": "sha256:h"}), 0.0)
    config = BenchConfig(prompts=str(tmp_path / "prompts.jsonl"))
    found = []
    for words in ("one", "two", "one"):
        written(tmp_path / "prompts.jsonl", {"prompt": words})
        found.append(build_origin(config, BenchInputs(tmp_path, evaluated, tmp_path), "sha256:h", target).recipe)
    assert found[0] == found[2] != found[1]


def test_synthetic_prompts(target: Target, tmp_path: Path) -> None:
    config = BenchConfig(prompts="synthetic", synthetic_words=20, prompts_per_task=3)
    found, _ = load_workload(config, tmp_path, target)
    assert [len(some) for some in found.values()] == [3]
    again, _ = load_workload(config, tmp_path, target)
    assert found == again
    assert len({one.ids for one in found["20 words"]}) == 3


def test_builtin_prompts(target: Target, tmp_path: Path) -> None:
    found, _ = load_workload(BenchConfig(prompts="builtin:eval", prompts_per_task=1), tmp_path, target)
    assert tuple(found) == tuple(FAMILIES)


def test_results_name_no_directory_of_this_machine() -> None:
    """Nor a key in a query. Names, ids and relative paths stay."""
    told = _public_config(BenchConfig(prompts="/home/me/p.jsonl", draft_model="/home/me/small", arms=("model3",)))
    assert (told["prompts"], told["draft_model"]) == ("p.jsonl", "small")
    assert redact_location("gs://bucket/p.jsonl?token=secret&b#c") == "gs://bucket/p.jsonl?token=...&b=..."
    assert [redact_location(one) for one in ("builtin:eval", "org/small", "data/p.jsonl")] == [
        "builtin:eval",
        "org/small",
        "data/p.jsonl",
    ]
    assert _public_config(BenchConfig())["prompts"] == "held out from training"


def test_arms_alternate() -> None:
    calls: list[str] = []

    def arm(name: str):
        def run(unit: int) -> str:
            calls.append(f"{name}{unit}")
            return f"{name}{unit}"

        return run

    results = run_paired({"a": arm("a"), "b": arm("b")}, [0, 1, 2], repeats=2)
    assert calls == ["a0", "b0", "b1", "a1", "a2", "b2", "b0", "a0", "a1", "b1", "b2", "a2"]
    assert results == {"a": [["a0"] * 2, ["a1"] * 2, ["a2"] * 2], "b": [["b0"] * 2, ["b1"] * 2, ["b2"] * 2]}


def test_tasks_are_interleaved() -> None:
    one, two, three = (Prompt(name, (1,)) for name in "123")
    assert interleave_tasks({"x": [one, two], "y": [three]}) == [one, three, two]
