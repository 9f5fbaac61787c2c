"""Computes hours and money: features stored once, or computed again in every epoch. Also the expected acceptance.

stored          capture once ──> bytes, storage costs ──> train, train, train
on the fly      read + train, read + train, read + train               no bytes, but the target reads again
"""

from dataclasses import dataclass

import numpy as np

GB = 1e9


@dataclass(frozen=True)
class Amounts:
    """The data that the stages process.

    Attributes:
        num_prompts: The number of prompts (conversations).
        num_answers: The number of answers.
        prompt_tokens: The tokens of all conversations, without the answers.
        answer_tokens: The tokens of all answers.
        counted: True if `prompts` is finished, so `num_prompts` is exact.
        answered: True if `respond` is finished. If False, `answer_tokens` is an upper limit.
    """

    num_prompts: int
    num_answers: int
    prompt_tokens: int
    answer_tokens: int
    counted: bool
    answered: bool

    @property
    def tokens(self) -> int:
        """The tokens of all conversations. Each one is a row of the features."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def answer_share(self) -> float:
        """The share of answer tokens in all tokens."""
        return self.answer_tokens / max(1, self.tokens)

    @property
    def prefill_tokens(self) -> int:
        """Tokens that the target reads while it answers: every turn reads the turns before it again."""
        turns = self.num_answers / max(self.num_prompts, 1)
        return round(self.prompt_tokens * (turns + 1) / 2 + self.answer_tokens * (turns - 1) / 2)


@dataclass(frozen=True)
class Rates:
    """Tokens per second. None: unknown.

    Attributes:
        read: The target's prefill, on one device.
        write: The target's decode.
        learn: The training.
        capture: The rate of `eyas capture` on all devices; `plan.placement` computes it.
        capture_formula: The formula of this rate and its assumptions in words; "" if the machine has one device.
    """

    read: float | None
    write: float | None
    learn: float | None
    capture: float | None = None
    capture_formula: str = ""


@dataclass(frozen=True)
class Prices:
    """Prices in one currency; None if unknown. per_gb: of 10^9 bytes for the whole storage time."""

    per_hour: float | None
    per_gb: float | None


@dataclass(frozen=True)
class FeatureOption:
    """The costs of training with stored features, or with features that each epoch computes again.

    Attributes:
        read_hours: The hours in which the target computes features.
        train_hours: The hours of training.
        stored_bytes: The size of the stored features.
        storage_money: The price of storing them; None if unknown.
        money: The price of machine and storage together; None if unknown.
    """

    read_hours: float
    train_hours: float
    stored_bytes: float
    storage_money: float | None
    money: float | None

    @property
    def hours(self) -> float:
        """The machine hours of computing the features and training."""
        return self.read_hours + self.train_hours


@dataclass(frozen=True)
class FeatureOptions:
    """The costs of stored features and of features that each epoch computes again (on the fly).

    Storing is cheaper from `break_even_epochs` epochs on; None if a price is unknown.
    """

    stored: FeatureOption
    on_the_fly: FeatureOption
    epochs: float
    break_even_epochs: float | None

    @property
    def cheaper(self) -> str | None:
        """The cheaper way, "stored" or "on_the_fly"; None if a price is unknown."""
        if self.stored.money is None or self.on_the_fly.money is None:
            return None
        return "stored" if self.stored.money <= self.on_the_fly.money else "on_the_fly"


def to_hours(tokens: float, tokens_per_s: float | None) -> float | None:
    """Returns the hours that these tokens take; None if the rate is unknown."""
    return None if tokens_per_s is None else tokens / tokens_per_s / 3600


def compare_feature_options(
    tokens: float, trained: float, held_out: float, stored_bytes: float, rates: Rates, prices: Prices
) -> FeatureOptions:
    """Returns the costs of stored features and of features computed on the fly.

    On the fly, the target reads training rows in every epoch, and held-out rows once for the evaluation. Reading and
    training are added up; on machines that do both at once the sum is the same.

    Args:
        tokens: Tokens of all conversations.
        trained: Tokens that training processes, epochs included.
        held_out: The share of held-out tokens.
        stored_bytes: Bytes of stored features.
        rates: The rates of reading and training, both known.
        prices: The prices.
    """
    assert rates.capture is not None, "the rate of reading"
    assert rates.learn is not None, "the rate of training"
    train_hours = trained / rates.learn / 3600
    once_hours = tokens / rates.capture / 3600
    again_hours = (trained + held_out * tokens) / rates.capture / 3600
    storage = None if prices.per_gb is None else stored_bytes / GB * prices.per_gb

    def option(read_hours: float, num_bytes: float, storage_money: float | None) -> FeatureOption:
        money = None
        if prices.per_hour is not None and storage_money is not None:
            money = (read_hours + train_hours) * prices.per_hour + storage_money
        return FeatureOption(read_hours, train_hours, num_bytes, storage_money, money)

    epoch_tokens = tokens * (1 - held_out)
    break_even = None
    if storage is not None and prices.per_hour and epoch_tokens:
        # storage + tokens = epochs * epoch_tokens + held_out * tokens, all as money for reading; tokens cancel out.
        break_even = 1 + storage / (once_hours * prices.per_hour) / (1 - held_out)
    return FeatureOptions(
        stored=option(once_hours, stored_bytes, storage),
        on_the_fly=option(again_hours, 0.0, 0.0),
        epochs=trained / epoch_tokens if epoch_tokens else 0.0,
        break_even_epochs=break_even,
    )


POINTS = (
    (5_000, 1.45, 1.5),  # vllm-project/speculators, examples: Llama-3-8B and Qwen3-8B
    (50_000, 1.9, 1.95),  # sgl-project/SpecForge issue 128: 1.94 on GSM8K, ShareGPT, 5 epochs
    (500_000, 2.8, 3.0),  # vllm-project/speculators pull 610: 2.82 to 3.02, Qwen3-8B, 508k own answers
)
"""Published results: (conversations of training, lowest, highest acceptance length of a chain of 5 tokens).

Measured by others, with other trainers, on chat by targets of 8 billion parameters. eyas has no such curve yet.
"""


@dataclass(frozen=True)
class Expectation:
    """An expected range of the acceptance length.

    `inside` is False if the number of conversations is outside POINTS; the range is then that of the nearest point.
    """

    low: float
    high: float
    inside: bool


def expected_acceptance(conversations: float) -> Expectation:
    """Interpolates POINTS linearly over the logarithm of the conversations. Outside them it returns the nearest one."""
    counts, *bounds = zip(*POINTS, strict=True)
    low, high = (float(np.interp(np.log(max(conversations, 1)), np.log(counts), bound)) for bound in bounds)
    return Expectation(low, high, counts[0] <= conversations <= counts[-1])
