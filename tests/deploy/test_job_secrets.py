"""A job gets its secrets and access tokens where it runs: from Secret Manager and from the metadata server."""

import dataclasses
import os
import re
from pathlib import Path

import pytest
from tests.data.answers.fake_server import Fake, serving
from tests.data.answers.prompts_dir import write_prompts
from tests.data.answers.test_remote_responder import answer, config_of
from tests.deploy.test_vertex_jobs import FAST, RUN_URL, STAGES
from tests.doubles.google import google

from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.google_auth import load_secrets
from eyas.base.openai_http import read_api_key
from eyas.cli import main
from eyas.deploy import vertex_jobs
from eyas.deploy.config import VertexConfig, VertexJobsConfig

PLAN = ["plan", str(Path(__file__).parents[2] / "recipes" / "llama3-8b.toml")]  # a verb that needs no target
HUB, SERVER = "hf_0123456789", "sk-of-the-server"
STORED = {
    "projects/my-project/secrets/hub-token/versions/latest": f"{HUB}\n",
    "projects/my-project/secrets/server-key/versions/latest": SERVER,
}
SECRETS = ("HF_TOKEN=hub-token", "SERVER_KEY=server-key")


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """Takes back what `load_secrets` sets."""
    for name in ("HF_TOKEN", "SERVER_KEY"):
        monkeypatch.setenv(name, "")


def jobs_of(config: VertexConfig, *secrets: str) -> dict:
    config = dataclasses.replace(config, jobs=VertexJobsConfig(secrets=secrets))
    return vertex_jobs.build_jobs(config, STAGES, RUN_URL)


def environment_of(request: dict) -> dict[str, str]:
    """The variables of a job's containers."""
    (variables,) = [
        {one["name"]: one["value"] for one in pool["containerSpec"]["env"]}
        for pool in request["customJob"]["jobSpec"]["workerPoolSpecs"][:1]
    ]
    return variables


def test_a_job_starts_with_the_secrets_of_its_recipe(api, monkeypatch, capsys):
    """The command writes and sends names. eyas with the variables of the job finds the values."""
    config = VertexConfig(project="my-project", api_endpoint=api.url)
    request = jobs_of(config, *SECRETS)["jobs/1-respond.json"]
    assert HUB not in str(request)
    assert SERVER not in str(request)
    vertex_jobs.VertexClient(config, FAST).create_job(request, vertex_jobs.RUNNING)
    (job,) = api.jobs.values()
    for name, value in environment_of({"customJob": job}).items():
        monkeypatch.setenv(name, value)
    with google(monkeypatch, secrets=STORED):
        assert main(PLAN) == 0, capsys.readouterr().err
    assert (os.environ["HF_TOKEN"], os.environ["SERVER_KEY"]) == (HUB, SERVER)
    assert "EYAS_SECRETS" not in os.environ, "the processes that a stage starts need not read them again"
    assert "EYAS_SECRETS" not in environment_of(jobs_of(config)["jobs/1-respond.json"])


def test_a_secret_that_cannot_be_read_is_an_error(monkeypatch, capsys):
    with google(monkeypatch, secrets=STORED) as store:
        monkeypatch.setenv("EYAS_SECRETS", "HF_TOKEN=projects/my-project/secrets/other/versions/latest")
        assert main(PLAN) == 2
        said = capsys.readouterr().err
        assert re.search(r"secrets/other/versions/latest:access cannot be read \(HTTP 403", said)
        assert "roles/secretmanager.secretAccessor" in said
        store.no_token = {2}
        with pytest.raises(InputError, match="HTTP 503"):
            load_secrets(f"HF_TOKEN={next(iter(STORED))}")
    assert os.environ["HF_TOKEN"] == ""


@pytest.mark.parametrize("wrong", ["HF_TOKEN", "HF_TOKEN=a b", "hf token=x", "HF_TOKEN=a=b", "HF_TOKEN="])
def test_secrets_that_are_no_names_are_rejected(wrong):
    with pytest.raises(UsageError, match="Write VARIABLE=NAME, never the value"):
        VertexJobsConfig(secrets=(wrong,))


@pytest.mark.parametrize(
    ("url", "is_vertex"),
    [
        ("https://7.us-central1-123.prediction.vertexai.goog/v1/projects/p/x", True),
        ("https://us-central1-aiplatform.googleapis.com/v1/projects/p/x", True),
        ("http://7.us-central1-123.prediction.vertexai.goog/v1", False),
        ("https://prediction.vertexai.goog.example.org/v1", False),
        ("https://example.org/7.prediction.vertexai.goog/v1", False),
        ("https://us-central1-aiplatform.googleapis.com@example.org/v1", False),
        ("https://us-central1-aiplatform.googleapis.com.example.org/v1", False),
    ],
)
def test_only_vertex_gets_an_access_token(monkeypatch, url, is_vertex):
    with google(monkeypatch) as store:
        assert read_api_key(None, url) == ("token-1" if is_vertex else None)
        assert store.asked == is_vertex
        monkeypatch.setenv("SERVER_KEY", SERVER)
        assert read_api_key("SERVER_KEY", url) == SERVER


@pytest.fixture
def endpoint(monkeypatch):
    """An endpoint that eyas takes for one of Vertex AI."""
    with serving(Fake()) as fake:
        monkeypatch.setattr("eyas.base.openai_http.VERTEX_URL", re.compile(re.escape(fake.url)))
        monkeypatch.setattr("eyas.base.openai_http.INITIAL_BACKOFF_S", 0.01)
        yield fake


def test_respond_renews_the_token_and_survives_a_failure(tmp_path, monkeypatch, endpoint):
    prompts = write_prompts(tmp_path / "prompts", [[f"question {number}"] for number in range(6)])
    with google(monkeypatch, uses=3, no_token={4}) as store:
        conversations = answer(prompts, tmp_path / "out", config_of(endpoint, concurrency=1))
    assert len(conversations) == 6
    assert endpoint.keys == {"Bearer token-1", "Bearer token-2", "Bearer token-3"}
    assert store.asked == 1 + 6 + 1, "at the start, for each question, and again for the one without"
    written = b"".join(path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file())
    assert b"token-" not in written


def test_respond_without_a_token_says_what_to_do(tmp_path, monkeypatch, endpoint):
    prompts = write_prompts(tmp_path / "prompts", [["question"]])
    with google(monkeypatch, no_token={1}), pytest.raises(InputError, match="Outside Google Cloud, set api_key_env"):
        answer(prompts, tmp_path / "out", config_of(endpoint))
    with google(monkeypatch, no_token=set(range(2, 99))), pytest.raises(StageError, match="no access token for it"):
        answer(prompts, tmp_path / "out", config_of(endpoint))
