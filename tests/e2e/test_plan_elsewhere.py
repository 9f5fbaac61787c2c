"""Plans for targets and hardware that are not here, against sums made by hand."""

import json
import re
import socket
from pathlib import Path

import pytest

from eyas.cli import main

RECIPES = Path(__file__).parents[2] / "recipes"


def planned(capsys, *arguments):
    assert main(["plan", *(str(argument) for argument in arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a plan from sizes asks nobody")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_llama3_8b(capsys, tmp_path):
    """All by hand: the recipe's rates, 500,000 conversations of 480 and 720 tokens, 1 % held out, 3 epochs."""
    plan = planned(capsys, RECIPES / "llama3-8b.toml", "--out", tmp_path / "out")
    # The number that the target's safetensors add up to on the hub.
    assert plan["target"]["parameters"] == plan["target"]["active_parameters"] == 8_030_261_248
    # fc 3*4096*4096; q 8192*4096; k, v 2*8192*1024; o 4096*4096; gate, up, down 3*4096*8192; rows 32000*4096; 4 norms
    head = 50_331_648 + 33_554_432 + 16_777_216 + 16_777_216 + 100_663_296 + 131_072_000 + 16_384
    assert plan["head"]["parameters"] == head
    # 360 million tokens at 12,500 a second; 600 million at 27,000; 600 million * 0.99 * 3 at 22,700.
    hours = {stage["stage"]: stage["hours"] for stage in plan["stages"]}
    assert (hours["respond"], hours["capture"], hours["train"]) == pytest.approx((8.0, 6.1728, 21.806), rel=0.001)
    assert plan["hours"] == pytest.approx(35.979, rel=0.001)
    # Three layers of 4096 bytes and a scale of 2, six in ten final states, id and mask: 14,757.8 bytes a token.
    stored, fly = plan["features"]["stored"], plan["features"]["on_the_fly"]
    assert stored["stored_bytes"] == pytest.approx(8.8547e12, rel=0.001)
    assert stored["storage_money"] == pytest.approx(177.09, rel=0.001)  # 8,854.7 GB at 0.02
    assert stored["money"] == pytest.approx((6.1728 + 21.806) * 10.6 + 177.09, rel=0.001)
    # 3 * 594 million and, for the evaluation, 6 million at 27,000 a second.
    assert fly["read_hours"] == pytest.approx(18.395, rel=0.001)
    assert (fly["stored_bytes"], fly["money"]) == (0.0, pytest.approx((18.395 + 21.806) * 10.6, rel=0.001))
    assert plan["features"]["cheaper"] == "on_the_fly"
    assert plan["money"] == pytest.approx(35.979 * 10.6 + 177.09, rel=0.001)
    assert plan["expected_acceptance_length"] == {"low": 2.8, "high": 3.0, "inside": True}


JOBS = ["price_per_hour=11", "spot=true", "spot_price_per_hour=4", "cpu_price_per_hour=0.5", "train_machines=2"]


def test_jobs_on_vertex_cost_what_their_machines_cost(capsys, tmp_path):
    """The hours of test_llama3_8b, on the machines of the jobs: 4 that read and 2 that train, both spot."""
    keys = [f"deploy.vertex.jobs.{key}" for key in JOBS] + ["capture.world=4"]
    plan = planned(capsys, RECIPES / "llama3-8b.toml", *keys, "--out", tmp_path / "out")
    stages = {stage["stage"]: stage for stage in plan["stages"]}
    hours = [stages[name]["hours"] for name in ("respond", "capture", "train")]
    assert hours == pytest.approx([8.0, 6.1728 / 4, 21.806 / 2], rel=0.001)
    # The server of `respond` costs 10.6 an hour, beside a machine without a GPU. More machines take fewer hours.
    money = [stages[name]["money"] for name in ("respond", "capture", "train")]
    assert money == pytest.approx([8.0 * (10.6 + 0.5), 6.1728 * 4, 21.806 * 4], rel=0.001)
    assert plan["money"] == pytest.approx(sum(money) + 177.09, rel=0.001)
    assert plan["features"]["stored"]["money"] == pytest.approx((6.1728 + 21.806) * 4 + 177.09, rel=0.001)
    assert stages["train"]["machines"] == "2 x a3-highgpu-1g, spot"
    assert stages["respond"]["machines"] == "1 x n2-standard-8"
    assert (stages["eval"]["money"], stages["prompts"]["money"]) == (None, 0.0)
    assert main(["plan", str(RECIPES / "llama3-8b.toml"), *keys, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\ncapture .* 1\.54 h +24\.69  4 x a3-highgpu-1g, spot\n", text)
    assert re.search(r"\ntotal +20\.45 h +377\.\d\d, storage included\n", text)


CLOUD = """
[deploy]
storage = "gs://my-bucket/eyas"
[deploy.vertex]
project = "my-project"
[plan]
hardware = "a3-highgpu-1g"
capture_tps = 1.0
train_tps = 1.0
conversations = 1
prompt_tokens = 1
answer_tokens = 1
"""


def test_the_machines_of_the_plan_are_those_of_the_jobs(tmp_path):
    """Compares plan and CustomJobs, where `respond` has a server and where it loads the target."""
    from eyas.cli.deploy import _build_vertex_jobs
    from eyas.plan.plan import _job_machines
    from eyas.recipe import open_run

    keys = [f"deploy.vertex.jobs.{key}" for key in JOBS] + ["capture.world=4", "deploy.jobs_image=r/eyas-gpu:1"]
    recipe = tmp_path / "scout.toml"
    recipe.write_text((RECIPES / "llama3-8b.toml").read_text().partition("[respond]")[0] + CLOUD)
    for server in ([], ["respond.url=http://vllm/v1", "respond.model=m"]):
        run = open_run(str(recipe), [*keys, *server], str(tmp_path / "out"), "cpu")
        written = {}
        for name, request in _build_vertex_jobs(run).items():
            spec = request["customJob"]["jobSpec"]
            pools = spec["workerPoolSpecs"]
            spot = ", spot" if spec["scheduling"]["strategy"] == "SPOT" else ""
            machine = f"{pools[0]['machineSpec']['machineType']}{spot}"
            written[name.split("-")[1].split(".")[0]] = (sum(int(pool["replicaCount"]) for pool in pools), machine)
        assert {stage: of[:2] for stage, of in _job_machines(run.recipe, 0.0).items()} == written


def test_a_price_that_is_missing_makes_no_total(capsys, tmp_path):
    keys = ["deploy.vertex.jobs.price_per_hour=11", "deploy.vertex.jobs.spot=true"]
    plan = planned(capsys, RECIPES / "llama3-8b.toml", *keys, "--out", tmp_path / "out")
    assert [stage["money"] for stage in plan["stages"]] == [0.0, *[None] * 5, None]
    assert plan["money"] is None
    assert plan["features"]["stored"]["money"] is None


def test_on_the_fly_the_total_is_that_of_the_way_that_was_chosen(capsys, tmp_path):
    plan = planned(capsys, RECIPES / "llama3-8b.toml", "capture.online=true", "--out", tmp_path / "out")
    hours = {stage["stage"]: stage["hours"] for stage in plan["stages"]}
    # 1.782 billion tokens read at 27,000 and trained at 22,700 a second.
    assert (hours["capture"], hours["train"]) == (0.0, pytest.approx(18.333 + 21.806, rel=0.001))
    assert plan["money"] == pytest.approx((8.0 + 18.333 + 21.806) * 10.6, rel=0.001)
    assert plan["features"]["chosen"] == "on_the_fly"


def test_at_the_break_even_both_ways_cost_the_same(capsys, tmp_path):
    """Without a held-out share, rent for 2 months is what reading twice more costs: three epochs."""
    # 600 million tokens at 10,000 a second and 9 an hour: 150. A token takes 14,757.8 bytes: 8,854.7 GB.
    keys = ["capture.held_out=0", "plan.capture_tps=10000", "plan.price_per_hour=9", "plan.storage_months=2"]
    keys += [f"plan.storage_price_gb_month={300 / 2 / 8854.68}"]
    for epochs, cheaper in ((2, "on_the_fly"), (4, "stored")):
        arguments = (*keys, f"train.epochs={epochs}", "--out", tmp_path / "out")
        found = planned(capsys, RECIPES / "llama3-8b.toml", *arguments)["features"]
        assert found["break_even_epochs"] == pytest.approx(3.0, rel=1e-4)
        assert (found["epochs"], found["cheaper"]) == (epochs, cheaper)
    same = planned(capsys, RECIPES / "llama3-8b.toml", *keys, "train.epochs=3", "--out", tmp_path / "out")["features"]
    assert same["stored"]["money"] == pytest.approx(same["on_the_fly"]["money"], rel=1e-4)


@pytest.mark.parametrize(
    ("recipe", "parameters", "active", "head"),
    [
        ("llama3-8b", 8_030_261_248, 8_030_261_248, 349_192_192),
        # Embeddings 2*128256*8192; each of 80 layers: q, o 2*8192*8192, k, v 2*8192*1024, three of 8192*28672, norms.
        ("llama3-70b", 2 * 1_050_673_152 + 80 * (134_217_728 + 16_777_216 + 704_643_072 + 16_384) + 8192, None, None),
        # Each of 48 layers: q, o 2*5120*5120, k, v 2*5120*1024, router 16*5120, norms, and 17 experts of 3*5120*8192,
        # one of them shared; a token passes two.
        (
            "llama4-scout",
            2 * 1_034_485_760 + 48 * (52_428_800 + 10_485_760 + 81_920 + 10_240 + 17 * 125_829_120) + 5120,
            2 * 1_034_485_760 + 48 * (52_428_800 + 10_485_760 + 81_920 + 10_240 + 2 * 125_829_120) + 5120,
            # fc 3*5120*5120, q 10240*5120, k, v 2*10240*1024, o 5120*5120, 3*5120*16384, rows 32000*5120, norms
            78_643_200 + 52_428_800 + 20_971_520 + 26_214_400 + 251_658_240 + 163_840_000 + 20_480,
        ),
    ],
)
def test_heads_take_two_to_five_percent(recipe, parameters, active, head, capsys, tmp_path):
    """Of what a token passes through: that is what a round of the target costs."""
    plan = planned(capsys, RECIPES / f"{recipe}.toml", "--out", tmp_path / "out")
    assert plan["target"]["parameters"] == parameters
    assert plan["target"]["active_parameters"] == (active or parameters)
    assert plan["head"]["parameters"] == (head or plan["head"]["parameters"])
    assert 0.02 <= plan["head"]["share_of_active"] <= 0.05


def test_the_words_name_the_hardware_and_the_source(capsys, tmp_path):
    assert main(["plan", str(RECIPES / "llama3-70b.toml"), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    for words in ("For eight H200, with rates", "With 2.0 epochs, stored is cheaper", "not from eyas", "was not read"):
        assert words in text
    assert not (tmp_path / "out").exists()


def mixed(path, counts):
    path.mkdir()
    for task, count in counts.items():
        lines = [json.dumps({"prompt": f"{task} number {i}?"}) + "\n" for i in range(count)]
        (path / f"{task}.jsonl").write_text("".join(lines))
    return path


def test_each_task_has_its_own_longest_answer(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("eyas.plan.estimates.MEASURED_S", 0.02)
    source = mixed(tmp_path / "mixed", {"short": 100, "long": 300})
    keys = [f"prompts.source={source}", "respond.max_tokens=24", "respond.tasks.short.max_tokens=3"]
    plan = planned(capsys, recipe, *keys, "--out", tmp_path / "out")
    assert plan["amounts"]["answer_tokens"] == 100 * 3 + 300 * 24


def test_answers_of_a_server_have_the_rate_that_is_told(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("eyas.plan.estimates.MEASURED_S", 0.02)
    keys = ["respond.url=http://127.0.0.1:9/v1", "respond.model=it", "--out", tmp_path / "out"]
    assert main(["plan", str(recipe), *map(str, keys)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"respond +would run .* \?\n", text)
    assert "set plan.respond_tps to the output tokens" in text
    plan = planned(capsys, recipe, *keys, "plan.respond_tps=2")
    respond = next(stage for stage in plan["stages"] if stage["stage"] == "respond")
    assert respond["hours"] == pytest.approx(24 * 24 / 2 / 3600)
