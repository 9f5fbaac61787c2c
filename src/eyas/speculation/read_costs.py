"""Estimates what it costs that a head reads text before it drafts: new prompts, and tokens of rounds without drafts.

New prompts. The head must read a new prompt before it drafts. And where requests draft, their answers end at different
times, so that more rounds also read prompts, and new requests wait for them: PREFILL_SHARE of a forward for each
prompt. The time for both is divided by the generated tokens.
"""

from collections.abc import Callable

from eyas.speculation.batch_load import BatchLoad

READ_DECAY = 0.5 ** (1 / 400)  # each round: the average over new prompts has a half-life of 400 rounds
REMAINING_TOKENS = 128  # expected remaining output tokens of a running request
PREFILL_SHARE = 0.25  # SmolLM2, 16 streams on a CPU with AMX: 0.26 when prompts and rounds did not share forwards
LEARN_GAIN = 0.1  # of one read, in the logarithm of `_ratio`
MIN_RATIO, MAX_RATIO = 0.1, 2.0  # of one read


class ReadCosts:
    """The seconds of reads. They start from a measurement, and are corrected by the rounds that begin with a read."""

    def __init__(self, measured_s: Callable[[int], float], forward_s: float) -> None:
        """Initializes the seconds of reads from a measurement.

        Args:
            measured_s: returns the seconds that the head takes to read a given number of tokens.
            forward_s: the seconds of the target's forward over one token.
        """
        self._measured_s, self._forward_s = measured_s, forward_s
        self._ratio = 1.0  # of the seconds of a read to the measured ones
        self._new_s, self._tokens = 0.0, 0.0  # faded sums: seconds for new prompts, and generated tokens

    def seconds(self, num_tokens: int) -> float:
        """Returns the seconds in which the head reads so many tokens."""
        return self._ratio * self._measured_s(num_tokens) if num_tokens else 0.0

    def count_prompts(self, load: BatchLoad) -> None:
        """Adds the new prompts of a round."""
        self._new_s += self.seconds(load.new_prompt_tokens) + PREFILL_SHARE * load.num_new * self._forward_s

    def count_tokens(self, num_tokens: int) -> None:
        """Adds the generated tokens of a round."""
        self._new_s *= READ_DECAY
        self._tokens = (self._tokens + num_tokens) * READ_DECAY

    def of(self, load: BatchLoad) -> tuple[float, float]:
        """Returns the seconds of reading all lagging tokens, and those for new prompts per generated token."""
        token_s = self._new_s / max(self._tokens, REMAINING_TOKENS * load.num_requests)
        return self.seconds(sum(load.draft_lags)), token_s

    def learn(self, expected_s: float, seconds: float) -> None:
        """Corrects the seconds of reads by one of them. Its time is uncertain, so its weight is small."""
        self._ratio *= min(max(seconds / expected_s, MIN_RATIO), MAX_RATIO) ** LEARN_GAIN
