"""The devices that hold the target of a capture, the rate of all of them, and the memory that decides."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tests.tiny import VOCAB_SIZE, tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eyas.base.errors import InputError, UsageError
from eyas.cli import main
from eyas.costs.cost_model import Rates
from eyas.features.extract import extract_features
from eyas.model import target as loading
from eyas.model.devices import own_memory
from eyas.model.target import Target
from eyas.plan.placement import capture_memory, choose_device, divide_capture
from eyas.recipe import Recipe, load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
SIZES: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": 128, "intermediate_size": 448, "num_hidden_layers": 6}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "pad_token_id": 0}
MODELS = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    # Every layer has experts, and all of them compute every token.
    "llama4": lambda: hf.Llama4ForCausalLM(
        hf.Llama4TextConfig(**SIZES, intermediate_size_mlp=896, num_local_experts=8, interleave_moe_layer_step=1)
    ),
    "qwen3_moe": lambda: hf.Qwen3MoeForCausalLM(
        hf.Qwen3MoeConfig(**SIZES, moe_intermediate_size=224, num_experts=8, num_experts_per_tok=2)
    ),
}


def load(name: str, **tables: dict[str, object]) -> Recipe:
    """A shipped recipe with other values of some keys."""
    return load_recipe(RECIPES / f"{name}.toml", dict(tables))


class PeakMemory(TorchDispatchMode):
    """Adds up the storages that operations allocate and that are alive. `peak` is in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if torch.is_tensor(one)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not torch.is_tensor(tensor):
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() in before or storage.data_ptr() in self.seen:
                continue
            self.seen.add(storage.data_ptr())
            self.alive += storage.nbytes()
            weakref.finalize(storage, self.free, storage.data_ptr(), storage.nbytes())
        self.peak = max(self.peak, self.alive)
        return out

    def free(self, pointer: int, size: int) -> None:
        self.seen.discard(pointer)
        self.alive -= size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", list(MODELS))
