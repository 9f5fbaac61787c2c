"""The state of a batch bucket in the budget: the arm that it runs, and how long batch sizes stay in it."""

from dataclasses import dataclass

PAYBACK_ROUNDS = 500  # over which the time of a read is spread, at most
STAY_GAIN = 0.2  # of the latest stay in the mean


@dataclass
class Incumbent:
    """The arm that a batch bucket runs, and the state of its survey.

    Attributes:
        arm: The index of the arm.
        survey_rounds: The number of survey rounds of each arm.
        num_times_beaten: The number of rounds in a row in which another arm was better.
        surveyed_last: True if the last round was open for a survey; the next one is then not.
        survey_open: True if there is an arm left to survey.
        rounds_to_skip: The number of rounds before the arms are compared again.
        stay: The number of rounds since the batch size came to the bucket.
        num_stays: How often the batch size has left the bucket.
        mean_stay: The average of `stay` at these times.
    """

    arm: int
    survey_rounds: list[int]
    num_times_beaten: int = 0
    surveyed_last: bool = False
    survey_open: bool = True
    rounds_to_skip: int = 0
    stay: int = 0
    num_stays: int = 0
    mean_stay: float = PAYBACK_ROUNDS

    @property
    def usual_stay(self) -> float:
        """The number of rounds over which the time of a read is spread."""
        return min(max(self.mean_stay, self.stay), PAYBACK_ROUNDS)

    def end_stay(self) -> None:
        """Counts a stay, because the batch size has left the bucket."""
        self.num_stays += 1
        self.mean_stay += max(STAY_GAIN, 1 / self.num_stays) * (self.stay - self.mean_stay)
        self.stay = 0
