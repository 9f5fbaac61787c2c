"""`eyas deploy vertex | kubernetes`: writes what a platform is asked for; --upload fills the bucket; --apply, --status
and --delete ask Vertex AI.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from eyas.base.config import to_toml
from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import require_finished
from eyas.cli.setup import open_run
from eyas.deploy import kubernetes, vertex_deployment
from eyas.deploy.launch import Launch, ServedModel, build_launch, upload_artifacts
from eyas.formats.head_dir import CONFIG_FILE, digest_head
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.recipe import Recipe, Run


def run(parsed: argparse.Namespace) -> int:
    """The verb; see the parser in `eyas.cli`."""
    work = open_run(parsed.recipe, parsed.overrides, parsed.out, "cpu")
    if parsed.platform == "kubernetes" and (parsed.apply or parsed.status or parsed.delete):
        raise UsageError("--apply, --status or --delete for kubernetes", "them for vertex", "use kubectl")
    if parsed.upload:
        launch = build_run_launch(work)
        upload_artifacts(launch)
        print(f"{_list_artifacts(launch)} put into {launch.artifact_uri}", file=sys.stderr)
    directory = write_manifests(work, parsed.platform)
    if parsed.platform == "kubernetes":
        print("\n".join([f"{directory} is finished", *_next_commands(work, directory, parsed.upload)]), file=sys.stderr)
        return 0
    told = _call_vertex(work, parsed)
    if told is None:
        print(f"{directory} is finished: the same with --apply carries it out", file=sys.stderr)
    elif parsed.json:
        print(json.dumps(told, indent=2))
    else:
        print(_format_state(told))
    return 0


def build_run_launch(work: Run) -> Launch:
    """How the head and its target are started elsewhere. InputError without a head, or without its export."""
    model = work.recipe.target.model
    # A hub id or a URL is for the container to fetch; what lies on this machine travels with the head.
    is_here = model == EMBEDDED or Path(model).is_dir()
    head = _head_for(work)
    parts = ServedModel(work.recipe.name, resolve_target(model) if is_here else model, head, digest_head(head))
    return build_launch(work.recipe.deploy, parts)


def _head_for(work: Run) -> Path:
    """What the engine loads: the directory that was exported for it; eyas takes the head as it is."""
    engine = work.recipe.deploy.engine
    if engine == "eyas":
        return work.head_directory
    exported = work.directory("export")
    require_finished(exported, "export")
    if not (exported / engine / CONFIG_FILE).is_file():
        raise InputError(
            f"no directory for {engine} in {exported}",
            "a head that it can be told",
            f"read why in {exported / 'parity.json'}; deploy with another deploy.engine",
        )
    return exported / engine


def write_manifests(work: Run, platform: str) -> Path:
    """Write what a platform is asked for; the directory. UsageError where the recipe leaves something out."""
    recipe, out = work.recipe, work.out / "deploy" / platform
    if platform == "vertex":
        vertex_deployment.write_requests(recipe.deploy.vertex, build_run_launch(work), out)
        return out
    launch = _build_launch_if_trained(work)
    serving = {} if launch is None else kubernetes.build_serving(recipe.deploy.kubernetes, launch)
    parents = {} if launch is None else {"head": launch.head_digest}
    kubernetes.write_manifests(serving | build_jobs(recipe), parents, out)
    return out


def _build_launch_if_trained(work: Run) -> Launch | None:
    """None where there is no head yet, and Jobs that make one. InputError without either."""
    try:
        return build_run_launch(work)
    except InputError as error:
        if work.recipe.deploy.jobs_image is None:
            raise
        print(f"eyas: Jobs alone, nothing to serve yet: {error}", file=sys.stderr)
        return None


def build_jobs(recipe: Recipe) -> dict[str, kubernetes.Json]:
    """The Jobs of the stages before the head; none without deploy.jobs_image. UsageError for what no pod could do."""
    if recipe.deploy.jobs_image is None:
        return {}
    worlds = {"prompts": recipe.prompts.world, "respond": 1, "capture": recipe.capture.world, "train": 1}
    stages = kubernetes.DataStages(
        recipe.name, recipe.deploy.jobs_image, to_toml(recipe), worlds, url=recipe.respond.url
    )
    return kubernetes.build_jobs(recipe.deploy.kubernetes, stages)


def _next_commands(work: Run, directory: Path, is_uploaded: bool) -> list[str]:
    """What is typed next."""
    lines = []
    if any(directory.glob(f"{kubernetes.SERVING}/*")):
        launch = build_run_launch(work)
        if launch.artifacts and not is_uploaded:
            lines.append(f"the same with --upload puts {_list_artifacts(launch)} where the pods look for it; then")
        lines.append(f"    {kubernetes.apply_command(directory)}")
    commands = kubernetes.job_commands(build_jobs(work.recipe), directory)
    if commands:
        lines += ["the data stages, each when the one before has ended:", "    " + " &&\n    ".join(commands)]
    return lines


def _list_artifacts(launch: Launch) -> str:
    return " and ".join(launch.artifacts) or "nothing"


def write_configured_manifests(work: Run) -> list[Path]:
    """What the recipe has enough about: none without an image and a bucket, Vertex AI's with a project alone."""
    config = work.recipe.deploy
    if config.image is None or config.storage is None:
        return []
    platforms = ["kubernetes"] if config.vertex.project is None else ["kubernetes", "vertex"]
    return [write_manifests(work, platform) for platform in platforms]


def _call_vertex(work: Run, parsed: argparse.Namespace) -> dict[str, Any] | None:
    config, launch = work.recipe.deploy.vertex, build_run_launch(work)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if parsed.apply:
        return vertex_deployment.apply(config, launch, say)
    if parsed.status:
        return vertex_deployment.status(config, launch)
    if parsed.delete:
        return vertex_deployment.delete(config, launch, say)
    return None


def _format_state(told: dict[str, Any]) -> str:
    """What is there, in a few lines."""
    lines = [told["state"]]
    lines += [f"{key}: {told[key]}" for key in ("endpoint", "dns", "model") if told[key] is not None]
    for one in told["deployed"]:
        least, most = one["replicas"]
        old = "" if one["is_wanted"] else ", of another recipe"
        lines.append(f"{one['name']}: {one['traffic']} % of traffic, {least} to {most} of {one['machine']}{old}")
    return "\n".join(lines)
