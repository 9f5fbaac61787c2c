"""A stand-in for generation: answers that depend on the prompt alone, and take their time. Also a command:

python -m tests.data.answers.slow_target PROMPTS OUT SECONDS_PER_ANSWER
"""

import itertools
import random
import sys
import time
from collections.abc import Generator
from pathlib import Path

from tests.tiny import tiny_tokenizer

from eyas.data.answers.respond import run
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, Question, QuestionQueue, Responder, ResponderEvent

CONFIG = RespondConfig(max_tokens=12, part_size=5)
AT_ONCE = 5


class SlowTarget:
    """Writes down what it was asked, and answers out of order."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked: dict[str, list[int]] = {}

    def __call__(self, questions: QuestionQueue) -> Generator[ResponderEvent, None, None]:
        while batch := list(itertools.islice(iter(questions.next, None), AT_ONCE)):
            for question in reversed(batch):
                assert question.id not in self.asked, "asked twice"
                self.asked[question.id] = question.prompt_ids
                time.sleep(self.seconds)
                yield self.answer(question)

    def answer(self, question: Question) -> ResponderEvent:
        end = tiny_tokenizer().eos_token_id
        assert isinstance(end, int)
        rng = random.Random(str(question.prompt_ids))
        token_ids = [rng.randrange(33, 256) for _ in range(min(rng.randint(1, 14), 12))]
        if len(token_ids) < 12:
            return Answered(question.id, [*token_ids, end], "stop")
        return Answered(question.id, token_ids, "length")


def responder(target: SlowTarget, max_positions: int = 400, digest: str = "sha256:t") -> Responder:
    return Responder(target, tiny_tokenizer(), max_positions, digest, "sha256:k", "sha256:c")


if __name__ == "__main__":
    run(CONFIG, Path(sys.argv[1]), Path(sys.argv[2]), responder(SlowTarget(float(sys.argv[3]))), progress=False)
