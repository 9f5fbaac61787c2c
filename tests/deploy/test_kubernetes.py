"""`eyas deploy kubernetes`: manifests against the schemas of Kubernetes, and against each other."""

import copy
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from eyas.base.environment import RANK_VARIABLES
from eyas.base.errors import UsageError
from eyas.base.provenance import verify_contents
from eyas.cli import main
from eyas.cli.deploy import build_run_launch, write_configured_manifests
from eyas.deploy.config import DeployConfig, KubernetesConfig
from eyas.deploy.kubernetes import build_serving
from eyas.deploy.kubernetes_jobs import DataStages, build_jobs
from eyas.deploy.launch import Launch, ServedModel, build_launch, write_objects
from eyas.deploy.manifests import app_labels
from eyas.doctor import examine
from eyas.formats.head_dir import resolve_head
from eyas.model.target_dir import resolve_target
from eyas.recipe import load_recipe, open_run

VERSIONS = ("1.33", "1.37")
WORLDS = {"prompts": 4, "respond": 1, "capture": 8, "train": 1}
ROOT = Path(__file__).parents[2]


def launch(head: Path, **more: object) -> Launch:
    told = {"image": "r/x:1", "storage": "gs://bucket/eyas", **more}
    return build_launch(DeployConfig(**told), ServedModel("scout", "org/model", head, "sha256:" + "a" * 64))  # type: ignore[arg-type]


@pytest.fixture
def head(tmp_path) -> Path:
    (tmp_path / "head").mkdir()
    return tmp_path / "head"


STAGES = DataStages("scout", "r/eyas:1", 'name = "scout"\n', WORLDS, None)


# The fields that eyas writes of kinds that Kubernetes itself does not have, restated by hand, a tuple for a list:
#   PodMonitoring   github.com/GoogleCloudPlatform/prometheus-engine, doc/api.md
#   ServiceMonitor  prometheus-operator.dev/docs/api-reference/api
#   ScaledObject    keda.sh/docs, "ScaledObject specification" and "Prometheus" scaler (its metadata are all strings)
#   InferencePool   gateway-api-inference-extension.sigs.k8s.io/reference/spec
SECRET_KEY = {"name": str, "key": str}
LABELS = {"matchLabels": dict}
SCRAPE = {"port": str, "path": str, "interval": str}
CUSTOM = {
    ("monitoring.googleapis.com/v1", "PodMonitoring"): {
        "selector": LABELS,
        "endpoints": [SCRAPE | {"authorization?": {"type": str, "credentials": {"secret": SECRET_KEY}}}],
    },
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {
        "selector": LABELS,
        "endpoints": [SCRAPE | {"authorization?": {"type": str, "credentials": SECRET_KEY}}],
    },
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "scaleTargetRef": {"name": str},
        "minReplicaCount": int,
        "maxReplicaCount": int,
        "triggers": [
            {"type": str, "metricType": str, "metadata": {"serverAddress": str, "query": str, "threshold": str}}
        ],
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": dict}},
    },
    ("inference.networking.k8s.io/v1", "InferencePool"): {
        "selector": LABELS,
        "targetPorts": [{"number": int}],
        "endpointPickerRef": {"name": str, "port": {"number": int}},
    },
}


def fits(value: object, form: object) -> bool:
    """Returns True if a value has exactly the fields of a form; a name that ends with ? may be missing."""
    if isinstance(form, dict):
        known = {name.rstrip("?"): one for name, one in form.items()}
        required = {name for name in form if not name.endswith("?")}
        return (
            isinstance(value, dict)
            and required <= set(value) <= set(known)
            and all(fits(one, known[name]) for name, one in value.items())
        )
    if isinstance(form, list):
        return isinstance(value, list) and len(value) > 0 and all(fits(one, form[0]) for one in value)
    return isinstance(value, form)  # type: ignore[arg-type]


def validate(one: dict, version: str = VERSIONS[-1]) -> None:
    one = yaml.safe_load(yaml.safe_dump(one, sort_keys=False))
    form = CUSTOM.get((one["apiVersion"], one["kind"]))
    if form is None:
        kubernetes_validate.validate(one, version, strict=True)
    else:
        assert fits(one["spec"], form), one


def every(head: Path, config: KubernetesConfig, **more: object) -> dict:
    return build_serving(config, launch(head, **more)) | build_jobs(config, STAGES)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("engine", ["eyas", "sglang", "vllm"])
