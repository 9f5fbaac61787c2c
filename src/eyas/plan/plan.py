"""Plans a run: what is finished, what would run, and the amounts, hours and money of each stage (`eyas plan`).

Rates are measured on this machine with the recipe's own target, or the recipe gives them for other hardware
(`plan.hardware`); then only the target's sizes are needed. Amounts come from finished stages, else from the first
prompts, or from the recipe if it plans for other hardware. Nothing is written.
"""

from collections.abc import Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from eyas.base.errors import UsageError
from eyas.costs import cost_model
from eyas.costs.cost_model import Amounts, Prices, Rates, to_hours
from eyas.data.prompts import open_prompts
from eyas.features.capture import print_chosen_layers
from eyas.features.store import bytes_per_token
from eyas.model.layer_ids import check_aux_layers, choose_aux_layers
from eyas.model.target_info import ModelShape, count_active_parameters, read_model_shape
from eyas.plan.estimates import configured_amounts, estimate_amounts, finished_stages, measure_rates
from eyas.plan.placement import divide_capture
from eyas.recipe import STAGES, Recipe, Run
from eyas.train.config import build_head_config

SCHEMA = 1


@dataclass(frozen=True)
class StagePlan:
    """A stage of the plan.

    Attributes:
        stage: The name of the stage.
        state: "finished" or "would run".
        amount: The work of the stage in words.
        hours: The hours of the stage; None if they are unknown.
        money: The price of these hours on all machines; None if it is unknown.
        machines: The machines of its job on Vertex AI, such as "2 x a3-highgpu-8g, spot"; "" without prices of jobs.
    """

    stage: str
    state: str
    amount: str
    hours: float | None
    money: float | None
    machines: str


@dataclass(frozen=True)
class Plan:
    """The plan of a run; `plan_text` formats it.

    `options` is None if no head is trained, or if the features are already captured. `expectation` is None if no head
    is trained.
    """

    run: Run
    target: ModelShape
    head_parameters: int
    amounts: Amounts
    rates: Rates
    prices: Prices
    stages: tuple[StagePlan, ...]
    feature_bytes: float
    options: cost_model.FeatureOptions | None
    expectation: cost_model.Expectation | None

    @property
    def total_hours(self) -> float:
        """Hours of the stages whose time is known."""
        return sum(stage.hours for stage in self.stages if stage.hours is not None)

    @property
    def total_money(self) -> float | None:
        """The price of the stages whose time is known and of stored features; None without a price."""
        spent = [stage.money for stage in self.stages if stage.hours is not None]
        storage = self.options.stored.storage_money if self.options and not self.run.recipe.capture.online else None
        return None if None in spent else sum(money or 0.0 for money in (*spent, storage))

    def to_json(self) -> dict[str, Any]:
        """Returns the object of `eyas plan --json`. Money is in the currency of the prices; None: unknown."""
        info, recipe, features = self.target.info, self.run.recipe, None
        active, size = self.target.active_parameters, self.head_parameters
        target = {"parameters": info.num_parameters, "active_parameters": active}
        head = {"share_of_target": size / info.num_parameters, "share_of_active": size / active}
        if self.options is not None:
            chosen = "on_the_fly" if recipe.capture.online else "stored"
            features = asdict(self.options) | {"cheaper": self.options.cheaper, "chosen": chosen}
        return {
            "schema": SCHEMA,
            "recipe": recipe.name,
            "hardware": recipe.plan.hardware,
            "target": {"name": info.name, "dtype": recipe.target.dtype, **target},
            "head": {"parameters": size, **head},
            "amounts": asdict(self.amounts) | {"feature_bytes": self.feature_bytes},
            "rates": asdict(self.rates),
            "prices": asdict(self.prices),
            "stages": [asdict(stage) for stage in self.stages],
            "hours": self.total_hours,
            "money": self.total_money,
            "features": features,
            "expected_acceptance_length": None if self.expectation is None else asdict(self.expectation),
        }


