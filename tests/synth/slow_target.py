"""A stand-in for generation: answers that depend on the prompt alone, and take their time. Also a command:

python -m tests.synth.slow_target PROMPTS OUT SECONDS_PER_ANSWER
"""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.tiny import tiny_tokenizer

from eyas.synth.respond import Answered, RespondConfig, Responder, run

CONFIG = RespondConfig(max_tokens=12, part_size=5)


class SlowTarget:
    """Writes down what it was asked, and answers out of order."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked: dict[str, list[int]] = {}

    def __call__(self, prompts: list[list[int]], ids: list[str]) -> Iterator[Answered]:
        tokenizer = tiny_tokenizer()
        end = tokenizer.eos_token_id
        assert isinstance(end, int)
        for index in reversed(range(len(prompts))):
            assert ids[index] not in self.asked, "asked twice"
            self.asked[ids[index]] = prompts[index]
            time.sleep(self.seconds)
            rng = random.Random(str(prompts[index]))
            token_ids = [rng.randrange(256) for _ in range(rng.randint(1, 12))]
            if len(token_ids) < 12:
                yield Answered(index, [*token_ids, end], "stop")
            else:
                yield Answered(index, token_ids, "length")


def responder(target: SlowTarget, max_positions: int = 400, digest: str = "sha256:t") -> Responder:
    return Responder(target, tiny_tokenizer(), max_positions, digest, "sha256:k", "sha256:c")


if __name__ == "__main__":
    run(CONFIG, Path(sys.argv[1]), Path(sys.argv[2]), responder(SlowTarget(float(sys.argv[3]))), progress=False)
