"""Builds the Kubernetes manifests of a recipe and writes them, one file for each object. `eyas deploy` calls it.

    serving/    Deployment (engine, probes, scratch), Service, HorizontalPodAutoscaler (by waiting requests),
                PodMonitoring (metrics, for GKE)
    jobs/       ConfigMap with the recipe, and a Job for each stage before the head; shared stages are Indexed Jobs

`kubectl apply -f serving` applies all objects of serving/. Jobs must be applied one after the other with
`job_commands`, because a Job does not wait for the previous Job. A stage whose input is unfinished exits with code 2,
and its Job fails.

        Job             pods
        eyas prompts    prompts.world pods; each gets JOB_COMPLETION_INDEX, and all write to one run directory
        eyas respond    one pod, which calls the server of respond.url
        eyas capture    capture.world pods; each loads the target
        eyas train      one pod

The Deployment and the Jobs read the Secret NAME-secrets as environment variables, if it exists: HF_TOKEN for gated
models, the key that `respond.api_key_env` names, and EYAS_PRIVACY_KEY, which must be equal in all pods of `prompts`.
"""

import ipaddress
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from eyas.base.errors import UsageError
from eyas.base.provenance import Provenance
from eyas.deploy.config import NAME, NAME_RULE, KubernetesConfig
from eyas.deploy.launch import PORT, PROBE_PERIOD_S, Json, Launch, http_probe, startup_attempts, write_objects

USER_ID = 10001  # in all images of deploy/
QUEUE_METRICS = {
    "eyas": "vllm:num_requests_waiting",
    "sglang": "sglang:num_queue_reqs",
    "vllm": "vllm:num_requests_waiting",
}
"""The gauge of waiting requests of each engine. eyas uses vLLM's name."""
SCRAPE_PERIOD_S = 15
GRACE_PERIOD_S = 90
RUNS_MOUNT, RECIPE_MOUNT = "/runs", "/recipe"
SCRATCH_ENV = {"HF_HOME": "/scratch/huggingface", "XDG_CACHE_HOME": "/scratch"}
SERVING, JOBS = "serving", "jobs"
JOB_WAIT_TIMEOUT = "24h"  # of `kubectl wait`
GPU_STAGES = ("capture", "train")


def build_serving(config: KubernetesConfig, launch: Launch) -> dict[str, Json]:
    """Returns file name -> object of serving/. Raises UsageError if the engine needs a GPU and the recipe has none."""
    launch.require_accelerator("kubernetes", config.accelerator_count)

    def labels() -> dict[str, str]:  # a new one each time: YAML would write a repeated one as an alias
        return _labels(launch.name, "serving")

    service_port = {"name": "http", "port": 80, "targetPort": "http"}
    metrics = {"port": "http", "path": "/metrics", "interval": f"{SCRAPE_PERIOD_S}s"}
    deployment, autoscaler = _deployment_spec(config, launch), _autoscaler_spec(config, launch)
    service = {"type": "ClusterIP", "selector": labels(), "ports": [service_port]}
    monitoring = {"selector": {"matchLabels": labels()}, "endpoints": [metrics]}
    objects = {
        "deployment": ("apps/v1", "Deployment", deployment),
        "service": ("v1", "Service", service),
        "autoscaler": ("autoscaling/v2", "HorizontalPodAutoscaler", autoscaler),
        "podmonitoring": ("monitoring.googleapis.com/v1", "PodMonitoring", monitoring),
    }
    return {
        f"{SERVING}/{name}.yaml": _object(config, version, kind, launch.name, labels()) | {"spec": spec}
        for name, (version, kind, spec) in objects.items()
    }


