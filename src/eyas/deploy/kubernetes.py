"""What a cluster is asked for: one file an object, in directories that hold nothing else.

    serving/    deployment (engine, probes, scratch), service, autoscaler by waiting requests, metrics for GKE
    jobs/       recipe (ConfigMap) and a Job for each stage before the head; stages that can be shared are Indexed Jobs

`kubectl apply -f serving` applies all at once. Jobs are applied one by one, as `job_commands` says: a Job waits for
nobody, and a stage whose parent is unfinished ends with 2, which its Job takes for wrong input.

        eyas prompts    prompts.world = N     pods 0 .. N-1, each with JOB_COMPLETION_INDEX, one run directory
        eyas respond    asks the server of respond.url
        eyas capture    capture.world = N     as above, each with the target
        eyas train      one pod

Both read the Secret NAME-secrets as variables, where there is one: HF_TOKEN for what is gated on the hub, the key that
`respond.api_key_env` names, EYAS_PRIVACY_KEY, which all pods of `prompts` need alike.
"""

import ipaddress
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from eyas.base.errors import UsageError
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
)
from eyas.base.storage import write_atomic
from eyas.deploy.config import NAME, KubernetesConfig
from eyas.deploy.launch import PORT, Launch

USER_ID = 10001  # of all our images
QUEUE_METRICS = {
    "eyas": "vllm:num_requests_waiting",
    "sglang": "sglang:num_queue_reqs",
    "vllm": "vllm:num_requests_waiting",
}
"""The gauge of requests that wait, by engine; eyas has vLLM's names."""
PROBE_PERIOD_S, SCRAPE_PERIOD_S = 10, 15
GRACE_PERIOD_S = 90
RUNS_MOUNT, RECIPE_MOUNT = "/runs", "/recipe"
SERVING, JOBS = "serving", "jobs"
JOB_WAIT_TIMEOUT = "24h"  # of `kubectl wait`

Json = dict[str, Any]


def build_serving(config: KubernetesConfig, launch: Launch) -> dict[str, Json]:
    """File name -> object, for what serves. UsageError for an engine on a machine that it cannot use."""
    if launch.engine != "eyas" and config.accelerator_count == 0:
        found = f"deploy.kubernetes.accelerator_count = 0 for {launch.engine}"
        raise UsageError(found, "at least 1: it runs on GPUs", 'raise it, or take deploy.engine = "eyas"')
    return {
        f"{SERVING}/deployment.yaml": _deployment(config, launch),
        f"{SERVING}/service.yaml": _service(config, launch),
        f"{SERVING}/autoscaler.yaml": _autoscaler(config, launch),
        f"{SERVING}/podmonitoring.yaml": _pod_monitoring(config, launch),
    }


def _metadata(config: KubernetesConfig, name: str, labels: Mapping[str, str]) -> Json:
    labels = {"app.kubernetes.io/managed-by": "eyas", **labels}
    return {"name": name, "namespace": config.namespace, "labels": labels}


