"""Builds the Kubernetes Jobs of the stages before the head. `eyas deploy kubernetes` writes them to jobs/.

        Job             pods
        eyas prompts    prompts.world pods; each gets JOB_COMPLETION_INDEX, and all write to one run directory
        eyas respond    one pod, which calls the server of respond.url, or else loads the target
        eyas capture    capture.world pods; each loads the target
        eyas train      one pod, with one process for each of its GPUs

The Jobs must be applied one after the other with `job_commands`, because a Job does not wait for the previous Job. A
stage whose input is unfinished exits with code 2, and its Job fails.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from eyas.base.errors import UsageError
from eyas.deploy.config import NAME, NAME_RULE, KubernetesConfig
from eyas.deploy.kubernetes_pod import app_labels, build_container, build_object, build_pod
from eyas.deploy.launch import Json
from eyas.deploy.stage_jobs import DataStages, needs_gpu, require_remote_url, stage_command

RUNS_MOUNT, RECIPE_MOUNT = "/runs", "/recipe"
JOBS = "jobs"
JOB_WAIT_TIMEOUT = "24h"  # of `kubectl wait`


def build_jobs(config: KubernetesConfig, stages: DataStages) -> dict[str, Json]:
    """Returns file name -> object of jobs/, in the order in which they must be applied.

    Raises:
        UsageError: The recipe's name is not valid in a cluster, or respond.url is an address of the pod itself.
    """
    if not NAME.fullmatch(stages.name):
        problem = f"The recipe's name {stages.name!r} is not a valid name for Jobs"
        raise UsageError(problem, f"Set name to {NAME_RULE}")
    require_remote_url(stages.url)
    config_map = build_object(config, "v1", "ConfigMap", f"{stages.name}-recipe", app_labels(stages.name, "data"))
    objects = {f"{JOBS}/0-recipe.yaml": config_map | {"data": {f"{stages.name}.toml": stages.recipe}}}
    if config.storage_class is not None:
        claim = build_object(config, "v1", "PersistentVolumeClaim", config.volume_claim, app_labels("eyas", "data"))
        storage = {"requests": {"storage": f"{config.runs_gb}Gi"}}
        access = {"accessModes": ["ReadWriteMany"], "storageClassName": config.storage_class}
        objects[f"{JOBS}/0-volume.yaml"] = claim | {"spec": {**access, "resources": storage}}
    for number, stage in enumerate(stages.num_pods, 1):
        objects[f"{JOBS}/{number}-{stage}.yaml"] = _build_job(config, stages, stage)
    return objects


def _build_job(config: KubernetesConfig, stages: DataStages, stage: str) -> Json:
    has_gpu = config.accelerator_count > 0 and needs_gpu(stage, stages.url)
    num_pods, gpus = stages.num_pods[stage], config.accelerator_count if has_gpu else 0
    shared, pod = build_container(config, stages.name, has_gpu, {}), build_pod(config, has_gpu)
    container = {
        "name": stage,
        "image": stages.image,
        **stage_command(stage, f"{RECIPE_MOUNT}/{stages.name}.toml", f"{RUNS_MOUNT}/{stages.name}", gpus),
        **shared,
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS_MOUNT},
            {"name": "recipe", "mountPath": RECIPE_MOUNT, "readOnly": True},
            *shared["volumeMounts"],
        ],
    }
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": config.volume_claim}},
        {"name": "recipe", "configMap": {"name": f"{stages.name}-recipe"}},
        *pod["volumes"],
    ]
    pod |= {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    wrong_input = {"containerName": stage, "operator": "In", "values": [2]}
    labels = app_labels(stages.name, "data")
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
    return build_object(config, "batch/v1", "Job", f"{stages.name}-{stage}", labels) | {"spec": spec}


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
