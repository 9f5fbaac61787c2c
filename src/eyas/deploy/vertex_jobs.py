"""Runs the stages from `respond` to `export` as CustomJobs on Vertex AI, for `eyas deploy vertex --jobs`.

    RUN/prompts ── upload ──>  gs://BUCKET/PREFIX/NAME/run-<digest of the prompts>/
                                   respond -> capture -> train -> eval -> export     one job each, one after the other
    RUN/head, eval, export  <── download

Vertex AI mounts buckets below /gcs in every container of a job, so the run directory is a path there. Features go to
the bucket by their URL. A caller cannot choose the id of a CustomJob. It is found by its display name, which contains a
digest of the request, so the same command continues: it skips jobs that succeeded and watches one that runs.

A container gets the names of deploy.vertex.jobs.secrets, and eyas reads their values there when it starts. `respond`
gets the access token of a Vertex AI endpoint from the service account of the job (`base.google_auth`).
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.base.errors import StageError, UsageError
from eyas.base.fetch import fetch
from eyas.base.google_auth import SECRETS_VARIABLE
from eyas.base.provenance import digest_json, has_provenance
from eyas.base.storage import StoragePath
from eyas.deploy.config import VertexConfig
from eyas.deploy.launch import OWNER_LABELS, Json, Log, upload_artifacts
from eyas.deploy.manifests import render_template
from eyas.deploy.stage_jobs import DataStages, needs_gpu, stage_command
from eyas.deploy.vertex_client import RetryPolicy, VertexClient

JOBS = "jobs"
STAGES = ("respond", "capture", "train", "eval", "export")
RESULTS = {"train": "head", "eval": "eval", "export": "export"}
"""Stage -> its directory, which is downloaded."""
RUNNING = ("JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_PAUSED", "JOB_STATE_UPDATING")
DIGEST_CHARS = 12


def to_mounted_path(url: str) -> str:
    """Returns the path of a gs:// URL in a container of Vertex AI. Raises UsageError for another URL."""
    if not url.startswith("gs://"):
        raise UsageError(f"Jobs on Vertex AI cannot mount {url}", "Set deploy.storage to gs://BUCKET/PREFIX")
    return f"/gcs/{url.removeprefix('gs://')}"


def build_jobs(config: VertexConfig, stages: DataStages, run_url: str) -> dict[str, Json]:
    """Returns file name -> CreateCustomJobRequest, in the order in which the jobs run.

    Args:
        config: The recipe keys deploy.vertex.*.
        stages: The stages; `num_pods` has the number of machines of each.
        run_url: The gs:// URL of the run directory.

    Raises:
        UsageError: A value is missing, or a container could not use it.
    """
    requests = {}
    for number, stage in enumerate(stages.num_pods, 1):
        spec = _build_spec(config, stages, stage, run_url)
        job = {"labels": {**OWNER_LABELS, "eyas_name": stages.name}, "jobSpec": spec}
        job["displayName"] = f"{stages.name}-{stage}-{digest_json(job).removeprefix('sha256:')[:DIGEST_CHARS]}"
        requests[f"{JOBS}/{number}-{stage}.json"] = {"parent": config.parent, "customJob": job}
    return requests


def recipe_file(stages: DataStages) -> str:
    """Returns the name of the recipe below the run directory. It follows the content, so no job reads another's."""
    return f"{JOBS}/{digest_json(stages.recipe).removeprefix('sha256:')[:DIGEST_CHARS]}/{stages.name}.toml"


def _build_spec(config: VertexConfig, stages: DataStages, stage: str, run_url: str) -> Json:
    has_gpu, num_machines, out = needs_gpu(stage, stages.url), stages.num_pods[stage], to_mounted_path(run_url)
    num_gpus = config.jobs.accelerator_count if has_gpu else 0
    project = f"=projects/{config.project}/secrets/"
    secrets = [word.replace("=", project) + "/versions/latest" for word in config.jobs.secrets]
    command = stage_command(stage, f"{out}/{recipe_file(stages)}", out, num_gpus, num_machines)
    machines = {"has_gpu": has_gpu, "num_gpus": num_gpus, "num_machines": num_machines}
    values = {"image": stages.image, "command": command, "secrets": secrets, "secrets_variable": SECRETS_VARIABLE}
    return render_template("vertex_job", config=config, stage=stage, **machines, **values)


# --- running the jobs ------------------------------------------------------------------------------------------------


class VertexJobs:
    """The jobs of a run on Vertex AI. All methods raise EyasError, and continue if called again."""

    def __init__(
        self, config: VertexConfig, requests: Mapping[str, Json], log: Log, retry_policy: RetryPolicy | None = None
    ) -> None:
        """Creates the client. requests: the result of `build_jobs`."""
        self.requests, self.log = requests.values(), log
        self.client = VertexClient(config, retry_policy or RetryPolicy())

    def apply(self, stages: DataStages, run_url: str, out: Path) -> Json:
        """Runs the jobs that have not succeeded, downloads their results to the run directory, and returns `status`.

        Args:
            stages: The stages, as for `build_jobs`.
            run_url: The gs:// URL of the run directory.
            out: The local run directory.
        """
        for request in self.requests:  # a wrong accelerator is found before anything is created
            self.client.parse_request("CreateCustomJobRequest", request)
        upload_artifacts(run_url, {"prompts": out / "prompts"})
        StoragePath(run_url).join(*recipe_file(stages).split("/")).write_bytes(stages.recipe.encode())
        for request in self.requests:
            self._run_job(request)
        for stage in RESULTS.keys() & stages.num_pods.keys():
            directory = out / RESULTS[stage]
            if not has_provenance(directory):
                self.log(f"downloading {directory}")
                fetch(f"{run_url}/{RESULTS[stage]}", out / ".fetched").rename(directory)
        return self.status()

    def status(self) -> Json:
        """Returns {"jobs": [{"name", "state", "job"}]}. `state` is absent if the job was never started."""
        jobs = []
        for request in self.requests:
            job = self.client.find_job(request)
            state, resource = ("absent", None) if job is None else (_to_text(job), job.name)
            jobs.append({"name": request["customJob"]["displayName"], "state": state, "job": resource})
        return {"jobs": jobs}

    def cancel(self) -> Json:
        """Cancels the jobs that run, and returns `status`. What they have written stays in the bucket."""
        for job in map(self.client.find_job, self.requests):
            if job is not None and job.state.name in RUNNING:
                self.log(f"cancelling {job.display_name}")
                self.client.cancel_job(job.name)
        return self.status()

    def _run_job(self, request: Json) -> None:
        name, job = request["customJob"]["displayName"], self.client.find_job(request)
        if job is None or job.state.name not in (*RUNNING, "JOB_STATE_SUCCEEDED"):
            job = self.client.create_job(request, RUNNING)
        logged = None
        while True:
            if job.state.name != logged:
                logged = job.state.name
                self.log(f"{name}: {_to_text(job)}")
            if job.state.name not in (*RUNNING, "JOB_STATE_CANCELLING"):
                break
            time.sleep(self.client.retry_policy.poll_interval_s)
            job = self.client.get_job(job.name)
        if job.state.name != "JOB_STATE_SUCCEEDED":
            detail = f": {' '.join(job.error.message.split())[:120].rstrip('.')}" if job.error.message else ""
            fix = f"Read `gcloud ai custom-jobs stream-logs {job.name.rpartition('/')[2]}`, then run this command again"
            raise StageError(f"The job {name} has {_to_text(job)}{detail}", fix)


def _to_text(job: Any) -> str:
    return job.state.name.removeprefix("JOB_STATE_").lower()
