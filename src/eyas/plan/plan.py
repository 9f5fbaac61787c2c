"""The plan of a run: amounts, rates, hours and money of each stage, and both ways to come by features.

Rates are measured here, on the recipe's own target, or are those that the recipe gives for other hardware
(`plan.hardware`); then only the target's sizes are needed. Amounts come from what is finished, else from the first
prompts, or from the recipe where it plans for other hardware.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from eyas.base.errors import UsageError
from eyas.costs.cost_model import (
    Amounts,
    Expectation,
    FeatureOptions,
    Prices,
    Rates,
    compare_feature_options,
    expected_acceptance,
    to_hours,
)
from eyas.data.prompts import open_prompts
from eyas.features.store import bytes_per_token
from eyas.model.head import Head
from eyas.model.layer_ids import check_aux_layers, default_aux_layers
from eyas.model.target_info import ModelShape, count_active_parameters, read_model_shape
from eyas.plan.estimates import configured_amounts, estimate_amounts, finished_stages, measure_rates
from eyas.recipe import STAGES, Run
from eyas.train.config import build_head_config

SCHEMA = 1


@dataclass(frozen=True)
class StagePlan:
    """A stage in the plan. hours: None where nothing is known of its time."""

    stage: str
    state: str
    amount: str
    hours: float | None


@dataclass(frozen=True)
class Plan:
    """Everything that is said of a run; `eyas.plan.plan_text` says it to people.

    ways: None where nothing is captured and trained. expectation: None where no head is trained.
    """

    run: Run
    target: ModelShape
    head_parameters: int
    amounts: Amounts
    rates: Rates
    prices: Prices
    lines: tuple[StagePlan, ...]
    feature_bytes: float
    options: FeatureOptions | None
    expectation: Expectation | None

    @property
    def total_hours(self) -> float:
        """Of the stages whose time is known."""
        return sum(line.hours for line in self.lines if line.hours is not None)

    @property
    def total_money(self) -> float | None:
        """Of the machine's hours, and of what keeping the features costs."""
        if self.prices.per_hour is None:
            return None
        keeps = self.options is not None and not self.run.recipe.capture.online
        rent = self.options.stored.storage_money or 0.0 if keeps and self.options is not None else 0.0
        return self.total_hours * self.prices.per_hour + rent

    def to_json(self) -> dict[str, Any]:
        """The object of `eyas plan --json`. Hours, bytes; money in the currency of the prices; None: not known."""
        facts, recipe = self.target.info, self.run.recipe
        both = None
        if self.options is not None:
            chosen = "on_the_fly" if recipe.capture.online else "stored"
            both = dataclasses.asdict(self.options) | {"cheaper": self.options.cheaper, "chosen": chosen}
        return {
            "schema": SCHEMA,
            "recipe": recipe.name,
            "hardware": recipe.plan.hardware,
            "target": {
                "name": facts.name,
                "dtype": recipe.target.dtype,
                "parameters": facts.num_parameters,
                "active_parameters": self.target.active_parameters,
            },
            "head": {
                "parameters": self.head_parameters,
                "share_of_target": self.head_parameters / facts.num_parameters,
                "share_of_active": self.head_parameters / self.target.active_parameters,
            },
            "amounts": dataclasses.asdict(self.amounts) | {"feature_bytes": self.feature_bytes},
            "rates": dataclasses.asdict(self.rates),
            "prices": dataclasses.asdict(self.prices),
            "stages": [dataclasses.asdict(line) for line in self.lines],
            "hours": self.total_hours,
            "money": self.total_money,
            "features": both,
            "expected_acceptance_length": None if self.expectation is None else dataclasses.asdict(self.expectation),
        }


def build_plan(run: Run, price_per_hour: float | None) -> Plan:
    """price_per_hour: of the machine, in any currency, instead of the recipe's `plan.price_per_hour`.

    InputError for what the run itself would refuse at its start: a missing source or target, no licence. Planned for
    other hardware, that is not looked at, but the target's sizes must be known.
    """
    config = run.recipe.plan
    price = config.price_per_hour if price_per_hour is None else price_per_hour
    if price is not None and not price >= 0:
        raise UsageError(f"--price {price}", "what an hour costs, 0 or more", "correct it")
    rent = config.storage_price_gb_month
    prices = Prices(price, None if rent is None else rent * config.storage_months)
    if config.is_here:
        opened = open_prompts(run.recipe.prompts, run.acknowledgements_file)
        run.target.require_chat_template()
        finished = finished_stages(run, opened.origin)
        amounts = estimate_amounts(run, opened.sources, finished)
        target, layers = (
            ModelShape(run.target.info, count_active_parameters(run.target.model)),
            run.target.aux_layer_ids,
        )
    else:
        target, finished, amounts = _read_target_shape(run), set[str](), configured_amounts(config)
        wanted, num_layers = run.recipe.capture.aux_layer_ids, target.info.num_layers
        layers = default_aux_layers(num_layers) if wanted is None else check_aux_layers(wanted, num_layers)
    head = Head(build_head_config(run.recipe.train, layers, target.info))
    if config.is_here:
        rates = measure_rates(run, amounts, set(STAGES) - finished)
    else:
        rates = Rates(config.capture_tps, config.respond_tps, config.train_tps)
    return _assemble_plan(run, target, head.num_parameters, amounts, rates, prices, finished)