def test_a_batch_takes_at_most_the_memory_of_the_formula(family: str, dtype: str, tmp_path: Path) -> None:
    MODELS[family]().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    target = Target.load(tmp_path, getattr(torch, dtype))
    texts = [(torch.randint(0, VOCAB_SIZE, (64,)), torch.ones(64, dtype=torch.bool)) for _ in range(4)]
    with PeakMemory() as memory:
        list(extract_features([texts], target, 256))
    recipe = load("llama3-8b", target={"dtype": dtype}, capture={"batch_tokens": 256})
    weights = sum(weight.nbytes for weight in target.model.parameters()) / 1e9
    needed = capture_memory(recipe, target.info)[0]
    assert 0.2 * (needed - weights) < memory.peak / 1e9 <= needed - weights


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Stand-ins for four CUDA devices with 80 GB each. Returns device -> free bytes, which a test may change."""
    free = dict.fromkeys(range(4), 80 * 10**9)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device: (free[int(str(device).removeprefix("cuda:"))], 80 * 10**9)
    )
    for name in ("JOB_COMPLETION_INDEX", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return free


@pytest.mark.parametrize(
    ("variables", "device"),
    [
        ({"JOB_COMPLETION_INDEX": "6"}, "cuda:2"),  # of the pod's devices
        ({"RANK": "5"}, "cuda:1"),
        ({"RANK": "5", "LOCAL_RANK": "3"}, "cuda:3"),  # torchrun on the second machine
    ],
)
def test_each_process_has_a_device_of_its_own(variables, device, four_devices, monkeypatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    recipe = load("tiny", capture={"world": 8})
    assert choose_device(recipe, "cuda") == choose_device(recipe, "auto") == device
    assert [choose_device(recipe, name) for name in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert [choose_device(recipe, name) for name in ("cuda", "auto")] == ["cuda", "auto"]


def test_a_rank_that_is_missing_or_wrong_is_refused(four_devices, monkeypatch) -> None:
    with pytest.raises(UsageError, match=r"capture\.world=8 needs a rank"):
        choose_device(load("tiny", capture={"world": 8}), "cuda")
    monkeypatch.setenv("LOCAL_RANK", "first")
    with pytest.raises(UsageError, match="LOCAL_RANK is 'first'"):
        choose_device(load("tiny"), "auto")


def test_layers_are_spread_only_if_target_and_batch_do_not_fit(four_devices, capsys) -> None:
    """The limit is that of the formula, here with the sizes of the embedded target."""
    recipe = load("tiny")
    info = loading.Target.load("embedded").info
    needed, formula = capture_memory(recipe, info)
    weights = info.num_parameters * (4 if recipe.target.dtype == "float32" else 2) / 1e9
    tokens = recipe.capture.batch_tokens
    assert needed == pytest.approx(weights * (1 + 2 * tokens / info.num_layers / info.hidden_size))
    for free, device, words in ((1.01, "cuda:0", "holds the target"), (0.99, "auto", "the layers are spread")):
        four_devices[0] = round(needed * free * 1e9)
        assert choose_device(recipe, "auto") == device
        text = capsys.readouterr().err
        assert words in text
        assert formula in text
        assert f"{tokens:,} tokens / {info.num_layers} layers / {info.hidden_size:,} values" in text


def test_processes_of_a_machine_spread_the_layers_over_different_devices(four_devices, monkeypatch) -> None:
    assert list(own_memory()) == [0, 1, 2, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found = []
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        found.append(list(own_memory()))
    assert found == [[0, 2], [1, 3]]
    monkeypatch.setattr(loading, "own_memory", lambda: {1: 10, 3: 30})
    given = {}

    def refuse(directory, **settings):
        given.update(settings)
        raise InputError("stop", "here")

    monkeypatch.setattr(loading, "_load_model", refuse)
    with pytest.raises(InputError, match="stop"):
        Target.load("embedded", device="auto")
    assert (given["device_map"], given["max_memory"]) == ("auto", {1: 10, 3: 30})


# --- the plan --------------------------------------------------------------------------------------------------------


def planned(capsys, out: Path, recipe: str, *keys: str):
    assert main(["plan", str(RECIPES / f"{recipe}.toml"), *keys, "--out", str(out), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("recipe", "keys", "factor", "words"),
    [
        # 8.03 billion parameters of 2 bytes in 80 GB: a whole target on each device that has a process.
        ("llama3-8b", ("plan.devices=8", "plan.device_memory_gb=80", "capture.world=8"), 8, "x 8 = 216,000"),
        ("llama3-8b", ("plan.devices=8", "plan.device_memory_gb=80", "capture.world=2"), 2, "2 of 8 devices"),
        ("llama3-8b", ("plan.devices=8", "plan.device_memory_gb=80", "capture.world=99"), 8, "8 of 8 devices"),
        ("llama3-8b", (), 1, None),
        ("llama3-70b", (), 4, "3,070 tokens/s x 4 x 1 = 12,280"),
        ("llama3-70b", ("capture.world=1",), 1, "over 8 devices each"),
        ("llama3-70b", ("plan.device_memory_gb=192", "capture.world=8"), 8, "data parallel"),
        ("llama4-scout", (), 4, "2,010 tokens/s x 4 x 1 = 8,040"),
    ],
)
def test_the_hours_of_a_capture_are_those_of_its_division(recipe, keys, factor, words, capsys, tmp_path) -> None:
    plan = planned(capsys, tmp_path, recipe, *keys)
    stages = {stage["stage"]: stage for stage in plan["stages"]}
    hours = 600e6 / plan["rates"]["read"] / factor / 3600
    assert stages["capture"]["hours"] == pytest.approx(hours)
    assert plan["features"]["stored"]["read_hours"] == pytest.approx(hours)
    assert (words is None) == (plan["rates"]["capture_formula"] == "")
    if words is not None:
        assert words in plan["rates"]["capture_formula"]
        assert main(["plan", str(RECIPES / f"{recipe}.toml"), *keys, "--out", str(tmp_path)]) == 0
        assert plan["rates"]["capture_formula"] in capsys.readouterr().out


def test_each_machine_of_a_job_runs_one_process(capsys, tmp_path) -> None:
    keys = ("plan.devices=8", "plan.device_memory_gb=80", "capture.world=4", "deploy.vertex.jobs.price_per_hour=11")
    plan = planned(capsys, tmp_path, "llama3-8b", *keys, "deploy.vertex.jobs.cpu_price_per_hour=1")
    capture = next(stage for stage in plan["stages"] if stage["stage"] == "capture")
    assert capture["hours"] == pytest.approx(600e6 / 27_000 / 4 / 3600)  # four machines, one device of each
    assert capture["money"] == pytest.approx(600e6 / 27_000 / 3600 * 11)


def test_this_machine_counts_its_own_devices(four_devices) -> None:
    recipe, rates = load("tiny", capture={"world": 3}), Rates(100.0, 10.0, 50.0)
    info = Target.load("embedded").info
    divided = divide_capture(recipe, info, rates, has_jobs=False)
    assert (divided.read, divided.capture) == (100.0, 300.0)
    assert divide_capture(recipe, info, Rates(None, None, None), has_jobs=False).capture is None


def test_a_target_that_fits_nowhere_has_no_plan(capsys, tmp_path) -> None:
    for keys, words in (
        (["capture.world=8"], "1 devices of 141 GB are too small"),
        (["plan.device_memory_gb=17"], "2 devices of 17 GB"),
    ):
        path = str(RECIPES / "llama4-scout.toml")
        assert main(["plan", path, *keys, "--out", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
    assert main(["plan", str(RECIPES / "llama3-8b.toml"), "plan.devices=2", "--out", str(tmp_path)]) != 0
    assert "plan.device_memory_gb is not set" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["llama3-8b", "llama3-70b", "llama4-scout"])
def test_the_page_shows_the_plan_of_the_recipe(recipe, capsys, tmp_path) -> None:
    plan = planned(capsys, tmp_path, recipe)
    page = (RECIPES.parent / "docs" / "planning.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| {recipe},"))
    stored, fly = plan["features"]["stored"], plan["features"]["on_the_fly"]
    hours = (f"{hours:.1f} h" for hours in (stored["read_hours"], stored["train_hours"], fly["read_hours"]))
    size, even = f"{stored['stored_bytes'] / 1e12:.1f} TB", f"{plan['features']['break_even_epochs']:.2f} epochs"
    assert [cell.strip() for cell in row.split("|")][2:-1] == [size, *hours, even]
    if recipe == "llama3-70b":
        assert plan["rates"]["capture_formula"] in " ".join(page.split())
