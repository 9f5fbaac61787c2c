"""The plan of a run: amounts, rates, hours and money of each stage, and both ways to come by features.

Rates are measured here, on the recipe's own target, or are those that the recipe gives for other hardware
(`plan.hardware`); then only the target's sizes are needed. Amounts come from what is finished, else from the first
prompts, or from the recipe where it plans for other hardware.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from eyas.base.errors import UsageError
from eyas.costs.cost_model import Amounts, Prices, Rates, Ways, hours, ways
from eyas.costs.expected_acceptance import Expectation, expected
from eyas.data.prompts import open_prompts
from eyas.features.store import token_bytes
from eyas.model.head import Head
from eyas.model.layer_ids import check_aux_layers, default_aux_layers
from eyas.model.target_info import ModelShape, count_active_parameters, read_model_shape
from eyas.plan.amounts import amounts_of, finished_stages, told_amounts
from eyas.plan.measured_rates import measure
from eyas.recipe import STAGES, Run
from eyas.train.config import head_config

SCHEMA = 1


@dataclass(frozen=True)
class Line:
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
    lines: tuple[Line, ...]
    feature_bytes: float
    ways: Ways | None
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
        keeps = self.ways is not None and not self.run.recipe.capture.online
        rent = self.ways.stored.storage_money or 0.0 if keeps and self.ways is not None else 0.0
        return self.total_hours * self.prices.per_hour + rent

    def to_json(self) -> dict[str, Any]:
        """The object of `eyas plan --json`. Hours, bytes; money in the currency of the prices; None: not known."""
        facts, recipe = self.target.info, self.run.recipe
        both = None
        if self.ways is not None:
            chosen = "on_the_fly" if recipe.capture.online else "stored"
            both = dataclasses.asdict(self.ways) | {"cheaper": self.ways.cheaper, "chosen": chosen}
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


def make(run: Run, price_per_hour: float | None) -> Plan:
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
        amounts = amounts_of(run, opened.sources, finished)
        target, layers = (
            ModelShape(run.target.info, count_active_parameters(run.target.model)),
            run.target.aux_layer_ids,
        )
    else:
        target, finished, amounts = _blueprint(run), set[str](), told_amounts(config)
        wanted, num_layers = run.recipe.capture.aux_layer_ids, target.info.num_layers
        layers = default_aux_layers(num_layers) if wanted is None else check_aux_layers(wanted, num_layers)
    head = Head(head_config(run.recipe.train, layers, target.info))
    if config.is_here:
        rates = measure(run, amounts, set(STAGES) - finished)
    else:
        rates = Rates(config.capture_tps, config.respond_tps, config.train_tps)
    return _planned(run, target, head.num_parameters, amounts, rates, prices, finished)


def _blueprint(run: Run) -> ModelShape:
    shape = run.recipe.plan.shape
    given = None if shape is None else {k: v for k, v in dataclasses.asdict(shape).items() if v is not None}
    return read_model_shape(run.recipe.target.model, given)


def _planned(
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
    size = amounts.tokens * token_bytes(recipe.capture.dtype, target.info.hidden_size, amounts.answer_share)
    trains = recipe.target.head is None and "train" not in finished
    both = None
    if trains and "capture" not in finished and rates.read is not None and rates.learn is not None:
        both = ways(amounts.tokens, _seen(run, amounts), recipe.capture.held_out, size, rates, prices)
    share = f"{head_parameters / target.info.num_parameters:.1%} of the target"
    if target.active_parameters != target.info.num_parameters:
        share += f", {head_parameters / target.active_parameters:.1%} of what a token passes through"
    texts = _texts(run, amounts, size, f"the head has {head_parameters:,} parameters, {share}")
    times = _times(run, amounts, rates)
    lines = (
        Line(stage, "finished", texts[stage], 0.0)
        if stage in finished
        else Line(stage, "would run", texts[stage], times[stage])
        for stage in STAGES
    )
    expectation = expected(amounts.num_prompts) if trains else None
    return Plan(run, target, head_parameters, amounts, rates, prices, tuple(lines), size, both, expectation)


def _seen(run: Run, amounts: Amounts) -> float:
    """Tokens that training goes through, prompts and repetitions included."""
    train = run.recipe.train
    if train.updates is not None:
        return train.updates * train.batch_tokens * amounts.tokens / max(1, amounts.answer_tokens)
    return amounts.tokens * (1 - run.recipe.capture.held_out) * train.epochs


def _texts(run: Run, amounts: Amounts, feature_bytes: float, head: str) -> dict[str, str]:
    """What each stage works on, in words."""
    upto, most = "" if amounts.counted else "at most ", "" if amounts.answered else "at most "
    num_held_out = max(1, round(amounts.num_prompts * run.recipe.capture.held_out))
    own, online = run.recipe.target.head, run.recipe.capture.online
    kept = "their features made when they are read" if online else f"{size_text(feature_bytes)} of features"
    return {
        "prompts": f"{upto}{amounts.num_prompts:,} prompts",
        "respond": f"{upto}{amounts.num_answers:,} answers, {most}{amounts.answer_tokens:,} answer tokens",
        "capture": f"{most}{amounts.tokens:,} tokens, {kept}",
        "train": f"{most}{_seen(run, amounts):,.0f} tokens; {head}"
        if own is None
        else f"nothing: target.head is {own}",
        "eval": f"about {num_held_out:,} held-out conversations",
        "export": "directories for SGLang and vLLM",
        "bench": "baseline and speculation, the report",
    }


def _times(run: Run, amounts: Amounts, rates: Rates) -> dict[str, float | None]:
    """Hours. A server's rate has the reading of prompts in it; that of eyas's own engine is measured without."""
    plan, respond = run.recipe.plan, run.recipe.respond
    reading, writing = hours(amounts.prefill_tokens, rates.read), hours(amounts.answer_tokens, rates.write)
    if plan.is_here and respond.url is None:
        writing = None if reading is None or writing is None else reading + writing
    seen, capturing = _seen(run, amounts), hours(amounts.tokens, rates.read)
    learning = hours(seen, rates.learn) if run.recipe.target.head is None else 0.0
    if run.recipe.capture.online:  # the target reads while training asks for it
        again, capturing = hours(seen, rates.read) if learning != 0.0 else 0.0, 0.0
        learning = None if learning is None or again is None else learning + again
    known = {"prompts": 0.0, "respond": writing, "capture": capturing, "train": learning}
    return known | {"eval": None, "export": 0.0, "bench": None}


def size_text(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
