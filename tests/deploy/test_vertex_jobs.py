"""`eyas deploy vertex --jobs`: Google's own client against a loopback of the API whose jobs write what stages write."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from tests.doubles.gcs import Fault

from eyas.base.errors import StageError, UsageError
from eyas.base.provenance import StageInputs, finish_stage, has_provenance
from eyas.cli import main
from eyas.deploy import vertex_jobs
from eyas.deploy.config import VertexConfig, VertexJobsConfig
from eyas.deploy.stage_jobs import DataStages
from eyas.deploy.vertex_client import RetryPolicy, VertexClient
from eyas.recipe import resolve_head

FAST = RetryPolicy(backoff_s=(0.01, 0.01, 0.01), poll_interval_s=0.01, timeout_s=20.0)
WORLDS = {"respond": 1, "capture": 4, "train": 1, "eval": 1, "export": 1}
STAGES = DataStages("scout", "r/eyas-gpu:1", 'name = "scout"\n', WORLDS, "https://7.prediction.vertexai.goog/v1")
RUN_URL = "gs://bucket/eyas/scout/run-0"


@pytest.fixture
def config(api) -> VertexConfig:
    return VertexConfig(project="my-project", location="europe-west4", service_account="s@x", api_endpoint=api.url)


@pytest.fixture
def out(tmp_path) -> Path:
    """A run directory whose prompts are finished."""
    prompts = tmp_path / "run" / "prompts"
    prompts.mkdir(parents=True)
    (prompts / "prompts.jsonl").write_text("{}\n")
    finish_stage(prompts, StageInputs("prompts", "sha256:0", {}), 0.0)
    return tmp_path / "run"


def write_results(bucket, tmp_path: Path):
    """Returns what jobs do: each writes a directory to the bucket, at the path that its container is given."""

    def act(job) -> None:
        container = job["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
        stage, recipe, _, place, *_ = container["args"]
        assert recipe.removeprefix("/gcs/") in bucket.objects, "the recipe is there before the job"
        assert f"{place.removeprefix('/gcs/')}/prompts/provenance.json" in bucket.objects
        if stage in vertex_jobs.RESULTS:
            local = tmp_path / "remote" / stage
            local.mkdir(parents=True)
            if stage == "train":
                for path in resolve_head("embedded").iterdir():
                    shutil.copy(path, local)
            (local / "result.bin").write_bytes(stage.encode())
            finish_stage(local, StageInputs(stage, "sha256:0", {}), 0.0)
            for path in local.iterdir():
                name = f"{place.removeprefix('/gcs/')}/{vertex_jobs.RESULTS[stage]}/{path.name}"
                bucket.create(name, path.read_bytes(), only_new=False)

    return act


def apply(config: VertexConfig, out: Path, log=lambda line: None, stages: DataStages = STAGES) -> dict:
    requests = vertex_jobs.build_jobs(config, stages, RUN_URL)
    return vertex_jobs.VertexJobs(config, requests, log, FAST).apply(stages, RUN_URL, out)


def started(api) -> list[str]:
    return [
        body["displayName"].split("-")[1]
        for method, path, body in api.requests
        if method == "POST" and path.endswith("customJobs")
    ]


# --- requests --------------------------------------------------------------------------------------------------------


def test_requests_hold_machines_commands_and_schedules(config):
    jobs = VertexJobsConfig(
        accelerator_count=8, machine_type="a3-highgpu-8g", train_machines=3, spot=True, timeout_s=60
    )
    stages = dataclasses.replace(STAGES, num_pods={**WORLDS, "train": 3})
    requests = vertex_jobs.build_jobs(dataclasses.replace(config, jobs=jobs), stages, RUN_URL)
    assert list(requests) == [f"jobs/{number}-{stage}.json" for number, stage in enumerate(WORLDS, 1)]
    specs = {name.split("-")[1].removesuffix(".json"): one["customJob"]["jobSpec"] for name, one in requests.items()}
    sizes = {stage: [int(pool["replicaCount"]) for pool in spec["workerPoolSpecs"]] for stage, spec in specs.items()}
    assert sizes == {"respond": [1], "capture": [1, 3], "train": [1, 2], "eval": [1], "export": [1]}
    schedules = {stage: spec["scheduling"]["strategy"] for stage, spec in specs.items()}
    assert schedules == {**dict.fromkeys(WORLDS, "SPOT"), "respond": "STANDARD"}
    assert specs["train"]["scheduling"]["restartJobOnWorkerRestart"] is True
    assert {spec["serviceAccount"] for spec in specs.values()} == {"s@x"}
    for stage, spec in specs.items():
        for pool in spec["workerPoolSpecs"]:
            has_gpu = stage != "respond"
            machine = pool["machineSpec"]
            assert machine["machineType"] == ("a3-highgpu-8g" if has_gpu else "n2-standard-8")
            assert machine.get("acceleratorCount") == (8 if has_gpu else None)
            words = pool["containerSpec"]["args"]
            assert words[0] == stage
            assert words[3] == "/gcs/bucket/eyas/scout/run-0"
            assert re.fullmatch(r"/gcs/bucket/eyas/scout/run-0/jobs/[0-9a-f]{12}/scout\.toml", words[1])
            assert ("--device" in words) == (stage in ("capture", "eval"))
    shell, flag, script, name = specs["train"]["workerPoolSpecs"][1]["containerSpec"]["command"]
    assert (shell, flag, name) == ("sh", "-c", "sh")
    assert script.startswith("exec torchrun --nnodes=3 --nproc-per-node=8 --node-rank=")
    assert '"$RANK"' in script
    assert "command" not in specs["capture"]["workerPoolSpecs"][0]["containerSpec"]


def test_torchrun_starts_the_words_of_a_job(tmp_path, config):
    """Runs the command of two machines in a shell, with a torchrun that prints its words."""
    import subprocess

    (tmp_path / "torchrun").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tmp_path / "torchrun").chmod(0o755)
    stages = dataclasses.replace(STAGES, num_pods={**WORLDS, "train": 2})
    request = vertex_jobs.build_jobs(config, stages, RUN_URL)["jobs/3-train.json"]
    container = request["customJob"]["jobSpec"]["workerPoolSpecs"][1]["containerSpec"]
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RANK": "1", "MASTER_ADDR": "host-0", "MASTER_PORT": "2222"}
    done = subprocess.run([*container["command"], *container["args"]], env=variables, capture_output=True, text=True)
    assert done.stdout.split() == [
        "--nnodes=2", "--nproc-per-node=1", "--node-rank=1", "--master-addr=host-0", "--master-port=2222",
        "--no-python", "eyas", *container["args"],
    ]  # fmt: skip


def test_googles_client_parses_the_requests(config):
    client = VertexClient(config, FAST)
    for request in vertex_jobs.build_jobs(config, STAGES, RUN_URL).values():
        message = client.parse_request("CreateCustomJobRequest", request)
        text = type(message).to_json(message, use_integers_for_enums=False, always_print_fields_with_no_presence=False)
        again, raw = json.loads(text), json.loads(json.dumps(request))
        raw["customJob"]["jobSpec"]["scheduling"] = {
            key: value for key, value in raw["customJob"]["jobSpec"]["scheduling"].items() if value is not False
        }
        assert again == raw, "nothing is lost between file and API"


def test_jobs_that_cannot_work_are_rejected(config):
    with pytest.raises(UsageError, match="is the pod itself"):
        vertex_jobs.build_jobs(config, dataclasses.replace(STAGES, url="http://127.0.0.1/v1"), RUN_URL)
    with pytest.raises(UsageError, match="cannot mount s3://"):
        vertex_jobs.build_jobs(config, STAGES, "s3://bucket/x")
    with pytest.raises(UsageError, match=r"no deploy\.vertex\.project"):
        vertex_jobs.build_jobs(dataclasses.replace(config, project=None), STAGES, RUN_URL)


# --- apply, status, cancel -------------------------------------------------------------------------------------------


def test_apply_runs_the_stages_in_order_and_downloads_their_results(config, api, bucket, out, tmp_path):
    api.on_job = write_results(bucket, tmp_path)
    lines: list[str] = []
    told = apply(config, out, lines.append)
    assert started(api) == list(WORLDS)
    assert [job["state"] for job in told["jobs"]] == ["succeeded"] * 5
    assert [line.split(": ")[1] for line in lines if "-capture-" in line] == ["pending", "running", "succeeded"]
    for stage, name in vertex_jobs.RESULTS.items():
        assert has_provenance(out / name)
        assert (out / name / "result.bin").read_bytes() == stage.encode()
    assert apply(config, out) == told
    assert started(api) == list(WORLDS), "no job runs twice"


def test_a_failed_job_stops_the_road_and_the_same_command_continues(config, api, bucket, out, tmp_path):
    api.on_job = write_results(bucket, tmp_path)
    requests = vertex_jobs.build_jobs(config, STAGES, RUN_URL)
    client = VertexClient(config, FAST)
    client.create_job(requests["jobs/1-respond.json"], vertex_jobs.RUNNING)  # of an earlier command, which was stopped
    api.on_job, act = None, api.on_job
    api.fails["job"] = {"code": 3, "message": "The replica workerpool0-0 exited with a non-zero status of 1."}
    with pytest.raises(StageError, match=r"scout-respond-\w+ has failed: The replica .+ stream-logs 1"):
        apply(config, out)
    assert started(api) == ["respond"], "it watched the running one"
    api.on_job = act
    apply(config, out)
    assert started(api) == ["respond", *WORLDS]


@pytest.mark.parametrize("what", ["lost", 503, 429])
def test_a_lost_answer_starts_no_second_job(config, api, bucket, out, tmp_path, what):
    api.on_job = write_results(bucket, tmp_path)
    api.faults.append(Fault("POST", "customJobs$", what, times=1))
    apply(config, out)
    names = [job["displayName"] for job in api.jobs.values()]
    assert len(names) == len(set(names)) == 5


def test_jobs_are_cancelled(config, api, bucket, out):
    requests = vertex_jobs.build_jobs(config, STAGES, RUN_URL)
    lines: list[str] = []
    jobs = vertex_jobs.VertexJobs(config, requests, lines.append, FAST)
    assert {job["state"] for job in jobs.status()["jobs"]} == {"absent"}
    api.polls = 1000
    VertexClient(config, FAST).create_job(requests["jobs/1-respond.json"], vertex_jobs.RUNNING)
    told = jobs.cancel()
    assert [job["state"] for job in told["jobs"]] == ["cancelled", *["absent"] * 4]
    assert len(lines) == 1
    assert jobs.cancel() == told
    assert len(lines) == 1, "there is nothing left to cancel"


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_from_prompts_to_results(api, bucket, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(vertex_jobs, "RetryPolicy", lambda: FAST)  # the command would wait ten seconds for each job
    recipe = tmp_path / "pair.toml"
    recipe.write_text(
        '[prompts]\nsource = "builtin:train"\nlimit = 3\n[deploy]\nengine = "eyas"\nimage = "r/eyas:1"\n'
        'jobs_image = "r/eyas-gpu:1"\nstorage = "gs://bucket/eyas"\n'
        f'[deploy.vertex]\nproject = "my-project"\naccelerator_count = 0\napi_endpoint = "{api.url}"\n'
    )
    command = ["deploy", "vertex", str(recipe), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert said.startswith("The run has no head yet. Only the jobs that make one are written.")
    files = sorted(path.name for path in (tmp_path / "run" / "deploy" / "vertex").rglob("*.json"))
    assert files == [*(f"{n}-{stage}.json" for n, stage in enumerate(WORLDS, 1)), "provenance.json"]
    assert main([*command, "--jobs", "--apply"]) == 2
    assert "Run `eyas prompts` first" in capsys.readouterr().err
    assert main(["prompts", str(recipe), "--out", str(tmp_path / "run")]) == 0
    api.polls, api.on_job = 0, write_results(bucket, tmp_path)
    capsys.readouterr()
    assert main([*command, "--jobs", "--apply"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [re.sub(r"-[0-9a-f]{12}", "", line) for line in printed] == [f"pair-{stage}: succeeded" for stage in WORLDS]
    (text,) = [data for name, data in bucket.objects.items() if name.endswith("/pair.toml")]
    assert re.search(rb'\[features\]\nurl = "gs://bucket/eyas/pair/run-[0-9a-f]{12}/features"', text)
    assert main([*command, "--jobs", "--status", "--json"]) == 0
    assert {job["state"] for job in json.loads(capsys.readouterr().out)["jobs"]} == {"succeeded"}
    assert main([*command, "--jobs", "--delete"]) == 0
    capsys.readouterr()
    assert main([*command, "--jobs", f"target.model={tmp_path}"]) == 2
    assert "is a directory of this machine, which jobs cannot read" in capsys.readouterr().err
    assert main([*command, "--jobs", "deploy.storage=s3://bucket/x"]) == 2
    assert "Set deploy.storage to gs://BUCKET/PREFIX" in capsys.readouterr().err
