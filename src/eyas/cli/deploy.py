"""`eyas deploy vertex | kubernetes`: writes deployment files, uploads heads and targets, and calls Vertex AI."""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.base.config import to_toml
from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import has_provenance, read_provenance, require_finished
from eyas.base.templates import template_environment
from eyas.deploy import kubernetes, kubernetes_jobs, vertex_deployment, vertex_jobs
from eyas.deploy.engine_parsers import parser_arguments
from eyas.deploy.launch import Json, Launch, ServedModel, build_launch, upload_artifacts, write_objects
from eyas.deploy.stage_jobs import DataStages
from eyas.formats.head_dir import CONFIG_FILE, digest_head
from eyas.model.target_dir import EMBEDDED, load_hub_tokenizer, resolve_target
from eyas.recipe import Recipe, Run, open_run


def run_verb(parsed: argparse.Namespace) -> int:
    """Runs `eyas deploy`: writes the deployment files, then does what --upload, --apply, --status or --delete say."""
    run = open_run(parsed.recipe, parsed.overrides, parsed.out, "cpu")
    if parsed.platform == "kubernetes" and (parsed.apply or parsed.status or parsed.delete or parsed.jobs):
        problem = "--apply, --status, --delete and --jobs are for vertex only"
        raise UsageError(problem, "Use kubectl with the written files")
    if parsed.upload:
        launch = build_run_launch(run)
        upload_artifacts(launch.artifact_uri, launch.artifacts)
        _log(f"{' and '.join(launch.artifacts) or 'nothing'} uploaded to {launch.artifact_uri}")
    directory = write_manifests(run, parsed.platform)
    if parsed.platform == "kubernetes":
        launch = build_run_launch(run) if any(directory.glob(f"{kubernetes.SERVING}/*")) else None
        values = {"launch": launch, "serving": kubernetes.SERVING, "jobs": build_jobs(run.recipe)}
        _log(render_template("next_commands.txt.jinja", directory=directory, is_uploaded=parsed.upload, **values))
        return 0
    state = _call_jobs(run, parsed) if parsed.jobs else _call_vertex(run, parsed)
    if state is None:
        what = "--jobs --apply runs the jobs" if parsed.jobs or not _has_head(run) else "--apply creates the deployment"
        _log(f"{directory} is written. The same command with {what}.")
    else:
        print(json.dumps(state, indent=2) if parsed.json else render_template("deployment.txt.jinja", state=state))
    return 0


def build_run_launch(run: Run) -> Launch:
    """Returns the settings of the container that serves a run's head. Raises InputError if it is missing."""
    config, model = run.recipe.deploy, run.recipe.target.model
    # A container downloads a hub id or a URL itself; a target on this machine is uploaded with the head.
    is_local = model == EMBEDDED or Path(model).is_dir()
    head = None if config.speculation == "off" else _head_directory(run)
    digest = None if head is None else digest_head(head)
    target = resolve_target(model) if is_local else model
    return build_launch(config, ServedModel(run.recipe.name, target, head, digest, _choose_parsers(run, target)))


def _choose_parsers(run: Run, target: str | Path) -> tuple[str, ...]:
    """Returns the arguments for the parsers of tool calls and reasoning, unless deploy.arguments chooses them."""
    config = run.recipe.deploy
    if config.engine == "eyas" or any("-parser" in word for word in config.arguments):
        return ()
    try:
        return parser_arguments(config.engine, load_hub_tokenizer(target))
    except InputError as error:
        _log(f"eyas: {config.engine} starts without parsers of tool calls and reasoning. {error}")
        return ()


def write_manifests(run: Run, platform: str) -> Path:
    """Writes the deployment files of a platform and returns their directory. Raises UsageError if keys are missing."""
    config, out = run.recipe.deploy, run.out / "deploy" / platform
    jobs = _build_vertex_jobs(run) if platform == "vertex" else build_jobs(run.recipe)
    launch = build_run_launch(run) if not jobs or _has_head(run) else None
    if launch is None:
        _log("The run has no head yet. Only the jobs that make one are written. Deploy again when it is trained.")
    serving = {}
    if launch is not None and platform == "vertex":
        serving = vertex_deployment.build_requests(config.vertex, launch)
    elif launch is not None:
        serving = kubernetes.build_serving(config.kubernetes, launch)
    write_objects(out, platform, serving | jobs, {} if launch is None else launch.parents)
    return out


def write_configured_manifests(run: Run) -> list[Path]:
    """Writes the files of each platform whose required keys the recipe has, and returns their directories."""
    config = run.recipe.deploy
    if config.image is None or config.storage is None:
        return []
    platforms = ["kubernetes"] if config.vertex.project is None else ["kubernetes", "vertex"]
    return [write_manifests(run, platform) for platform in platforms]