def _labels(app: str, component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": app, "app.kubernetes.io/component": component}


def _serving_labels(launch: Launch) -> dict[str, str]:
    return _labels(launch.name, "serving")


def _secret_env(app: str) -> list[Json]:
    return [{"secretRef": {"name": f"{app}-secrets", "optional": True}}]


def _resources(config: KubernetesConfig, has_gpu: bool) -> Json:
    asked: Json = {"cpu": str(config.cpu), "memory": f"{config.memory_gb}Gi"}
    most: Json = {"memory": f"{config.memory_gb}Gi"}
    if has_gpu:
        for amounts in (asked, most):
            amounts["nvidia.com/gpu"] = str(config.accelerator_count)
    return {"requests": asked, "limits": most}


def _pod_placement(config: KubernetesConfig, has_gpu: bool) -> Json:
    """Node and account."""
    told: Json = {
        "serviceAccountName": config.service_account,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER_ID, "fsGroup": USER_ID},
    }
    if has_gpu:
        told["nodeSelector"] = {"cloud.google.com/gke-accelerator": config.accelerator}
        told["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return told


SECURITY_CONTEXT = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _deployment(config: KubernetesConfig, launch: Launch) -> Json:
    has_gpu = config.accelerator_count > 0
    environment = {
        **launch.environment,
        "AIP_HTTP_PORT": str(PORT),
        "AIP_HEALTH_ROUTE": launch.health_route,
        "XDG_CACHE_HOME": "/scratch",
        "HF_HOME": "/scratch/huggingface",
    }
    if launch.artifacts:
        environment["AIP_STORAGE_URI"] = launch.artifact_uri
    probe = {
        "httpGet": {"path": launch.health_route, "port": "http"},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": 5,
    }
    container = {
        "name": "engine",
        "image": launch.image,
        "args": list(launch.arguments),
        "env": [{"name": name, "value": value} for name, value in sorted(environment.items())],
        "envFrom": _secret_env(launch.name),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": _resources(config, has_gpu),
        "securityContext": SECURITY_CONTEXT,
        "startupProbe": {**probe, "failureThreshold": -(-config.startup_s // PROBE_PERIOD_S)},
        "readinessProbe": {**probe, "failureThreshold": 1},
        # A busy engine answers late: it is restarted only when it does not take connections any more.
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": PROBE_PERIOD_S, "failureThreshold": 4},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "scratch", "mountPath": "/scratch"}],
    }
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": f"{config.volume_gb}Gi"}},
    ]
    pod = {
        **_pod_placement(config, has_gpu),
        "terminationGracePeriodSeconds": GRACE_PERIOD_S,
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(config, launch.name, _serving_labels(launch)),
        "spec": {
            # No replicas: the autoscaler has them, and applying again must not take them back.
            "selector": {"matchLabels": _serving_labels(launch)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "progressDeadlineSeconds": config.startup_s + 600,
            "template": {"metadata": {"labels": _serving_labels(launch)}, "spec": pod},
        },
    }


def _service(config: KubernetesConfig, launch: Launch) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(config, launch.name, _serving_labels(launch)),
        "spec": {
            "type": "ClusterIP",
            "selector": _serving_labels(launch),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def _autoscaler(config: KubernetesConfig, launch: Launch) -> Json:
    # GKE's adapter for Managed Prometheus puts the name so: prometheus.googleapis.com|NAME|gauge
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": f"prometheus.googleapis.com|{QUEUE_METRICS[launch.engine]}|gauge"},
            "target": {"type": "AverageValue", "averageValue": str(config.target_waiting)},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(config, launch.name, _serving_labels(launch)),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": launch.name},
            "minReplicas": config.replicas[0],
            "maxReplicas": config.replicas[1],
            "metrics": [metric],
            # A pod takes minutes to load: what is gone is missed for long.
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
        },
    }


def _pod_monitoring(config: KubernetesConfig, launch: Launch) -> Json:
    return {
        "apiVersion": "monitoring.googleapis.com/v1",
        "kind": "PodMonitoring",
        "metadata": _metadata(config, launch.name, _serving_labels(launch)),
        "spec": {
            "selector": {"matchLabels": _serving_labels(launch)},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": f"{SCRAPE_PERIOD_S}s"}],
        },
    }


# --- data stages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataStages:
    """The stages before the head, as a recipe has them.

    name: of the recipe. image: eyas's own. recipe: the text of the resolved one. worlds: the processes of each stage,
    in order. url: of the server that `respond` asks.
    """

    name: str
    image: str
    recipe: str
    worlds: Mapping[str, int]
    url: str | None


def build_jobs(config: KubernetesConfig, stages: DataStages) -> dict[str, Json]:
    """File name -> object, in order. UsageError for what no pod could carry out."""
    if not NAME.fullmatch(stages.name):
        found = f"Jobs of a recipe named {stages.name!r}, which is no name in a cluster"
        raise UsageError(found, "at most 40 small letters, digits and dashes", 'add name = "..."')
    if stages.url is not None and _is_loopback(stages.url):
        found = f"respond.url = {stages.url!r} in a Job, whose pod would ask itself"
        raise UsageError(found, "an address of the cluster, http://SERVICE.NAMESPACE/v1", "correct it for the Jobs")
    name = f"{stages.name}-recipe"
    told: dict[str, Json] = {
        f"{JOBS}/0-recipe.yaml": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(config, name, _labels(stages.name, "data")),
            "data": {f"{stages.name}.toml": stages.recipe},
        }
    }
    for number, stage in enumerate(stages.worlds, 1):
        told[f"{JOBS}/{number}-{stage}.yaml"] = _job(config, stages, stage)
    return told


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _job(config: KubernetesConfig, stages: DataStages, stage: str) -> Json:
    has_gpu, world = config.accelerator_count > 0 and stage in ("capture", "train"), stages.worlds[stage]
    command = [stage, f"{RECIPE_MOUNT}/{stages.name}.toml", "--out", f"{RUNS_MOUNT}/{stages.name}"]
    container = {
        "name": stage,
        "image": stages.image,
        "args": command,
        "env": [
            {"name": "HF_HOME", "value": "/scratch/huggingface"},
            {"name": "XDG_CACHE_HOME", "value": "/scratch"},
        ],
        "envFrom": _secret_env(stages.name),
        "resources": _resources(config, has_gpu),
        "securityContext": SECURITY_CONTEXT,
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS_MOUNT},
            {"name": "recipe", "mountPath": RECIPE_MOUNT, "readOnly": True},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    }
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": config.volume_claim}},
        {"name": "recipe", "configMap": {"name": f"{stages.name}-recipe"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": f"{config.volume_gb}Gi"}},
    ]
    labels = _labels(stages.name, "data")
    pod = {**_pod_placement(config, has_gpu), "restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(config, f"{stages.name}-{stage}", labels),
        "spec": {
            # Indexed: each pod gets JOB_COMPLETION_INDEX, which eyas reads. All at once: one waits for the others.
            "completionMode": "Indexed",
            "completions": world,
            "parallelism": world,
            # A stage goes on where it stopped; wrong input (2) stays wrong.
            "backoffLimitPerIndex": 4,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": stage, "operator": "In", "values": [2]},
                    }
                ]
            },
            "ttlSecondsAfterFinished": 7 * 24 * 3600,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


