"""The plan in words, for the terminal."""

import shutil
from collections.abc import Iterator

import torch

from eyas.costs.cost_model import POINTS, FeatureOption, FeatureOptions
from eyas.plan.estimates import SAMPLE_PROMPTS
from eyas.plan.plan import Plan, format_bytes


def format_plan(plan: Plan) -> str:
    """The whole text."""
    parts = [
        _stage_table(plan),
        _options_table(plan.options, plan) if plan.options is not None else [],
        list(_notes(plan)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _stage_table(plan: Plan) -> list[str]:
    facts, recipe = plan.target.info, plan.run.recipe
    active = plan.target.active_parameters
    passes = "" if active == facts.num_parameters else f", {active:,} of them for one token"
    head = (
        f"recipe {recipe.name}, run directory {plan.run.out}, "
        f"target {facts.name} ({facts.num_parameters:,} parameters{passes}, {recipe.target.dtype})"
    )
    width = max(len(line.amount) for line in plan.lines)
    rows = [
        f"{line.stage:<9}{line.state:<11}{line.amount:<{width + 2}}{_format_time(line.hours):>12}"
        for line in plan.lines
    ]
    money, price = "", plan.prices.per_hour
    if plan.total_money is not None and price is not None:
        rent = ", storage included" if plan.total_money > plan.total_hours * price else ""
        money = f"  {plan.total_money:,.2f} at {price:,.2f} an hour{rent}"
    return [head, "", *rows, f"{'total':<{width + 22}}{_format_time(plan.total_hours):>12}{money}"]


def _options_table(ways: FeatureOptions, plan: Plan) -> list[str]:
    """Stored beside on the fly, and where they meet."""
    months = plan.run.recipe.plan.storage_months
    kept_for = "a month" if months == 1 else f"{months:g} months"

    def row(name: str, way: FeatureOption) -> str:
        rent = "" if not way.storage_money else f", {way.storage_money:,.2f} for {kept_for}"
        kept = f"{format_bytes(way.stored_bytes)}{rent}" if way.stored_bytes else "nothing kept"
        money = "" if way.money is None else f"{way.money:>14,.2f}"
        return f"{name:<12}{_format_time(way.read_hours):>14}{_format_time(way.train_hours):>12}{money}   {kept}"

    title = "" if plan.prices.per_hour is None else f"{'money':>14}"
    lines = [
        f"{'features':<12}{'target reads':>14}{'training':>12}{title}",
        row("stored", ways.stored),
        row("on the fly", ways.on_the_fly),
    ]
    if ways.cheaper is None or ways.break_even_epochs is None:
        sooner = "stored" if ways.stored.hours <= ways.on_the_fly.hours else "on the fly"
        return [*lines, f"{sooner} takes fewer hours at {ways.epochs:.1f} epochs; what storage costs is not known"]
    name = "stored" if ways.cheaper == "stored" else "on the fly"
    said = (
        "as the recipe says, capture.online" if plan.run.recipe.capture.online else "capture.online=true for on the fly"
    )
    return [
        *lines,
        f"{name} is cheaper at {ways.epochs:.1f} epochs; stored from {ways.break_even_epochs:.2f} epochs on ({said})",
    ]


def _notes(plan: Plan) -> Iterator[str]:
    known = _format_rates(plan)
    config = plan.run.recipe.plan
    if known and config.is_here:
        threads = torch.get_num_threads()
        yield f"measured on this machine for a few seconds, {threads} threads: {'; '.join(known)}"
    if not config.is_here:
        yield (
            f"for {config.hardware}, by the rates and amounts of the recipe's table [plan], not measured here: "
            f"{'; '.join(known)}"
        )
        yield f"{plan.run.out} was not looked at; plan.hardware=here measures on this machine, and only what is left"
    estimated = []
    if not plan.amounts.counted:
        estimated.append("the number of prompts (what the screens drop is not known yet)")
    if not plan.amounts.answered:
        most = "respond.max_tokens allows"
        if plan.run.recipe.respond.tasks:
            most = "respond.max_tokens, its task's own where it has one, allows"
        estimated.append(f"lengths, from the first {SAMPLE_PROMPTS} prompts, each answer as long as {most}")
    if known:
        estimated.append("all times, from these rates")
    if estimated:
        yield f"estimated: {'; '.join(estimated)}"
    unknown = [line.stage for line in plan.lines if line.hours is None]
    if unknown:
        yield f"not in the total: {', '.join(unknown)}, whose time is not estimated"
    if "respond" in unknown and plan.run.recipe.respond.url is not None:
        yield "a server answers: plan.respond_tps=..., its output tokens a second, would put respond into the total"
    yield from _format_expectation(plan)
    kept_here = config.is_here and plan.run.recipe.features.url is None
    if kept_here and any(line.stage == "capture" and line.state != "finished" for line in plan.lines):
        place = next(parent for parent in (plan.run.out.resolve(), *plan.run.out.resolve().parents) if parent.is_dir())
        free = shutil.disk_usage(place).free
        lack = "" if free > plan.feature_bytes else ": too little for the features"
        yield f"free on the disk of {plan.run.out}: {format_bytes(free)}{lack}"


def _format_rates(plan: Plan) -> list[str]:
    respond = plan.run.recipe.respond
    at_once = f", {respond.batch_size} answers at once" if plan.run.recipe.plan.is_here and respond.url is None else ""
    named = {
        "the target reads {:,.0f} tokens/s": plan.rates.read,
        f"it writes {{:,.0f}} tokens/s{at_once}": plan.rates.write,
        "training goes through {:,.0f} tokens/s": plan.rates.learn,
    }
    known = [text.format(rate) for text, rate in named.items() if rate is not None]
    if plan.options is not None and plan.rates.learn is not None and not plan.run.recipe.capture.online:
        speed = plan.rates.learn * plan.feature_bytes / max(1, plan.amounts.tokens)
        known.append(f"so it reads {format_bytes(speed)} of features a second")
    return known


def _format_expectation(plan: Plan) -> Iterator[str]:
    if plan.expectation is None:
        return
    low, high = plan.expectation.low, plan.expectation.high
    count = f"{plan.amounts.num_prompts:,} conversations"
    first, last = POINTS[0].conversations, POINTS[-1].conversations
    if plan.expectation.inside:
        said = f"{count}: {low:.2f} to {high:.2f} tokens a forward of the target"
    else:
        near = "the fewest" if plan.amounts.num_prompts < first else "the most"
        end = first if near == "the fewest" else last
        said = f"{count}: not known; {near} that were measured, {end:,}, gave {low:.2f} to {high:.2f}"
    yield (
        f"acceptance length to expect of {said}. Others measured that (chains of 5, chat, targets of 8 billion "
        "parameters, other trainers; docs/training.md), not eyas, and other data will give another"
    )


def _format_time(hours: float | None) -> str:
    if hours is None:
        return "?"
    if hours == 0:
        return "-"
    seconds = hours * 3600
    return f"{hours:,.2f} h" if hours >= 0.1 else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
