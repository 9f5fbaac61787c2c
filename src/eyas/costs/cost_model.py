"""Amounts, rates and the sums of both: features that are stored, against features made anew in every epoch.

stored          capture once ──> bytes, a month's rent ──> train, train, train
on the fly      read + train, read + train, read + train                         no bytes, the target reads again

What acceptance length to expect of how much data: measured by others, until eyas has a curve of its own.
"""

import math
from dataclasses import dataclass

GB = 1e9


@dataclass(frozen=True)
class Amounts:
    """What the stages work on. Where `answered` is false the answer tokens are the most there can be."""

    num_prompts: int
    num_answers: int
    prompt_tokens: int  # of all conversations, without the answers
    answer_tokens: int
    counted: bool  # the prompts are finished, so their number is known
    answered: bool

    @property
    def tokens(self) -> int:
        """Rows of features."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def answer_share(self) -> float:
        """Of all tokens."""
        return self.answer_tokens / max(1, self.tokens)

    @property
    def prefill_tokens(self) -> int:
        """What the target reads while it answers: every turn reads the turns before it once more."""
        turns = self.num_answers / max(self.num_prompts, 1)
        return round(self.prompt_tokens * (turns + 1) / 2 + self.answer_tokens * (turns - 1) / 2)


@dataclass(frozen=True)
class Rates:
    """Tokens a second; None where it is not known, or the stage would not run."""

    read: float | None
    write: float | None
    learn: float | None


@dataclass(frozen=True)
class Prices:
    """In one currency; None where nothing is said. per_gb: 10^9 bytes for as long as the features are kept."""

    per_hour: float | None
    per_gb: float | None


@dataclass(frozen=True)
class FeatureOption:
    """One way to come by features: hours of the machine for reading and for training, money with storage in it."""

    read_hours: float
    train_hours: float
    stored_bytes: float
    storage_money: float | None
    money: float | None

    @property
    def hours(self) -> float:
        return self.read_hours + self.train_hours


@dataclass(frozen=True)
class FeatureOptions:
    """Both, and from how many epochs on storing is the cheaper one; None where a price is missing."""

    stored: FeatureOption
    on_the_fly: FeatureOption
    epochs: float
    break_even_epochs: float | None

    @property
    def cheaper(self) -> str | None:
        """By money: "stored" or "on_the_fly"; None where a price is missing."""
        if self.stored.money is None or self.on_the_fly.money is None:
            return None
        return "stored" if self.stored.money <= self.on_the_fly.money else "on_the_fly"


def to_hours(tokens: float, rate: float | None) -> float | None:
    """Of so many tokens at so many a second."""
    return None if rate is None else tokens / rate / 3600


def compare_feature_options(
    tokens: float, trained: float, held_out: float, stored_bytes: float, rates: Rates, prices: Prices
) -> FeatureOptions:
    """tokens: of all texts. trained: those that training goes through, epochs included. held_out: share of the texts.

    On the fly the target reads what is trained on in every epoch, and what is held out once, for the evaluation. Both
    ways read and train one after the other; on machines that do both at once the sum is the same. Both rates must be
    known.
    """
    assert rates.read is not None, "ask for no ways without a rate of reading"
    assert rates.learn is not None, "ask for no ways without a rate of training"
    train_hours = trained / rates.learn / 3600
    once_hours = tokens / rates.read / 3600
    again_hours = (trained + held_out * tokens) / rates.read / 3600
    rent = None if prices.per_gb is None else stored_bytes / GB * prices.per_gb

    def money(spent_hours: float, besides: float | None) -> float | None:
        return None if prices.per_hour is None or besides is None else spent_hours * prices.per_hour + besides

    stored = FeatureOption(once_hours, train_hours, stored_bytes, rent, money(once_hours + train_hours, rent))
    fly = FeatureOption(again_hours, train_hours, 0.0, 0.0, money(again_hours + train_hours, 0.0))
    epoch_tokens = tokens * (1 - held_out)
    even = None
    if rent is not None and prices.per_hour and epoch_tokens:
        # rent + tokens = epochs * epoch_tokens + held_out * tokens, all in money for reading; tokens cancel out.
        even = 1 + rent / (once_hours * prices.per_hour) / (1 - held_out)
    return FeatureOptions(stored, fly, trained / epoch_tokens if epoch_tokens else 0.0, even)


@dataclass(frozen=True)
class MeasuredPoint:
    """Conversations to learn from -> tokens per target forward of a chain of 5, from `low` to `high`."""

    conversations: int
    low: float
    high: float
    source: str


POINTS = (
    MeasuredPoint(5_000, 1.45, 1.5, "vllm-project/speculators, examples: Llama-3-8B and Qwen3-8B, 5k conversations"),
    MeasuredPoint(50_000, 1.9, 1.95, "sgl-project/SpecForge issue 128: 1.94 on GSM8K after 50k of ShareGPT, 5 epochs"),
    MeasuredPoint(
        500_000, 2.8, 3.0, "vllm-project/speculators pull 610: 2.82 to 3.02, Qwen3-8B, 508k answers of its own"
    ),
)
"""All on chat in natural language by targets of 8 billion parameters, and by other trainers than this one."""


@dataclass(frozen=True)
class Expectation:
    """inside: the number of conversations lies among those that somebody measured; else the nearest point's range."""

    low: float
    high: float
    inside: bool


def expected_acceptance(conversations: float) -> Expectation:
    """On a straight line over the logarithm of the conversations, between the points; beyond them the last one's."""
    first, last = POINTS[0], POINTS[-1]
    if not first.conversations <= conversations <= last.conversations:
        end = first if conversations < first.conversations else last
        return Expectation(end.low, end.high, False)
    right = next(index for index in range(1, len(POINTS)) if conversations <= POINTS[index].conversations)
    a, b = POINTS[right - 1], POINTS[right]
    share = math.log(conversations / a.conversations) / math.log(b.conversations / a.conversations)
    return Expectation(a.low + share * (b.low - a.low), a.high + share * (b.high - a.high), True)