def test_every_object_follows_the_schema(head, version, engine):
    config = KubernetesConfig(accelerator_count=0 if engine == "eyas" else 2)
    objects = every(head, config, engine=engine)
    assert len(objects) == 11
    for name, one in objects.items():
        validate(one, version)
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "eyas", name
    wrong = copy.deepcopy(objects["serving/deployment.yaml"])
    wrong["spec"]["template"]["spec"]["containers"][0]["startupProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_objects_name_each_other(head):
    objects = every(head, KubernetesConfig(replicas=(2, 6), target_waiting=5), speculation="6,4,16")
    deployment, service, scaler, metrics = (
        objects[f"serving/{name}.yaml"] for name in ("deployment", "service", "autoscaler", "podmonitoring")
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
    assert "JOB_COMPLETION_INDEX" in RANK_VARIABLES
    objects = every(head, KubernetesConfig(volume_claim="claim"))
    recipe = objects["jobs/0-recipe.yaml"]
    ((file, text),) = recipe["data"].items()
    assert text == 'name = "scout"\n'
    for number, (stage, world) in enumerate(WORLDS.items(), 1):
        spec = objects[f"jobs/{number}-{stage}.yaml"]["spec"]
        assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", world, world)
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert container["args"] == [stage, f"/recipe/{file}", "--out", "/runs/scout"]
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert volumes[mounts["/recipe"]]["configMap"]["name"] == recipe["metadata"]["name"]
        assert volumes[mounts["/runs"]]["persistentVolumeClaim"]["claimName"] == "claim"
        assert pod["restartPolicy"] == "Never", "podFailurePolicy requires it"
        # Without respond.url the stage `respond` loads the target, too.
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (stage != "prompts")


def restricted_violations(pod: dict) -> list[str]:
    """Restates the Pod Security Standard "restricted" for the fields of our pods (kubernetes.io/docs)."""
    user, found = pod["securityContext"], []
    found += [] if user.get("runAsNonRoot") is True and user.get("runAsUser", 1) != 0 else ["runAsNonRoot"]
    found += [] if user.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost") else ["seccompProfile"]
    found += [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    found += [one["name"] for one in pod["volumes"] if not (set(one) - {"name"}) <= kinds]
    for container in pod["containers"] + pod.get("initContainers", []):
        rights = container["securityContext"]
        found += [] if rights.get("allowPrivilegeEscalation") is False else ["allowPrivilegeEscalation"]
        found += [] if rights.get("capabilities") == {"drop": ["ALL"]} else ["capabilities"]
        found += ["privileged"] if rights.get("privileged") else []
        found += ["hostPort"] if any("hostPort" in port for port in container.get("ports", [])) else []
    return found


def pods_of(objects: dict) -> dict[str, dict]:
    return {
        name: one["spec"]["template"]["spec"] for name, one in objects.items() if one["kind"] in ("Deployment", "Job")
    }


@pytest.mark.parametrize("engine", ["eyas", "sglang", "vllm"])
def test_pods_fit_restricted_pod_security_and_write_only_to_volumes(head, engine):
    pods = pods_of(every(head, KubernetesConfig(), engine=engine))
    assert len(pods) == 5
    for name, pod in pods.items():
        assert restricted_violations(pod) == [], name
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        writable = {one["name"] for one in pod["volumes"] if "emptyDir" in one}
        assert {mounts[path] for path in ("/tmp", "/dev/shm", "/scratch")} <= writable
        environment = {one["name"]: one["value"] for one in container["env"]}
        assert {environment[name].split("/")[1] for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME")} == {"scratch"}
    broken = copy.deepcopy(pods["serving/deployment.yaml"])
    del broken["securityContext"]["seccompProfile"]
    assert restricted_violations(broken) == ["seccompProfile"]


@pytest.mark.parametrize("engine", ["eyas", "vllm"])
def test_a_pod_that_ends_has_time_for_its_answers(head, engine):
    """Checks that the grace period holds the wait of the Service, the drain of the engine, and its exit."""
    objects = every(head, KubernetesConfig(drain_s=900), engine=engine, arguments=("--x",))
    pod = pods_of(objects)["serving/deployment.yaml"]
    (container,) = pod["containers"]
    slept_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    arguments = container["args"]
    drain_s = float(arguments[arguments.index("--drain-s") + 1] if engine == "eyas" else environment["EYAS_DRAIN_S"])
    assert (slept_s, drain_s) == (10, 900)
    assert pod["terminationGracePeriodSeconds"] >= slept_s + drain_s + 10
    assert arguments[-1] == "--x"
    budget = objects["serving/disruption.yaml"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": app_labels("scout", "serving")}}


def test_a_key_of_the_metrics_reaches_engine_and_scraper(head):
    config = KubernetesConfig(metrics_key="METRICS_KEY")
    objects = every(head, config, engine="eyas")
    (endpoint,) = objects["serving/podmonitoring.yaml"]["spec"]["endpoints"]
    secret = {"name": "scout-secrets", "key": "METRICS_KEY"}
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"secret": secret}}
    (container,) = pods_of(objects)["serving/deployment.yaml"]["containers"]
    assert "--metrics-key=$(METRICS_KEY)" in container["args"]
    assert container["envFrom"][0]["secretRef"]["name"] == secret["name"]
    for engine in ("sglang", "vllm"):  # the gate in front of them checks it
        (gated,) = pods_of(every(head, config, engine=engine))["serving/deployment.yaml"]["containers"]
        assert {"name": "EYAS_METRICS_KEY_ENV", "value": "METRICS_KEY"} in gated["env"]
    other = every(head, dataclasses.replace(config, monitoring="operator"), engine="eyas")
    assert "serving/podmonitoring.yaml" not in other
    monitor = other["serving/servicemonitor.yaml"]
    validate(monitor)
    validate(objects["serving/podmonitoring.yaml"])
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": secret}
    # A ServiceMonitor selects Services by their labels, and names a port of the Service.
    service = other["serving/service.yaml"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    none = every(head, dataclasses.replace(config, monitoring="none"))
    assert not [name for name in none if "monitor" in name]


def test_keda_and_an_endpoint_picker_are_written_if_asked(head):
    config = KubernetesConfig(autoscaler="keda", replicas=(2, 6), target_waiting=5, endpoint_picker="scout-epp")
    objects = every(head, config, engine="vllm")
    scaled, pool = objects["serving/autoscaler.yaml"], objects["serving/inferencepool.yaml"]
    validate(scaled)
    validate(pool)
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (2, 6)
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "5"
    pattern = re.fullmatch(
        r'sum\(vllm:num_requests_waiting\{namespace="default",pod=~"(.+)"\}\)', trigger["metadata"]["query"]
    )
    assert pattern is not None
    assert re.fullmatch(pattern[1], "scout-7d9c5b8f6-x2x4z"), "a pod of the Deployment"
    assert not re.fullmatch(pattern[1], "scout-two-7d9c5b8f6-x2x4z")
    assert pool["spec"]["selector"]["matchLabels"] == app_labels("scout", "serving")
    assert pool["spec"]["targetPorts"] == [{"number": 8080}]
    assert not fits({**pool["spec"], "targetPortNumber": 1}, CUSTOM[pool["apiVersion"], pool["kind"]])


def test_the_network_policy_lets_in_clients_and_scrapers_only(head):
    objects = every(head, KubernetesConfig(client_namespaces=("gateway",)))
    policy = objects["serving/network.yaml"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["podSelector"]["matchLabels"] == app_labels("scout", "serving")
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": "http"}]
    same, named = rule["from"]
    assert same == {"podSelector": {}}
    (names,) = named["namespaceSelector"]["matchExpressions"]
    assert {"gmp-system", "gateway"} <= set(names["values"])
    opened = [port["port"] for rule in policy["egress"] for port in rule.get("ports", [])]
    assert sorted(opened) == [53, 53, 443]


def test_the_claim_of_the_jobs_is_written_if_it_has_a_storage_class(head):
    config = KubernetesConfig(storage_class="standard-rwx", runs_gb=2048)
    objects = build_jobs(config, STAGES)
    claim = objects["jobs/0-volume.yaml"]
    validate(claim)
    assert list(objects).index("jobs/0-volume.yaml") < list(objects).index("jobs/1-prompts.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods_of(objects).values():
        (claimed,) = [one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
        assert claimed["claimName"] == claim["metadata"]["name"]
    assert "jobs/0-volume.yaml" not in build_jobs(KubernetesConfig(), STAGES)


def test_stages_use_all_gpus_of_their_pod():
    jobs = pods_of(build_jobs(KubernetesConfig(accelerator_count=8), STAGES))
    (train,), (capture,) = (jobs[f"jobs/{name}.yaml"]["containers"] for name in ("4-train", "3-capture"))
    launcher = ["torchrun", "--nnodes=1", "--nproc-per-node=8", "--standalone", "--no-python", "eyas"]
    assert (train["command"], train["args"][0]) == (launcher, "train")
    assert capture["args"][-2:] == ["--device", "auto"]
    remote = dataclasses.replace(STAGES, url="http://vllm.default/v1")
    (respond,) = pods_of(build_jobs(KubernetesConfig(), remote))["jobs/2-respond.yaml"]["containers"]
    assert "nvidia.com/gpu" not in respond["resources"]["limits"], "another server answers"


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "recipes").glob("*.toml")))
def test_manifests_of_all_recipes_validate(head, name):
    recipe = load_recipe(ROOT / "recipes" / f"{name}.toml", {})
    if recipe.deploy.image is None:
        assert name == "embedded", "every other recipe can be deployed"
        return
    model = ServedModel(recipe.name, "org/model", head, "sha256:" + "a" * 64)
    objects = build_serving(recipe.deploy.kubernetes, build_launch(recipe.deploy, model))
    objects |= build_jobs(recipe.deploy.kubernetes, dataclasses.replace(STAGES, name=recipe.name))
    for one in objects.values():
        for version in VERSIONS:
            validate(one, version)
    for pod in pods_of(objects).values():
        assert restricted_violations(pod) == []


def test_other_engines_start_with_the_parsers_of_the_target(recipe, tmp_path):
    """The embedded target writes calls as Hermes does; a recipe that names a parser itself keeps it."""
    out = ["--out", str(tmp_path / "run")]
    assert main(["export", str(recipe), *out]) == 0

    def arguments(*words: str) -> tuple[str, ...]:
        return build_run_launch(open_run(str(recipe), words, str(tmp_path / "run"), "cpu")).arguments

    assert arguments("deploy.engine=vllm") == ("--enable-auto-tool-choice", "--tool-call-parser=hermes")
    assert arguments("deploy.engine=sglang", "deploy.arguments=['--tp=2']") == ("--tool-call-parser=qwen25", "--tp=2")
    own = ("--tool-call-parser=mine",)
    assert arguments("deploy.engine=vllm", "deploy.arguments=['--tool-call-parser=mine']") == own
    assert "parser" not in " ".join(arguments("deploy.engine=eyas"))


def test_eyas_serves_on_one_gpu(head):
    objects = every(head, KubernetesConfig(), engine="eyas")
    (container,) = pods_of(objects)["serving/deployment.yaml"]["containers"]
    arguments = container["args"]
    assert arguments[arguments.index("--device") + 1] == "cuda"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    with pytest.raises(UsageError, match="accelerator_count is 4, but eyas serves on one GPU"):
        every(head, KubernetesConfig(accelerator_count=4), engine="eyas")
    (container,) = pods_of(every(head, KubernetesConfig(accelerator_count=0), engine="eyas"))[
        "serving/deployment.yaml"
    ]["containers"]
    assert "--device" not in container["args"]


def test_eyas_needs_no_gpu_and_other_engines_need_one(head):
    cpu = KubernetesConfig(accelerator_count=0)
    assert "nvidia" not in str(every(head, cpu, engine="eyas"))
    with pytest.raises(UsageError, match="accelerator_count is 0, but vllm needs a GPU"):
        every(head, cpu, engine="vllm")


def test_jobs_that_cannot_work_are_rejected():
    config = KubernetesConfig()
    for url in ("http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]:80/v1", "http://0.0.0.0:8000/v1"):
        with pytest.raises(UsageError, match=r"respond\.url='.+' is the pod itself when `respond` runs in a Job"):
            build_jobs(config, dataclasses.replace(STAGES, url=url))
    assert len(build_jobs(config, dataclasses.replace(STAGES, url="http://vllm.default/v1"))) == 5
    with pytest.raises(UsageError, match=r"recipe's name 'Pair_1' is not a valid name for Jobs"):
        build_jobs(config, dataclasses.replace(STAGES, name="Pair_1"))


def test_every_pod_reads_the_secret_if_it_exists(head):
    pods = pods_of(every(head, KubernetesConfig()))
    assert len(pods) == 5
    for name, pod in pods.items():
        (container,) = pod["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "scout-secrets", "optional": True}}], name


def test_files_of_an_earlier_recipe_are_removed(head, tmp_path):
    config, what = KubernetesConfig(), launch(head)
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "deployment.yaml").write_text("{}")
    write_objects(tmp_path / "k", "kubernetes", every(head, config), {"head": "sha256:a"})
    assert len(list((tmp_path / "k" / "jobs").iterdir())) == 5
    assert not (tmp_path / "k" / "deployment.yaml").exists()
    write_objects(tmp_path / "k", "kubernetes", build_serving(config, what), {"head": "sha256:a"})
    assert list((tmp_path / "k" / "jobs").iterdir()) == []


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


def run_printed(said: str, tmp_path: Path) -> list[str]:
    """Runs each printed command with a kubectl double that reads files as kubectl does."""
    binary, cluster = tmp_path / "bin" / "kubectl", tmp_path / "cluster.json"
    binary.parent.mkdir(exist_ok=True)
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/doubles/kubectl.py "$@"\n')
    binary.chmod(0o755)
    cluster.unlink(missing_ok=True)
    commands = "\n".join(line for line in said.splitlines() if line.startswith("    kubectl "))
    environment = {"PATH": f"{binary.parent}:/usr/bin:/bin", "KUBECTL_DOUBLE": str(cluster)}
    done = subprocess.run(["sh", "-ec", commands], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), commands
    for path in map(Path, re.findall(r"apply -f (\S+)", commands)):
        files = list(path.iterdir()) if path.is_dir() else [path]
        assert files
        for one in files:
            assert {"apiVersion", "kind", "metadata"} <= set(yaml.safe_load(one.read_text())), one
    return done.stdout.splitlines()


def test_kubectl_runs_the_printed_commands(recipe, tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    assert main(["deploy", "kubernetes", str(recipe), *out]) == 0
    applied = run_printed(capsys.readouterr().err, tmp_path)
    assert applied[:6] == [
        "HorizontalPodAutoscaler/pair", "Deployment/pair", "PodDisruptionBudget/pair", "NetworkPolicy/pair",
        "PodMonitoring/pair", "Service/pair",
    ]  # fmt: skip
    assert applied[6:] == [
        "ConfigMap/pair-recipe", "Job/pair-prompts", "Job/pair-respond", "Job/pair-capture", "Job/pair-train",
    ]  # fmt: skip
    objects = [yaml.safe_load(path.read_text()) for path in (tmp_path / "run" / "deploy").rglob("*.yaml")]
    assert len(objects) == 11
    for one in objects:
        validate(one)
    jobs = {one["metadata"]["name"]: one["spec"]["completions"] for one in objects if one["kind"] == "Job"}
    assert jobs == {"pair-prompts": 3, "pair-respond": 1, "pair-capture": 1, "pair-train": 1}
    for word in ("--apply", "--status", "--delete"):
        assert main(["deploy", "kubernetes", str(recipe), *out, word]) == 2
        assert "Use kubectl" in capsys.readouterr().err


def test_without_a_head_only_the_jobs_are_written(recipe, tmp_path, capsys):
    recipe.write_text(RECIPE.replace('head = "embedded"', ""))
    command = ["deploy", "kubernetes", str(recipe), "--out", str(tmp_path / "run"), "deploy.engine=sglang"]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert said.startswith("The run has no head yet. Only the jobs that make one are written.")
    assert "error" not in said
    assert len(run_printed(said, tmp_path)) == 5
    (tmp_path / "run" / "recipe.toml").write_text('[target]\nmodel = "embedded"\n')
    told = [one for one in examine(str(tmp_path / "run"), None) if "deploy" in one.problem]
    assert [one.weight for one in told] == ["ok"]
    assert told[0].problem.startswith("deploy kubernetes is finished")
    assert main([*command, "--upload"]) == 2
    capsys.readouterr()
    assert main(["deploy", "vertex", *command[2:]]) == 2
    assert "Run `eyas run` with this recipe first" in capsys.readouterr().err
    recipe.write_text(RECIPE.replace('head = "embedded"', "").replace("jobs_image", "# jobs_image"))
    capsys.readouterr()
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "has no head yet. Run `eyas run` with this recipe first, or set deploy.speculation=off" in said
    assert main([*command, "deploy.speculation=off", "deploy.kubernetes.accelerator_count=1"]) == 0
    deployment = yaml.safe_load(
        (tmp_path / "run" / "deploy" / "kubernetes" / "serving" / "deployment.yaml").read_text()
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "EYAS_SPECULATION", "value": "off"} in container["env"]
    assert [one.weight for one in examine(str(tmp_path / "run"), None) if "deploy" in one.problem] == ["ok"]


def test_jobs_write_to_the_run_directory_of_their_recipe(recipe, tmp_path):
    """A refreshed recipe keeps the name of the endpoint, and must not write into the directory of the first run."""
    assert main(["deploy", "kubernetes", str(recipe), "--out", str(tmp_path / "run"), "deploy.name=live"]) == 0
    place = tmp_path / "run" / "deploy" / "kubernetes"
    job = yaml.safe_load((place / "jobs" / "4-train.yaml").read_text())
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "train", "/recipe/pair.toml", "--out", "/runs/pair",
    ]  # fmt: skip
    assert yaml.safe_load((place / "serving" / "service.yaml").read_text())["metadata"]["name"] == "live"


@pytest.mark.parametrize("engine", ["eyas", "sglang"])
def test_upload_writes_where_the_pods_read(recipe, tmp_path, capsys, engine):
    out = ["--out", str(tmp_path / "run")]
    store = f"file://{tmp_path}/bucket"
    words = [f"deploy.engine={engine}", f"deploy.storage={store}", "deploy.kubernetes.accelerator_count=1"]
    assert main(["export", str(recipe), *out]) == 0
    assert main(["deploy", "kubernetes", str(recipe), *out, *words]) == 0
    assert "The same command with --upload uploads head and target for the pods." in capsys.readouterr().err
    assert not (tmp_path / "bucket").exists()
    assert main(["deploy", "kubernetes", str(recipe), *out, *words, "--upload"]) == 0
    assert "--upload" not in capsys.readouterr().err
    told = yaml.safe_load((tmp_path / "run" / "deploy" / "kubernetes" / "serving" / "deployment.yaml").read_text())
    (container,) = told["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    fetched = Path(environment["AIP_STORAGE_URI"].removeprefix("file://"))
    assert fetched.is_relative_to(tmp_path / "bucket")
    # eyas loads the embedded head as it is; SGLang needs the exported one, with its own weight names.
    origin = resolve_head("embedded") if engine == "eyas" else tmp_path / "run" / "export" / "sglang"
    for name, directory in (("head", origin), ("target", resolve_target("embedded"))):
        for path in directory.iterdir():
            assert (fetched / name / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("override", "said"),
    [("deploy.enigne=vllm", "deploy.engine"), ("deploy.kubernetes.replicas=[3,1]", "deploy.kubernetes.replicas"),
     ("deploy.vertex.zone=x", "Unknown key deploy.vertex.zone"), ("name=Pair_1", "Set name to"),
     ("deploy.image=''", "deploy.image is empty")],
)  # fmt: skip
def test_a_wrong_recipe_is_rejected(recipe, tmp_path, capsys, override, said):
    assert main(["deploy", "kubernetes", str(recipe), "--out", str(tmp_path / "run"), override]) == 2
    assert said in capsys.readouterr().err


def test_other_engines_get_their_export(recipe, tmp_path, capsys):
    recipe.write_text(RECIPE.replace('engine = "eyas"', 'engine = "sglang"').replace("jobs_image", "# jobs_image"))
    out = ["--out", str(tmp_path / "run")]
    assert main(["deploy", "kubernetes", str(recipe), *out]) == 2
    assert "eyas export" in capsys.readouterr().err
    assert main(["export", str(recipe), *out]) == 0
    work = open_run(str(recipe), [], str(tmp_path / "run"), "cpu")
    assert build_run_launch(work).artifacts["head"] == tmp_path / "run" / "export" / "sglang"
    assert main(["deploy", "kubernetes", str(recipe), *out, "deploy.kubernetes.accelerator_count=1"]) == 0


def test_a_whole_run_writes_what_its_recipe_configures(recipe, tmp_path):
    def written(*overrides: str) -> list[str]:
        return [
            path.name
            for path in write_configured_manifests(open_run(str(recipe), overrides, str(tmp_path / "run"), "cpu"))
        ]

    assert written() == ["kubernetes", "vertex"]
    for platform in written():
        verify_contents(tmp_path / "run" / "deploy" / platform)
    recipe.write_text(RECIPE.replace('project = "my-project"', ""))
    assert written() == ["kubernetes"]
    recipe.write_text('[target]\nhead = "embedded"\n')
    assert written() == []


def test_a_whole_run_rejects_wrong_jobs_before_its_first_stage(recipe, tmp_path, capsys):
    url = ["respond.model=m", "respond.url=http://127.0.0.1:9/v1"]
    assert main(["deploy", "kubernetes", str(recipe), "--out", str(tmp_path / "run"), *url]) == 2
    assert main(["run", str(recipe), "--out", str(tmp_path / "run"), *url]) == 2
    assert "is the pod itself" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
