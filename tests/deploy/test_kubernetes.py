"""Manifests against the schemas of Kubernetes itself, and against each other."""

import copy
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from eyas.base.errors import UsageError
from eyas.base.provenance import require_digest
from eyas.base.shares import VARIABLES
from eyas.cli import main
from eyas.cli.deploy import launch_of_run, write_configured
from eyas.cli.recipes import open_run
from eyas.deploy.config import DeployConfig, KubernetesConfig
from eyas.deploy.kubernetes import jobs_of, serving_of, write
from eyas.deploy.launch import Launch, Parts, launch_of

VERSIONS = ("1.33", "1.37")
WORLDS = {"prompts": 4, "respond": 1, "capture": 8, "train": 1}
ROOT = Path(__file__).parents[2]


def launch(head: Path, **more: object) -> Launch:
    told = {"image": "r/x:1", "storage": "gs://bucket/eyas", **more}
    return launch_of(DeployConfig(**told), Parts("scout", "org/model", head, "sha256:" + "a" * 64))  # type: ignore[arg-type]


@pytest.fixture
def head(tmp_path) -> Path:
    (tmp_path / "head").mkdir()
    return tmp_path / "head"


def every(head: Path, config: KubernetesConfig, **more: object) -> dict:
    what = launch(head, **more)
    return serving_of(config, what) | jobs_of(config, what, "r/eyas:1", 'name = "scout"\n', WORLDS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("engine", ["eyas", "sglang", "vllm"])
def test_every_object_is_one_of_kubernetes(head, version, engine):
    config = KubernetesConfig(accelerator_count=0 if engine == "eyas" else 2)
    objects = every(head, config, engine=engine)
    assert len(objects) == 9
    for name, one in objects.items():
        one = yaml.safe_load(yaml.safe_dump(one, sort_keys=False))
        if one["kind"] != "PodMonitoring":  # GKE's own, checked below
            kubernetes_validate.validate(one, version, strict=True)
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "eyas", name
    wrong = copy.deepcopy(objects["deployment.yaml"])
    wrong["spec"]["template"]["spec"]["containers"][0]["startupProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_who_names_whom(head):
    objects = every(head, KubernetesConfig(replicas=(2, 6), target_waiting=5), speculation="6,4,16")
    deployment, service, scaler, metrics = (
        objects[name] for name in ("deployment.yaml", "service.yaml", "autoscaler.yaml", "podmonitoring.yaml")
    )
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 6)
    (metric,) = scaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == "prometheus.googleapis.com|sglang:num_queue_reqs|gauge"
    assert metric["pods"]["target"]["averageValue"] == "5"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    # https://github.com/GoogleCloudPlatform/prometheus-engine/blob/main/doc/api.md, PodMonitoringSpec
    assert (metrics["apiVersion"], set(metrics["spec"])) == ("monitoring.googleapis.com/v1", {"selector", "endpoints"})
    assert metrics["spec"]["selector"]["matchLabels"] == labels
    assert metrics["spec"]["endpoints"] == [{"port": port["name"], "path": "/metrics", "interval": "15s"}]
    for name in ("startupProbe", "readinessProbe"):
        assert container[name]["httpGet"] == {"path": "/health", "port": port["name"]}
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["AIP_HTTP_PORT"] == str(port["containerPort"])
    assert environment["EYAS_SPECULATION"] == "6,4,16"
    assert environment["AIP_STORAGE_URI"].startswith("gs://bucket/eyas/scout/")
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}


def test_shared_stages_are_indexed_jobs(head):
    assert "JOB_COMPLETION_INDEX" in VARIABLES
    objects = every(head, KubernetesConfig(volume_claim="claim"))
    recipe = objects["jobs-0-recipe.yaml"]
    ((file, text),) = recipe["data"].items()
    assert text == 'name = "scout"\n'
    for number, (stage, world) in enumerate(WORLDS.items(), 1):
        spec = objects[f"jobs-{number}-{stage}.yaml"]["spec"]
        assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", world, world)
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert container["args"] == [stage, f"/recipe/{file}", "--out", "/runs/scout"]
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert volumes[mounts["/recipe"]]["configMap"]["name"] == recipe["metadata"]["name"]
        assert volumes[mounts["/runs"]]["persistentVolumeClaim"]["claimName"] == "claim"
        assert pod["restartPolicy"] == "Never", "as podFailurePolicy asks for"
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (stage in ("capture", "train"))


