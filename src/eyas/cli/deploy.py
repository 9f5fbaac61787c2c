"""`eyas deploy vertex | kubernetes`: writes what a platform is asked for; --apply, --status, --delete ask Vertex AI."""

import argparse
import json
import sys
from typing import Any

from eyas.base.errors import UsageError
from eyas.cli.recipes import open_run
from eyas.recipe import Run


def run(parsed: argparse.Namespace) -> int:
    """The verb; see the parser in `eyas.cli`."""
    work = open_run(parsed.recipe, parsed.overrides, parsed.out, "cpu")
    if parsed.platform == "kubernetes":
        if parsed.apply or parsed.status or parsed.delete:
            raise UsageError("--apply, --status or --delete for kubernetes", "them for vertex", "use kubectl")
        directory = work.deploy("kubernetes")
        print(f"{directory} is finished: kubectl apply -f {directory}", file=sys.stderr)
        return 0
    directory = work.deploy("vertex")
    told = _carry_out(work, parsed)
    if told is None:
        print(f"{directory} is finished: the same with --apply carries it out", file=sys.stderr)
    elif parsed.json:
        print(json.dumps(told, indent=2))
    else:
        print(_described(told))
    return 0


def _carry_out(work: Run, parsed: argparse.Namespace) -> dict[str, Any] | None:
    from eyas.deploy import vertex_apply

    config, launch = work.recipe.deploy.vertex, work.launch()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if parsed.apply:
        return vertex_apply.apply(config, launch, say)
    if parsed.status:
        return vertex_apply.status(config, launch)
    if parsed.delete:
        return vertex_apply.delete(config, launch, say)
    return None


def _described(told: dict[str, Any]) -> str:
    """What is there, in a few lines."""
    lines = [told["state"]]
    lines += [f"{key}: {told[key]}" for key in ("endpoint", "dns", "model") if told[key] is not None]
    for one in told["deployed"]:
        least, most = one["replicas"]
        old = "" if one["is_wanted"] else ", of another recipe"
        lines.append(f"{one['name']}: {one['traffic']} % of traffic, {least} to {most} of {one['machine']}{old}")
    return "\n".join(lines)
