"""What a cluster is asked for: one file an object, in the order of `kubectl apply -f DIRECTORY`.

    serving    deployment (engine, probes, scratch), service, autoscaler by waiting requests, metrics for GKE
    data       recipe (ConfigMap) and a Job for each stage before the head; stages that can be shared are Indexed Jobs

        eyas prompts    prompts.world = N     pods 0 .. N-1, each with JOB_COMPLETION_INDEX, one run directory
        eyas respond    asks the server of respond.url
        eyas capture    capture.world = N     as above, each with the target
        eyas train      one pod

A Job waits for nobody: start the next one when the last has ended, `kubectl wait --for=condition=complete job/...`.
"""

import time
from pathlib import Path
from typing import Any

import yaml

from eyas.base.atomic import write_atomic
from eyas.base.errors import UsageError
from eyas.base.provenance import Origin, Provenance, digest_json, finish, is_finished, read_provenance, reopen
from eyas.deploy.config import KubernetesConfig
from eyas.deploy.launch import PORT, Launch

USER = 10001  # of all our images
WAITING = {
    "eyas": "vllm:num_requests_waiting",
    "sglang": "sglang:num_queue_reqs",
    "vllm": "vllm:num_requests_waiting",
}
"""The gauge of requests that wait, by engine; eyas has vLLM's names."""
PERIOD_S, SCRAPE_S = 10, 15
DRAIN_S = 90
WORK, RECIPE = "/runs", "/recipe"

Json = dict[str, Any]


def serving_of(config: KubernetesConfig, launch: Launch) -> dict[str, Json]:
    """File name -> object, for what serves. UsageError for an engine on a machine that it cannot use."""
    if launch.engine != "eyas" and config.accelerator_count == 0:
        found = f"deploy.kubernetes.accelerator_count = 0 for {launch.engine}"
        raise UsageError(found, "at least 1: it runs on GPUs", 'raise it, or take deploy.engine = "eyas"')
    return {
        "deployment.yaml": _deployment(config, launch),
        "service.yaml": _service(config, launch),
        "autoscaler.yaml": _autoscaler(config, launch),
        "podmonitoring.yaml": _monitoring(config, launch),
    }


def _metadata(config: KubernetesConfig, launch: Launch, name: str, part: str) -> Json:
    labels = {"app.kubernetes.io/managed-by": "eyas", "app.kubernetes.io/component": part, **_selector(launch)}
    return {"name": name, "namespace": config.namespace, "labels": labels}


def _selector(launch: Launch) -> dict[str, str]:
    return {"app.kubernetes.io/name": launch.name}


def _serving_labels(launch: Launch) -> dict[str, str]:
    return {**_selector(launch), "app.kubernetes.io/component": "serving"}


def _resources(config: KubernetesConfig, has_gpu: bool) -> Json:
    asked: Json = {"cpu": str(config.cpu), "memory": f"{config.memory_gb}Gi"}
    most: Json = {"memory": f"{config.memory_gb}Gi"}
    if has_gpu:
        for amounts in (asked, most):
            amounts["nvidia.com/gpu"] = str(config.accelerator_count)
    return {"requests": asked, "limits": most}


