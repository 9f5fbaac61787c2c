"""The figures of docs/drift.md are those of the code."""

from pathlib import Path

from eyas.engine import canary
from eyas.monitoring import drift_report as compare
from eyas.monitoring import prompt_sampler as sampler

PAGE = (Path(__file__).parents[2] / "docs" / "drift.md").read_text(encoding="utf-8")


def test_its_figures():
    for said in (
        f"{sampler.MIN_ROUNDS} drafted rounds",
        f"run {sampler.MIN_ARM_ROUNDS} rounds",
        f"a queue of {sampler.QUEUE_SIZE} answers",
        f"{sampler.PROMPTS_BYTES // 2**20} MiB;",
        f"Two files of {sampler.LOG_BYTES // 2**20} MiB",
        f"fewer than {compare.MIN_ROUNDS} rounds",
        f"fewer than {compare.MIN_REQUESTS} answers",
        f"below {1 - compare.MARGIN:.0%}".replace("%", " %"),
        f"After {canary.FIRST_ANALYSIS} answers of each head",
        "|".join(sampler.OUTCOMES),
    ):
        assert said in PAGE, said
