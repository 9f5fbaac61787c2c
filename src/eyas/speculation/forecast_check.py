"""Compares the tokens and seconds that the budget expected of its rounds with those that the rounds took.

A budget whose expectations are wrong chooses wrong arms. Explorations are left out: the check is about the best arm.
"""

from dataclasses import dataclass

HALF_LIFE = 400  # rounds
MIN_ROUNDS = 20.0


@dataclass
class ForecastCheck:
    """Exponentially decaying sums over rounds of the best arm."""

    rounds: float = 0.0
    tokens: float = 0.0
    expected_tokens: float = 0.0
    seconds: float = 0.0
    expected_s: float = 0.0

    def observe(
        self, num_rounds: int, tokens: float, expected_tokens: float, seconds: float, expected_s: float
    ) -> None:
        """Adds rounds of one kind, with the sums over all of them."""
        fade = 0.5 ** (num_rounds / HALF_LIFE)
        self.rounds = self.rounds * fade + num_rounds
        self.tokens = self.tokens * fade + tokens
        self.expected_tokens = self.expected_tokens * fade + expected_tokens
        self.seconds = self.seconds * fade + seconds
        self.expected_s = self.expected_s * fade + expected_s

    def ratios(self) -> dict[str, float]:
        """Returns what happened over what was expected, for "tokens" and "seconds"; {} after too few rounds."""
        if self.rounds < MIN_ROUNDS:
            return {}
        return {"tokens": self.tokens / self.expected_tokens, "seconds": self.seconds / self.expected_s}
