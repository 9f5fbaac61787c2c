"""Formats a plan as text for the terminal."""

import shutil
from collections.abc import Iterator

import torch

from eyas.costs.cost_model import POINTS, FeatureOption, FeatureOptions
from eyas.plan.estimates import SAMPLE_PROMPTS
from eyas.plan.plan import Plan, format_bytes


def format_plan(plan: Plan) -> str:
    """Returns the tables of stages and feature options, and notes."""
    options = [] if plan.options is None else _options_table(plan.options, plan)
    parts = [_stage_table(plan), options, list(_notes(plan))]
    return "\n\n".join("\n".join(part) for part in parts if part)


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


def _notes(plan: Plan) -> Iterator[str]:
    rates, config, recipe = _format_rates(plan), plan.run.recipe.plan, plan.run.recipe
    if rates and config.is_here:
        threads = f"{count} threads" if (count := torch.get_num_threads()) > 1 else "1 thread"
        yield f"Measured on this machine for a few seconds, with {threads}: {'; '.join(rates)}."
    if not config.is_here:
        yield f"For {config.hardware}, with rates and amounts of the recipe's table [plan]: {'; '.join(rates)}."
        yield f"{plan.run.out} was not read. Set plan.hardware=here to measure here and to skip finished stages."
    if plan.rates.capture_formula:
        yield plan.rates.capture_formula
    estimated = []
    if not plan.amounts.counted:
        estimated.append("the number of prompts, because screening drops some")
    if not plan.amounts.answered:
        limit = "respond.max_tokens" + (" or the limit of its task" if recipe.respond.tasks else "")
        estimated.append(f"lengths, from the first {SAMPLE_PROMPTS} prompts, each answer as long as {limit} allows")
    if rates:
        estimated.append("all times, from these rates")
    if estimated:
        yield f"Estimated: {'; '.join(estimated)}."
    unknown = [stage.stage for stage in plan.stages if stage.hours is None]
    if unknown:
        yield f"Not in the total, because their time is unknown: {', '.join(unknown)}."
    if "respond" in unknown and recipe.respond.url is not None:
        yield "To include respond, set plan.respond_tps to the output tokens/s of its server."
    yield from _format_expectation(plan)
    is_stored_here = config.is_here and recipe.features.url is None
    if is_stored_here and any(stage.stage == "capture" and stage.state != "finished" for stage in plan.stages):
        out = plan.run.out.resolve()
        free = shutil.disk_usage(next(parent for parent in (out, *out.parents) if parent.is_dir())).free
        lack = "." if free > plan.feature_bytes else ": too little for the features. Set features.url to another disk."
        yield f"Free space on the disk of {plan.run.out}: {format_bytes(free)}{lack}"


def _format_rates(plan: Plan) -> list[str]:
    recipe, rates = plan.run.recipe, plan.rates
    texts, at_once = [], ""
    if recipe.plan.is_here and recipe.respond.url is None:
        at_once = f" with {recipe.respond.batch_size} answers at once"
    if rates.read is not None:
        texts.append(f"the target reads {rates.read:,.0f} tokens/s{' on one device' if rates.capture_formula else ''}")
    if rates.write is not None:
        texts.append(f"it generates {rates.write:,.0f} tokens/s{at_once}")
    if rates.learn is not None:
        texts.append(f"training processes {rates.learn:,.0f} tokens/s")
        if plan.options is not None and not recipe.capture.online:
            speed = rates.learn * plan.feature_bytes / max(1, plan.amounts.tokens)
            texts.append(f"so it reads {format_bytes(speed)}/s of features")
    return texts


def _format_expectation(plan: Plan) -> Iterator[str]:
    if plan.expectation is None:
        return
    length = f"{plan.expectation.low:.2f} to {plan.expectation.high:.2f} tokens per target forward"
    count = f"{plan.amounts.num_prompts:,} conversations"
    if plan.expectation.inside:
        yield f"Expected acceptance length with {count}: {length}."
    else:
        few = plan.amounts.num_prompts < POINTS[0][0]
        nearest = f"{'fewest' if few else 'most'} measured, {POINTS[0 if few else -1][0]:,}"
        yield f"Expected acceptance length with {count}: unknown. The {nearest}, gave {length}."
    yield (
        "These figures are not from eyas: others measured them, with chains of 5, chat data, targets of 8 billion "
        "parameters and other trainers (docs/planning.md)."
    )


def _format_time(hours: float | None) -> str:
    if hours is None:
        return "?"
    if hours == 0:
        return "-"
    seconds = hours * 3600
    return f"{hours:,.2f} h" if hours >= 0.1 else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
