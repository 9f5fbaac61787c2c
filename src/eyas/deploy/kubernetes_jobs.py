"""Builds the Kubernetes Jobs of the stages before the head. `eyas deploy kubernetes` writes them to jobs/.

        Job             pods
        eyas prompts    prompts.world pods; each gets JOB_COMPLETION_INDEX, and all write to one run directory
        eyas respond    one pod, which calls the server of respond.url, or else loads the target
        eyas capture    capture.world pods; each loads the target
        eyas train      one pod, with one process for each of its GPUs

The Jobs must be applied one after the other with the commands that `eyas deploy` prints, because a Job does not wait
for the previous Job. A stage whose input is unfinished exits with code 2, and its Job fails.
"""

from eyas.deploy.config import KubernetesConfig
from eyas.deploy.launch import Json
from eyas.deploy.manifests import app_labels, render_manifest
from eyas.deploy.stage_jobs import DataStages, needs_gpu, stage_command

RUNS_MOUNT, RECIPE_MOUNT = "/runs", "/recipe"
JOBS = "jobs"


def build_jobs(config: KubernetesConfig, stages: DataStages) -> dict[str, Json]:
    """Returns file name -> object of jobs/, in the order in which they must be applied."""
    labels = app_labels(stages.name, "data")
    recipe = render_manifest("recipe", config, f"{stages.name}-recipe", labels)
    objects = {f"{JOBS}/0-recipe.yaml": recipe | {"data": {f"{stages.name}.toml": stages.recipe}}}
    if config.storage_class is not None:
        volume = render_manifest("volume", config, config.volume_claim, app_labels("eyas", "data"))
        objects[f"{JOBS}/0-volume.yaml"] = volume
    mounts = {"runs_mount": RUNS_MOUNT, "recipe_mount": RECIPE_MOUNT}
    for number, (stage, num_pods) in enumerate(stages.num_pods.items(), 1):
        gpus = config.accelerator_count if needs_gpu(stage, stages.url) else 0
        command = stage_command(stage, f"{RECIPE_MOUNT}/{stages.name}.toml", f"{RUNS_MOUNT}/{stages.name}", gpus)
        pod = {"app": stages.name, "stage": stage, "image": stages.image, "num_pods": num_pods, "gpus": gpus}
        name = f"{stages.name}-{stage}"
        job = render_manifest("job", config, name, labels, **pod, command=command, environment=(), **mounts)
        objects[f"{JOBS}/{number}-{stage}.yaml"] = job
    return objects
