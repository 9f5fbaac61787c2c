"""Formats a plan as text for the terminal."""

import shutil

import torch

from eyas.base.templates import template_environment
from eyas.costs.cost_model import POINTS, FeatureOption, FeatureOptions
from eyas.plan.estimates import SAMPLE_PROMPTS
from eyas.plan.plan import Plan, format_bytes


def format_plan(plan: Plan) -> str:
    """Returns the tables of stages and feature options, and notes."""
    options = [] if plan.options is None else _options_table(plan.options, plan)
    parts = ["\n".join(_stage_table(plan)), "\n".join(options), _notes(plan).rstrip()]
    return "\n\n".join(filter(None, parts))


def _stage_table(plan: Plan) -> list[str]:
    info, recipe, active = plan.target.info, plan.run.recipe, plan.target.active_parameters
    sizes = f"{info.num_parameters:,} parameters"
    sizes += "" if active == info.num_parameters else f", {active:,} active"
    width = max(len(stage.amount) for stage in plan.stages)
    rows = [
        f"{stage.stage:<9}{stage.state:<11}{stage.amount:<{width + 2}}{_format_time(stage.hours):>12}"
        + ("" if stage.money is None else f"{stage.money:>14,.2f}  {stage.machines}").rstrip()
        for stage in plan.stages
    ]
    money, price = "", plan.prices.per_hour
    if plan.total_money is not None:
        storage = ", storage included" if plan.total_money > sum(stage.money or 0 for stage in plan.stages) else ""
        rate = "" if any(stage.machines for stage in plan.stages) else f" at {price:,.2f} an hour"
        money = f"{plan.total_money:>14,.2f}{rate}{storage}"
    return [
        f"recipe {recipe.name}, run directory {plan.run.out}, target {info.name} ({sizes}, {recipe.target.dtype})",
        "",
        *rows,
        f"{'total':<{width + 22}}{_format_time(plan.total_hours):>12}{money}",
    ]


def _options_table(options: FeatureOptions, plan: Plan) -> list[str]:
    """Returns stored features beside features on the fly, and the number of epochs at which they cost the same."""
    months = plan.run.recipe.plan.storage_months
    duration = "a month" if months == 1 else f"{months:g} months"

    def row(name: str, option: FeatureOption) -> str:
        storage = "" if not option.storage_money else f", {option.storage_money:,.2f} for {duration}"
        stored = f"{format_bytes(option.stored_bytes)}{storage}" if option.stored_bytes else "nothing"
        money = "" if option.money is None else f"{option.money:>14,.2f}"
        times = f"{_format_time(option.read_hours):>14}{_format_time(option.train_hours):>12}"
        return f"{name:<12}{times}{money}   {stored}"

    money = "" if plan.prices.per_hour is None else f"{'money':>14}"
    title = f"{'features':<12}{'target reads':>14}{'training':>12}{money}   stored"
    lines = [title, row("stored", options.stored), row("on the fly", options.on_the_fly)]
    epochs = f"{options.epochs:.1f} epochs"
    if options.cheaper is None or options.break_even_epochs is None:
        faster = "stored" if options.stored.hours <= options.on_the_fly.hours else "on the fly"
        return [*lines, f"With {epochs}, {faster} takes fewer hours. The price of storage is unknown."]
    name = "stored" if options.cheaper == "stored" else "on the fly"
    key = "The recipe sets" if plan.run.recipe.capture.online else "For features on the fly, set"
    break_even = f"stored is cheaper from {options.break_even_epochs:.2f} epochs on"
    return [*lines, f"With {epochs}, {name} is cheaper; {break_even}. {key} capture.online=true."]


def _notes(plan: Plan) -> str:
    """Returns the sentences below the tables, one a line."""
    environment = template_environment("eyas.plan", ".")
    environment.filters["bytes"] = format_bytes
    values = {"sample_size": SAMPLE_PROMPTS, "points": POINTS, "free_bytes": _free_bytes(plan)}
    template = environment.get_template("plan_notes.txt.jinja")
    return template.render(plan=plan, num_threads=torch.get_num_threads(), **values)


def _free_bytes(plan: Plan) -> int | None:
    """Returns the free space on the disk of the run; None if the plan stores no features there."""
    captures = any(stage.stage == "capture" and stage.state != "finished" for stage in plan.stages)
    if not captures or not plan.run.recipe.plan.is_here or plan.run.recipe.features.url is not None:
        return None
    out = plan.run.out.resolve()
    return shutil.disk_usage(next(parent for parent in (out, *out.parents) if parent.is_dir())).free


def _format_time(hours: float | None) -> str:
    if hours is None:
        return "?"
    if hours == 0:
        return "-"
    seconds = hours * 3600
    return f"{hours:,.2f} h" if hours >= 0.1 else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