def _object(config: KubernetesConfig, version: str, kind: str, name: str, labels: Mapping[str, str]) -> Json:
    labels = {"app.kubernetes.io/managed-by": "eyas", **labels}
    metadata = {"name": name, "namespace": config.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _labels(app: str, component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": app, "app.kubernetes.io/component": component}


def _container(config: KubernetesConfig, app: str, has_gpu: bool, environment: Mapping[str, str]) -> Json:
    """Returns the fields of a container that the Deployment and the Jobs share."""
    limits: Json = {"memory": f"{config.memory_gb}Gi"}
    if has_gpu:
        limits["nvidia.com/gpu"] = str(config.accelerator_count)
    return {
        "env": [{"name": name, "value": value} for name, value in sorted(environment.items())],
        "envFrom": [{"secretRef": {"name": f"{app}-secrets", "optional": True}}],
        "resources": {"requests": {"cpu": str(config.cpu), **limits}, "limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _pod(config: KubernetesConfig, has_gpu: bool) -> Json:
    """Returns the account and the node selection of a pod."""
    pod: Json = {
        "serviceAccountName": config.service_account,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER_ID, "fsGroup": USER_ID},
    }
    if has_gpu:
        pod["nodeSelector"] = {"cloud.google.com/gke-accelerator": config.accelerator}
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return pod


def _scratch_volume(config: KubernetesConfig) -> Json:
    return {"name": "scratch", "emptyDir": {"sizeLimit": f"{config.volume_gb}Gi"}}


def _deployment_spec(config: KubernetesConfig, launch: Launch) -> Json:
    has_gpu = config.accelerator_count > 0
    environment = {**launch.environment, **SCRATCH_ENV, "AIP_HTTP_PORT": str(PORT)}
    environment["AIP_HEALTH_ROUTE"] = launch.health_route
    if launch.artifacts:
        environment["AIP_STORAGE_URI"] = launch.artifact_uri
    probe = http_probe({"path": launch.health_route, "port": "http"})
    shared = _container(config, launch.name, has_gpu, environment)
    container = {
        "name": "engine",
        "image": launch.image,
        "args": list(launch.arguments),
        "env": shared["env"],
        "envFrom": shared["envFrom"],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": shared["resources"],
        "securityContext": shared["securityContext"],
        "startupProbe": {**probe, "failureThreshold": startup_attempts(config.startup_s)},
        "readinessProbe": {**probe, "failureThreshold": 1},
        # A busy engine answers late. It is restarted only when it accepts no connections any more.
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": PROBE_PERIOD_S, "failureThreshold": 4},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "scratch", "mountPath": "/scratch"}],
    }
    pod = {
        **_pod(config, has_gpu),
        "terminationGracePeriodSeconds": GRACE_PERIOD_S,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, _scratch_volume(config)],
    }
    return {
        # No replicas: the autoscaler owns that number, and `kubectl apply` must not reset it.
        "selector": {"matchLabels": _labels(launch.name, "serving")},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "progressDeadlineSeconds": config.startup_s + 600,
        "template": {"metadata": {"labels": _labels(launch.name, "serving")}, "spec": pod},
    }


def _autoscaler_spec(config: KubernetesConfig, launch: Launch) -> Json:
    # The name that GKE's adapter for Managed Prometheus gives a metric: prometheus.googleapis.com|NAME|gauge
    metric = {"name": f"prometheus.googleapis.com|{QUEUE_METRICS[launch.engine]}|gauge"}
    target = {"type": "AverageValue", "averageValue": str(config.target_waiting)}
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": launch.name},
        "minReplicas": config.replicas[0],
        "maxReplicas": config.replicas[1],
        "metrics": [{"type": "Pods", "pods": {"metric": metric, "target": target}}],
        # A new replica loads the model for minutes, so replicas are removed late.
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    }


# --- data stages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataStages:
    """The stages that run as Jobs.

    Attributes:
        name: The name of the recipe.
        image: The image of eyas.
        recipe: The text of the resolved recipe.
        num_pods: Stage -> number of pods, in the order of the stages.
        url: The URL of the server that `respond` calls (`respond.url`); None if it is not set.
    """

    name: str
    image: str
    recipe: str
    num_pods: Mapping[str, int]
    url: str | None


def build_jobs(config: KubernetesConfig, stages: DataStages) -> dict[str, Json]:
    """Returns file name -> object of jobs/, in the order in which they must be applied.

    Raises:
        UsageError: The recipe's name is not valid in a cluster, or respond.url is an address of the pod itself.
    """
    if not NAME.fullmatch(stages.name):
        problem = f"The recipe's name {stages.name!r} is not a valid name for Jobs"
        raise UsageError(problem, f"Set name to {NAME_RULE}")
    if stages.url is not None and _is_loopback(stages.url):
        problem = f"respond.url={stages.url!r} is the pod itself when `respond` runs in a Job"
        raise UsageError(problem, "Use an address of the cluster, such as http://SERVICE.NAMESPACE/v1")
    config_map = _object(config, "v1", "ConfigMap", f"{stages.name}-recipe", _labels(stages.name, "data"))
    objects = {f"{JOBS}/0-recipe.yaml": config_map | {"data": {f"{stages.name}.toml": stages.recipe}}}
    for number, stage in enumerate(stages.num_pods, 1):
        objects[f"{JOBS}/{number}-{stage}.yaml"] = _build_job(config, stages, stage)
    return objects


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _build_job(config: KubernetesConfig, stages: DataStages, stage: str) -> Json:
    has_gpu, num_pods = config.accelerator_count > 0 and stage in GPU_STAGES, stages.num_pods[stage]
    container = {
        "name": stage,
        "image": stages.image,
        "args": [stage, f"{RECIPE_MOUNT}/{stages.name}.toml", "--out", f"{RUNS_MOUNT}/{stages.name}"],
        **_container(config, stages.name, has_gpu, SCRATCH_ENV),
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS_MOUNT},
            {"name": "recipe", "mountPath": RECIPE_MOUNT, "readOnly": True},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    }
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": config.volume_claim}},
        {"name": "recipe", "configMap": {"name": f"{stages.name}-recipe"}},
        _scratch_volume(config),
    ]
    pod = {**_pod(config, has_gpu), "restartPolicy": "Never", "containers": [container], "volumes": volumes}
    wrong_input = {"containerName": stage, "operator": "In", "values": [2]}
    labels = _labels(stages.name, "data")
    spec = {
        # Indexed: each pod gets JOB_COMPLETION_INDEX, which eyas reads. All run at once: they wait for each other.
        "completionMode": "Indexed",
        "completions": num_pods,
        "parallelism": num_pods,
        # A stage continues where it stopped, so it is retried; with wrong input (exit code 2) it would fail again.
        "backoffLimitPerIndex": 4,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": wrong_input}]},
        "ttlSecondsAfterFinished": 7 * 24 * 3600,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return _object(config, "batch/v1", "Job", f"{stages.name}-{stage}", labels) | {"spec": spec}


# --- files -----------------------------------------------------------------------------------------------------------


def apply_command(directory: Path) -> str:
    """Returns the command that applies the objects of `build_serving`."""
    return f"kubectl apply -f {shlex.quote(str(directory / SERVING))}"


def job_commands(objects: Mapping[str, Json], directory: Path) -> list[str]:
    """Returns one command for each object of `build_jobs`; it applies the object and waits until a Job is complete."""
    commands = []
    for name, value in objects.items():
        command = f"kubectl apply -f {shlex.quote(str(directory / name))}"
        if value["kind"] == "Job":
            metadata = value["metadata"]
            wait = f"kubectl wait -n {metadata['namespace']} --for=condition=complete --timeout={JOB_WAIT_TIMEOUT}"
            command += f" && {wait} job/{metadata['name']}"
        commands.append(command)
    return commands


def write_manifests(objects: Mapping[str, Json], parents: Mapping[str, str], directory: Path) -> Provenance:
    """Writes the objects as YAML. parents: {"head": digest} of the served head; {} for Jobs only."""
    dump = partial(yaml.safe_dump, sort_keys=False, width=120)
    return write_objects(directory, "kubernetes", objects, parents, dump)
