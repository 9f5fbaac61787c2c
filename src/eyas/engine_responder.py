"""Answers prompts with the target in eyas's engine, for the stage `respond` of a recipe without `respond.url`.

The package eyas.data does not import the engine. `recipe.Run.build_responder` passes an `EngineResponder` to it.
"""

import sys
import time
from collections.abc import Generator
from dataclasses import dataclass

from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, Question, QuestionQueue, derive_seed
from eyas.engine.engine import Engine
from eyas.engine.loops import overlap_loop, plain_loop
from eyas.engine.request import Request
from eyas.kernels.aot_compile import CompileError, compile_pair
from eyas.model.target import Target
from eyas.tree.sampling import SamplingParams

IDLE_SHARE = 16  # a running engine admits questions once one slot in IDLE_SHARE is free
COMPILE_AFTER_S = 60.0  # about the time that compiling takes on a CPU, so few answers never wait for it


@dataclass(frozen=True)
class EngineResponder:
    """A callable that answers the questions of the stage `respond` with the target, without a head."""

    target: Target
    config: RespondConfig

    def __call__(self, questions: QuestionQueue) -> Generator[Answered, None, None]:
        """Yields an answer for each question.

        It starts with an engine of small context. When a question does not fit, it starts an engine with a context of
        the next power of two that fits, since few prompts are long. On a GPU, forwards are compiled first. On a CPU
        they are compiled after COMPILE_AFTER_S, unless the cache has them.
        """
        source, is_cuda = _QuestionSource(questions, self.config.seed), self.target.model.device.type == "cuda"
        begin_s, compiled = time.monotonic(), self._compile(stored_only=not is_cuda)
        while (question := source.peek()) is not None:
            context = 1 << (_num_positions(question) - 1).bit_length()
            engine = Engine(self.target, (), self.config.batch_size, context)
            for answer in overlap_loop(engine, source) if is_cuda else plain_loop(engine, source):
                assert answer.finish_reason in ("stop", "length"), "these requests are never canceled"
                yield Answered(answer.request.id, answer.token_ids, answer.finish_reason)
                if not compiled and time.monotonic() - begin_s > COMPILE_AFTER_S:
                    compiled = self._compile(stored_only=False)

    def _compile(self, stored_only: bool) -> bool:
        """Returns False if forwards still have to be compiled; True if they run compiled or cannot be compiled."""
        try:
            return compile_pair(self.target, None, stored_only=stored_only)
        except CompileError as error:
            if stored_only:
                return False  # the reason is printed when they would be compiled; short work does not need to know it
            print(f"eyas: warning: Forwards run uncompiled: {error.problem}.", file=sys.stderr)
            return True


@dataclass
class _QuestionSource:
    """A request source for the engine. A question that is too long for the engine waits for the next, larger engine."""

    questions: QuestionQueue
    seed: int
    pending: Question | None = None

    def peek(self) -> Question | None:
        """Returns the next question without removing it; None if there are no more."""
        self.pending = self.questions.next() if self.pending is None else self.pending
        return self.pending

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Adds questions to the engine while it has capacity. Returns False if it is then idle: no question fits.

        A running engine gets several questions at once, because a prefill in each step would cost more than idle slots.
        """
        if not engine.is_idle and engine.num_free < engine.max_running // IDLE_SHARE:
            return True
        while engine.num_free > 0 and (question := self.peek()) and _num_positions(question) <= engine.max_context:
            self.pending, decoding = None, question.decoding
            sampling = SamplingParams(temperature=decoding.temperature, top_k=decoding.top_k, top_p=decoding.top_p)
            seed = derive_seed(self.seed, question.id)
            engine.add(Request(question.id, tuple(question.prompt_ids), decoding.max_tokens, sampling, seed))
        return not engine.is_idle


def _num_positions(question: Question) -> int:
    """Returns the number of tokens of the prompt and of the longest allowed answer."""
    return len(question.prompt_ids) + question.decoding.max_tokens