def build_plan(run: Run, price_per_hour: float | None) -> Plan:
    """Returns the plan of a run.

    Args:
        run: The recipe and its run directory.
        price_per_hour: The price of the machine in any currency, instead of the recipe's `plan.price_per_hour`.

    Raises:
        UsageError: If the price is negative.
        InputError: If a source or the target is missing, or no license permits the run. For other hardware only the
            target's sizes are needed.
    """
    config = run.recipe.plan
    price = config.price_per_hour if price_per_hour is None else price_per_hour
    if price is not None and not price >= 0:
        raise UsageError(f"--price {price} is not a price", "Pass the price of an hour, 0 or more")
    storage = config.storage_price_gb_month
    prices = Prices(price, None if storage is None else storage * config.storage_months)
    if config.is_here:
        opened = open_prompts(run.recipe.prompts, run.acknowledgements_file)
        run.target.require_chat_template()
        finished = finished_stages(run, opened.origin)
        amounts = estimate_amounts(run, opened.sources, finished)
        target = ModelShape(run.target.info, count_active_parameters(run.target.model))
        layers, rates = run.target.aux_layer_ids, measure_rates(run, amounts, set(STAGES) - finished)
    else:
        sizes = {} if config.shape is None else asdict(config.shape)
        target = read_model_shape(run.recipe.target.model, {k: v for k, v in sizes.items() if v is not None} or None)
        finished, amounts = set[str](), configured_amounts(config)
        layers, num_layers = run.recipe.capture.aux_layer_ids, target.info.num_layers
        if layers is None:
            print_chosen_layers(layers := choose_aux_layers(num_layers), num_layers)
        layers = check_aux_layers(layers, num_layers)
        rates = Rates(config.capture_tps, config.respond_tps, config.train_tps)
    sizes = build_head_config(run.recipe.train, layers, target.info)
    head = sizes.head_class(sizes)
    rates = divide_capture(run.recipe, target.info, rates, bool(_job_machines(run.recipe, 0.0)))
    return _assemble_plan(run, target, head.num_parameters, amounts, rates, prices, finished)


def _assemble_plan(
    run: Run,
    target: ModelShape,
    head_parameters: int,
    amounts: Amounts,
    rates: Rates,
    prices: Prices,
    finished: Set[str],
) -> Plan:
    recipe, info, machines = run.recipe, target.info, _job_machines(run.recipe, prices.per_hour or 0.0)
    # Each answer token has one teacher position.
    size = amounts.tokens * bytes_per_token(recipe.capture.dtype, info.hidden_size, amounts.answer_share)
    is_trained = recipe.target.head is None and "train" not in finished
    options = None
    if is_trained and "capture" not in finished and rates.read is not None and rates.learn is not None:
        trained = _training_tokens(run, amounts)
        own = replace(prices, per_hour=machines["train"][2]) if machines else prices
        options = cost_model.compare_feature_options(amounts.tokens, trained, recipe.capture.held_out, size, rates, own)
    head = f"head of {head_parameters:,} parameters, {head_parameters / info.num_parameters:.1%} of the target"
    if target.active_parameters != info.num_parameters:
        head += f" and {head_parameters / target.active_parameters:.1%} of its active parameters"
    work, times = _describe_work(run, amounts, size, head), _estimate_hours(run, amounts, rates)
    stages = []
    for stage in STAGES:
        count, machine, price = machines.get(stage, (1, "", 0.0 if machines else prices.per_hour))
        state, hours = ("finished", 0.0) if stage in finished else ("would run", times[stage])
        money = None if hours is None or price is None else hours * price
        name = machine and f"{count} x {machine}"
        stages.append(StagePlan(stage, state, work[stage], hours and hours / count, money, name))
    expectation = cost_model.expected_acceptance(amounts.num_prompts) if is_trained else None
    return Plan(run, target, head_parameters, amounts, rates, prices, tuple(stages), size, options, expectation)


