"""Amounts, rates and the sums of both: features that are stored, against features made anew in every epoch.

stored          capture once ──> bytes, a month's rent ──> train, train, train
on the fly      read + train, read + train, read + train                         no bytes, the target reads again
"""

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
class Way:
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
class Ways:
    """Both, and from how many epochs on storing is the cheaper one; None where a price is missing."""

    stored: Way
    on_the_fly: Way
    epochs: float
    break_even_epochs: float | None

    @property
    def cheaper(self) -> str | None:
        """By money: "stored" or "on_the_fly"; None where a price is missing."""
        if self.stored.money is None or self.on_the_fly.money is None:
            return None
        return "stored" if self.stored.money <= self.on_the_fly.money else "on_the_fly"


def hours(tokens: float, rate: float | None) -> float | None:
    """Of so many tokens at so many a second."""
    return None if rate is None else tokens / rate / 3600


def ways(tokens: float, trained: float, held_out: float, stored_bytes: float, rates: Rates, prices: Prices) -> Ways:
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

    stored = Way(once_hours, train_hours, stored_bytes, rent, money(once_hours + train_hours, rent))
    fly = Way(again_hours, train_hours, 0.0, 0.0, money(again_hours + train_hours, 0.0))
    epoch_tokens = tokens * (1 - held_out)
    even = None
    if rent is not None and prices.per_hour and epoch_tokens:
        # rent + tokens = epochs * epoch_tokens + held_out * tokens, all in money for reading; tokens cancel out.
        even = 1 + rent / (once_hours * prices.per_hour) / (1 - held_out)
    return Ways(stored, fly, trained / epoch_tokens if epoch_tokens else 0.0, even)