# --- files -----------------------------------------------------------------------------------------------------------


def apply_command(directory: Path) -> str:
    """Applies what serves, all at once."""
    return f"kubectl apply -f {shlex.quote(str(directory / SERVING))}"


def job_commands(objects: Mapping[str, Json], directory: Path) -> list[str]:
    """Apply what `jobs_of` gave, each Job with the wait for its end, which the next one needs."""
    commands = []
    for name, one in objects.items():
        command = f"kubectl apply -f {shlex.quote(str(directory / name))}"
        if one["kind"] == "Job":
            about = one["metadata"]
            wait = f"kubectl wait -n {about['namespace']} --for=condition=complete --timeout={JOB_WAIT_TIMEOUT}"
            command += f" && {wait} job/{about['name']}"
        commands.append(command)
    return commands


def write_manifests(objects: Mapping[str, Json], parents: Mapping[str, str], directory: Path) -> Provenance:
    """Write the files. Idempotent. parents: the digest of the head, where something serves it."""
    started_s = time.time()
    origin = StageInputs("deploy-kubernetes", digest_json(dict(objects)), parents)
    if is_finished(directory, origin):
        return read_provenance(directory)
    mark_unfinished(directory)
    for path in directory.rglob("*.yaml"):
        if path.relative_to(directory).as_posix() not in objects:  # of a recipe before this one
            path.unlink()
    for name, one in objects.items():
        write_atomic(directory / name, yaml.safe_dump(one, sort_keys=False, width=120))
    return finish_stage(directory, origin, started_s)