def test_a_cpu_asks_for_no_gpu_and_an_engine_for_one(head):
    cpu = KubernetesConfig(accelerator_count=0)
    assert "nvidia" not in str(every(head, cpu, engine="eyas"))
    with pytest.raises(UsageError, match="accelerator_count = 0 for vllm"):
        every(head, cpu, engine="vllm")


def test_without_an_image_for_them_there_are_no_jobs_and_old_ones_go(head, tmp_path):
    config, what = KubernetesConfig(), launch(head)
    write(every(head, config), "sha256:a", tmp_path / "k")
    assert len(list((tmp_path / "k").glob("jobs-*.yaml"))) == 5
    write(serving_of(config, what) | jobs_of(config, what, None, "", WORLDS), "sha256:a", tmp_path / "k")
    assert list((tmp_path / "k").glob("jobs-*.yaml")) == []


RECIPE = """
[target]
head = "embedded"
[prompts]
world = 3
[deploy]
engine = "eyas"
image = "europe-docker.pkg.dev/my-project/eyas/eyas:1"
jobs_image = "europe-docker.pkg.dev/my-project/eyas/eyas:1"
storage = "memory://deploy-test"
[deploy.vertex]
project = "my-project"
machine_type = "n2-standard-8"
accelerator_count = 0
[deploy.kubernetes]
accelerator_count = 0
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "pair.toml"
    path.write_text(RECIPE)
    return path


def test_the_command_writes_a_directory_that_kubectl_takes(recipe, tmp_path, capsys):
    assert main(["deploy", "kubernetes", str(recipe), "--out", str(tmp_path / "run")]) == 0
    directory = tmp_path / "run" / "deploy" / "kubernetes"
    assert f"kubectl apply -f {directory}" in capsys.readouterr().err
    objects = [yaml.safe_load(path.read_text()) for path in sorted(directory.glob("*.yaml"))]
    for one in objects:
        if one["kind"] != "PodMonitoring":
            kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    jobs = {one["metadata"]["name"]: one["spec"]["completions"] for one in objects if one["kind"] == "Job"}
    assert jobs == {"pair-prompts": 3, "pair-respond": 1, "pair-capture": 1, "pair-train": 1}
    assert main(["deploy", "kubernetes", str(recipe), "--out", str(tmp_path / "run"), "--apply"]) == 2
    assert "do use kubectl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "said"),
    [("deploy.enigne=vllm", "deploy.engine"), ("deploy.kubernetes.replicas=[3,1]", "deploy.kubernetes.replicas"),
     ("deploy.vertex.zone=x", "unknown key deploy.vertex.zone"), ("name=Pair_1", "add deploy.name"),
     ("deploy.image=''", "an empty deploy.image")],
)  # fmt: skip
def test_a_recipe_that_is_none(recipe, tmp_path, capsys, override, said):
    assert main(["deploy", "kubernetes", str(recipe), "--out", str(tmp_path / "run"), override]) == 2
    assert said in capsys.readouterr().err


def test_other_engines_get_what_was_exported_for_them(recipe, tmp_path, capsys):
    recipe.write_text(RECIPE.replace('engine = "eyas"', 'engine = "sglang"'))
    out = ["--out", str(tmp_path / "run")]
    assert main(["deploy", "kubernetes", str(recipe), *out]) == 2
    assert "eyas export" in capsys.readouterr().err
    assert main(["export", str(recipe), *out]) == 0
    work = open_run(str(recipe), [], str(tmp_path / "run"), "cpu")
    assert launch_of_run(work).artifacts["head"] == tmp_path / "run" / "export" / "sglang"
    assert main(["deploy", "kubernetes", str(recipe), *out, "deploy.kubernetes.accelerator_count=1"]) == 0


def test_a_whole_run_ends_with_what_its_recipe_has_enough_about(recipe, tmp_path):
    def written(*overrides: str) -> list[str]:
        return [path.name for path in write_configured(open_run(str(recipe), overrides, str(tmp_path / "run"), "cpu"))]

    assert written() == ["kubernetes", "vertex"]
    for platform in written():
        require_digest(tmp_path / "run" / "deploy" / platform)
    recipe.write_text(RECIPE.replace('project = "my-project"', ""))
    assert written() == ["kubernetes"]
    recipe.write_text('[target]\nhead = "embedded"\n')
    assert written() == []
