"""Formats a plan as text for the terminal."""

import shutil

import torch

from eyas.base.templates import template_environment
from eyas.costs.cost_model import POINTS
from eyas.plan.estimates import SAMPLE_PROMPTS
from eyas.plan.plan import Plan, format_bytes


def format_plan(plan: Plan) -> str:
    """Returns the tables of stages and feature options, and notes."""
    environment = template_environment("eyas.plan", ".")
    environment.filters["bytes"] = format_bytes
    values = {"sample_size": SAMPLE_PROMPTS, "points": POINTS, "free_bytes": _free_bytes(plan)}
    template = environment.get_template("plan.txt.jinja")
    return template.render(plan=plan, num_threads=torch.get_num_threads(), **values).rstrip()


def _free_bytes(plan: Plan) -> int | None:
    """Returns the free space on the disk of the run; None if the plan stores no features there."""
    captures = any(stage.stage == "capture" and stage.state != "finished" for stage in plan.stages)
    if not captures or not plan.run.recipe.plan.is_here or plan.run.recipe.features.url is not None:
        return None
    out = plan.run.out.resolve()
    return shutil.disk_usage(next(parent for parent in (out, *out.parents) if parent.is_dir())).free