def _where(config: KubernetesConfig, has_gpu: bool) -> Json:
    """Node and account."""
    told: Json = {
        "serviceAccountName": config.service_account,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER},
    }
    if has_gpu:
        told["nodeSelector"] = {"cloud.google.com/gke-accelerator": config.accelerator}
        told["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return told


SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


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
    probe = {"httpGet": {"path": launch.health_route, "port": "http"}, "periodSeconds": PERIOD_S, "timeoutSeconds": 5}
    container = {
        "name": "engine",
        "image": launch.image,
        "args": list(launch.arguments),
        "env": [{"name": name, "value": value} for name, value in sorted(environment.items())],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": _resources(config, has_gpu),
        "securityContext": SAFE,
        "startupProbe": {**probe, "failureThreshold": -(-config.startup_s // PERIOD_S)},
        "readinessProbe": {**probe, "failureThreshold": 1},
        # A busy engine answers late: it is restarted only when it does not take connections any more.
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": PERIOD_S, "failureThreshold": 4},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "scratch", "mountPath": "/scratch"}],
    }
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": f"{config.volume_gb}Gi"}},
    ]
    pod = {
        **_where(config, has_gpu),
        "terminationGracePeriodSeconds": DRAIN_S,
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(config, launch, launch.name, "serving"),
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
        "metadata": _metadata(config, launch, launch.name, "serving"),
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
            "metric": {"name": f"prometheus.googleapis.com|{WAITING[launch.engine]}|gauge"},
            "target": {"type": "AverageValue", "averageValue": str(config.target_waiting)},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(config, launch, launch.name, "serving"),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": launch.name},
            "minReplicas": config.replicas[0],
            "maxReplicas": config.replicas[1],
            "metrics": [metric],
            # A pod takes minutes to load: what is gone is missed for long.
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
        },
    }


def _monitoring(config: KubernetesConfig, launch: Launch) -> Json:
    return {
        "apiVersion": "monitoring.googleapis.com/v1",
        "kind": "PodMonitoring",
        "metadata": _metadata(config, launch, launch.name, "serving"),
        "spec": {
            "selector": {"matchLabels": _serving_labels(launch)},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": f"{SCRAPE_S}s"}],
        },
    }


# --- data stages -----------------------------------------------------------------------------------------------------


def jobs_of(
    config: KubernetesConfig, launch: Launch, image: str | None, recipe: str, worlds: dict[str, int]
) -> dict[str, Json]:
    """File name -> object, for the stages in `worlds`, in order: the processes of each. image: eyas's own, else none.

    recipe: the text of the resolved recipe.
    """
    if image is None:
        return {}
    name = f"{launch.name}-recipe"
    told: dict[str, Json] = {
        "jobs-0-recipe.yaml": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(config, launch, name, "data"),
            "data": {f"{launch.name}.toml": recipe},
        }
    }
    for number, (stage, world) in enumerate(worlds.items(), 1):
        job = _job(config, launch, image, stage, world)
        told[f"jobs-{number}-{stage}.yaml"] = job
    return told


def _job(config: KubernetesConfig, launch: Launch, image: str, stage: str, world: int) -> Json:
    has_gpu = config.accelerator_count > 0 and stage in ("capture", "train")
    command = [stage, f"{RECIPE}/{launch.name}.toml", "--out", f"{WORK}/{launch.name}"]
    container = {
        "name": stage,
        "image": image,
        "args": command,
        "env": [
            {"name": "HF_HOME", "value": "/scratch/huggingface"},
            {"name": "XDG_CACHE_HOME", "value": "/scratch"},
        ],
        "resources": _resources(config, has_gpu),
        "securityContext": SAFE,
        "volumeMounts": [
            {"name": "runs", "mountPath": WORK},
            {"name": "recipe", "mountPath": RECIPE, "readOnly": True},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    }
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": config.volume_claim}},
        {"name": "recipe", "configMap": {"name": f"{launch.name}-recipe"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": f"{config.volume_gb}Gi"}},
    ]
    labels = {**_selector(launch), "app.kubernetes.io/component": "data"}
    pod = {**_where(config, has_gpu), "restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(config, launch, f"{launch.name}-{stage}", "data"),
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


def write(objects: dict[str, Json], head_digest: str, directory: Path) -> Provenance:
    """Write the files. Idempotent."""
    started_s = time.time()
    origin = Origin("deploy-kubernetes", digest_json(objects), {"head": head_digest})
    if is_finished(directory, origin):
        return read_provenance(directory)
    reopen(directory)
    for path in directory.glob("*.yaml"):
        if path.name not in objects:  # of a recipe before this one
            path.unlink()
    for name, one in objects.items():
        write_atomic(directory / name, yaml.safe_dump(one, sort_keys=False, width=120))
    return finish(directory, origin, started_s)