def _read_target_shape(run: Run) -> ModelShape:
    shape = run.recipe.plan.shape
    given = None if shape is None else {k: v for k, v in dataclasses.asdict(shape).items() if v is not None}
    return read_model_shape(run.recipe.target.model, given)


def _assemble_plan(
    run: Run,
    target: ModelShape,
    head_parameters: int,
    amounts: Amounts,
    rates: Rates,
    prices: Prices,
    finished: set[str],
) -> Plan:
    recipe = run.recipe
    # One position is taught for each answer token.
    size = amounts.tokens * bytes_per_token(recipe.capture.dtype, target.info.hidden_size, amounts.answer_share)
    trains = recipe.target.head is None and "train" not in finished
    both = None
    if trains and "capture" not in finished and rates.read is not None and rates.learn is not None:
        both = compare_feature_options(
            amounts.tokens, _training_tokens(run, amounts), recipe.capture.held_out, size, rates, prices
        )
    share = f"{head_parameters / target.info.num_parameters:.1%} of the target"
    if target.active_parameters != target.info.num_parameters:
        share += f", {head_parameters / target.active_parameters:.1%} of what a token passes through"
    texts = _describe_amounts(run, amounts, size, f"the head has {head_parameters:,} parameters, {share}")
    times = _stage_hours(run, amounts, rates)
    lines = (
        StagePlan(stage, "finished", texts[stage], 0.0)
        if stage in finished
        else StagePlan(stage, "would run", texts[stage], times[stage])
        for stage in STAGES
    )
    expectation = expected_acceptance(amounts.num_prompts) if trains else None
    return Plan(run, target, head_parameters, amounts, rates, prices, tuple(lines), size, both, expectation)


def _training_tokens(run: Run, amounts: Amounts) -> float:
    """Tokens that training goes through, prompts and repetitions included."""
    train = run.recipe.train
    if train.updates is not None:
        return train.updates * train.batch_tokens * amounts.tokens / max(1, amounts.answer_tokens)
    return amounts.tokens * (1 - run.recipe.capture.held_out) * train.epochs


def _describe_amounts(run: Run, amounts: Amounts, feature_bytes: float, head: str) -> dict[str, str]:
    """What each stage works on, in words."""
    upto, most = "" if amounts.counted else "at most ", "" if amounts.answered else "at most "
    num_held_out = max(1, round(amounts.num_prompts * run.recipe.capture.held_out))
    own, online = run.recipe.target.head, run.recipe.capture.online
    kept = "their features made when they are read" if online else f"{format_bytes(feature_bytes)} of features"
    return {
        "prompts": f"{upto}{amounts.num_prompts:,} prompts",
        "respond": f"{upto}{amounts.num_answers:,} answers, {most}{amounts.answer_tokens:,} answer tokens",
        "capture": f"{most}{amounts.tokens:,} tokens, {kept}",
        "train": f"{most}{_training_tokens(run, amounts):,.0f} tokens; {head}"
        if own is None
        else f"nothing: target.head is {own}",
        "eval": f"about {num_held_out:,} held-out conversations",
        "export": "directories for SGLang and vLLM",
        "bench": "baseline and speculation, the report",
    }


def _stage_hours(run: Run, amounts: Amounts, rates: Rates) -> dict[str, float | None]:
    """Hours. A server's rate has the reading of prompts in it; that of eyas's own engine is measured without."""
    plan, respond = run.recipe.plan, run.recipe.respond
    reading, writing = to_hours(amounts.prefill_tokens, rates.read), to_hours(amounts.answer_tokens, rates.write)
    if plan.is_here and respond.url is None:
        writing = None if reading is None or writing is None else reading + writing
    seen, capturing = _training_tokens(run, amounts), to_hours(amounts.tokens, rates.read)
    learning = to_hours(seen, rates.learn) if run.recipe.target.head is None else 0.0
    if run.recipe.capture.online:  # the target reads while training asks for it
        again, capturing = to_hours(seen, rates.read) if learning != 0.0 else 0.0, 0.0
        learning = None if learning is None or again is None else learning + again
    known = {"prompts": 0.0, "respond": writing, "capture": capturing, "train": learning}
    return known | {"eval": None, "export": 0.0, "bench": None}


def format_bytes(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