def _job_machines(recipe: Recipe, server_price: float) -> dict[str, tuple[int, str, float | None]]:
    """Returns number, type and hourly price of the machines of each job on Vertex AI; {} if the recipe has no prices.

    If another server answers, the hours of `respond` cost `server_price` as well.
    """
    jobs = recipe.deploy.vertex.jobs
    if recipe.plan.is_here or jobs.price_per_hour is None:
        return {}
    machine, price = jobs.machine_type, jobs.price_per_hour
    answering: tuple[str, float | None] = (machine, price)
    if recipe.respond.url is not None:
        cpu_price = jobs.cpu_price_per_hour
        answering = (jobs.cpu_machine_type, None if cpu_price is None else cpu_price + server_price)
    other = (f"{machine}, spot", jobs.spot_price_per_hour) if jobs.spot else (machine, price)
    counts = {"respond": 1, "capture": recipe.capture.world, "train": jobs.train_machines, "eval": 1, "export": 1}
    kinds = [(stage, count, answering if stage == "respond" else other) for stage, count in counts.items()]
    return {stage: (count, name, money) for stage, count, (name, money) in kinds}


def _training_tokens(run: Run, amounts: Amounts) -> float:
    """Returns the tokens that training processes, prompts and epochs included."""
    train = run.recipe.train
    if train.updates is not None:
        return train.updates * train.batch_tokens * amounts.tokens / max(1, amounts.answer_tokens)
    return amounts.tokens * (1 - run.recipe.capture.held_out) * train.epochs


def _describe_work(run: Run, amounts: Amounts, feature_bytes: float, head: str) -> dict[str, str]:
    """Returns the work of each stage in words."""
    recipe = run.recipe
    prompts, answers = ("" if known else "at most " for known in (amounts.counted, amounts.answered))
    num_held_out = max(1, round(amounts.num_prompts * recipe.capture.held_out))
    features = "features on the fly" if recipe.capture.online else f"{format_bytes(feature_bytes)} of features"
    train = f"{answers}{_training_tokens(run, amounts):,.0f} tokens; {head}"
    return {
        "prompts": f"{prompts}{amounts.num_prompts:,} prompts",
        "respond": f"{prompts}{amounts.num_answers:,} answers, {answers}{amounts.answer_tokens:,} answer tokens",
        "capture": f"{answers}{amounts.tokens:,} tokens, {features}",
        "train": train if recipe.target.head is None else f"nothing: target.head is {recipe.target.head}",
        "eval": f"about {num_held_out:,} held-out conversations",
        "export": "directories for SGLang and vLLM",
        "bench": "baseline and speculation, report",
    }


def _estimate_hours(run: Run, amounts: Amounts, rates: Rates) -> dict[str, float | None]:
    """Returns the hours of each stage; None if unknown. Prefill is added for eyas's engine; a server's rate has it."""
    recipe = run.recipe
    reading, writing = to_hours(amounts.prefill_tokens, rates.read), to_hours(amounts.answer_tokens, rates.write)
    if recipe.plan.is_here and recipe.respond.url is None:
        writing = None if reading is None or writing is None else reading + writing
    trained, capturing = _training_tokens(run, amounts), to_hours(amounts.tokens, rates.capture)
    training = to_hours(trained, rates.learn) if recipe.target.head is None else 0.0
    if recipe.capture.online:  # the target reads while training needs the features
        again, capturing = to_hours(trained, rates.capture) if training != 0.0 else 0.0, 0.0
        training = None if training is None or again is None else training + again
    hours = {"prompts": 0.0, "respond": writing, "capture": capturing, "train": training}
    return hours | {"eval": None, "export": 0.0, "bench": None}


def format_bytes(num_bytes: float) -> str:
    """Returns a size with its unit, for example 14.8 kB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