def build_jobs(recipe: Recipe) -> dict[str, Json]:
    """Returns the Kubernetes Jobs of the data stages by file name; {} if deploy.jobs_image is not set."""
    image = recipe.deploy.jobs_image
    if image is None:
        return {}
    worlds = {"prompts": recipe.prompts.world, "respond": 1, "capture": recipe.capture.world, "train": 1}
    stages = DataStages(recipe.name, image, to_toml(recipe), worlds, url=recipe.respond.url)
    return kubernetes_jobs.build_jobs(recipe.deploy.kubernetes, stages)


def _build_vertex_jobs(run: Run) -> dict[str, Json]:
    """Returns the CustomJobs of the stages by file name; {} without deploy.jobs_image or a gs:// bucket."""
    config = run.recipe.deploy
    if config.jobs_image is None or not (config.storage or "").startswith("gs://"):
        return {}
    return vertex_jobs.build_jobs(config.vertex, *_describe_vertex_run(run))


def _describe_vertex_run(run: Run) -> tuple[DataStages, str]:
    """Returns the stages that run as CustomJobs, and the URL of their run directory."""
    recipe, config = run.recipe, run.recipe.deploy
    if config.jobs_image is None or config.storage is None:
        key = "jobs_image" if config.jobs_image is None else "storage"
        raise UsageError(f"The recipe has no deploy.{key}", "Set it: jobs on Vertex AI need an image and a bucket")
    prompts = run.directory("prompts")
    version = read_provenance(prompts).digest.removeprefix("sha256:")[:12] if has_provenance(prompts) else "no-prompts"
    url = f"{config.storage.rstrip('/')}/{recipe.name}/run-{version}"
    model = config.target or recipe.target.model
    if model != EMBEDDED and Path(model).is_dir():
        fix = "Copy it to a bucket, and set deploy.target to its gs:// URL"
        raise UsageError(f"target.model={model} is a directory of this machine, which jobs cannot read", fix)
    changed = replace(
        recipe,
        target=replace(recipe.target, model=vertex_jobs.to_mounted_path(model) if "://" in model else model),
        features=replace(recipe.features, url=recipe.features.url or f"{url}/features"),
    )
    worlds = dict.fromkeys(vertex_jobs.STAGES, 1) | {"capture": recipe.capture.world}
    worlds["train"] = config.vertex.jobs.train_machines
    return DataStages(recipe.name, config.jobs_image, to_toml(changed), worlds, recipe.respond.url), url


def _has_head(run: Run) -> bool:
    """Returns True if the run has what the container loads: a trained head, one that is named, or none to load."""
    return run.recipe.deploy.speculation == "off" or not run.trains_head or has_provenance(run.directory("train"))


def _head_directory(run: Run) -> Path:
    """Returns the head directory that deploy.engine loads: the head for eyas, its export for another engine."""
    engine = run.recipe.deploy.engine
    if not _has_head(run):
        fix = "Run `eyas run` with this recipe first, or set deploy.speculation=off to serve the target alone"
        raise InputError(f"The run {run.out} has no head yet", fix)
    if engine == "eyas":
        return run.head_directory
    exported = run.directory("export")
    require_finished(exported, "export")
    if not (exported / engine / CONFIG_FILE).is_file():
        fix = f"Read the reason in {exported / 'parity.json'}, or set another deploy.engine"
        raise InputError(f"The head was not exported for {engine}", fix)
    return exported / engine


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _call_vertex(run: Run, parsed: argparse.Namespace) -> dict[str, Any] | None:
    if not (parsed.status or parsed.apply or parsed.delete):
        return None
    deployment = vertex_deployment.VertexDeployment(run.recipe.deploy.vertex, build_run_launch(run), _log)
    return deployment.status() if parsed.status else deployment.apply() if parsed.apply else deployment.delete()


def _call_jobs(run: Run, parsed: argparse.Namespace) -> dict[str, Any] | None:
    config, (stages, url) = run.recipe.deploy.vertex, _describe_vertex_run(run)
    requests = vertex_jobs.build_jobs(config, stages, url)
    if not (parsed.status or parsed.apply or parsed.delete):
        return None
    if parsed.apply:
        require_finished(run.directory("prompts"), "prompts")
    jobs = vertex_jobs.VertexJobs(config, requests, _log)
    return jobs.status() if parsed.status else jobs.apply(stages, url, run.out) if parsed.apply else jobs.cancel()


def render_template(template: str, **values: Any) -> str:
    """Returns a text template of this package, filled with values, as lines for a terminal."""
    environment = template_environment("eyas.cli", ".")
    environment.filters["quote"] = shlex.quote
    return environment.get_template(template).render(values).rstrip()
