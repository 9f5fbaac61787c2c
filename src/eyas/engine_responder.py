"""The target's own answers to prompts: eyas's engine as the stage `respond` asks it. Two workshops meet here."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, Question, QuestionQueue, derive_seed
from eyas.engine.engine import Engine
from eyas.engine.loops import plain_loop
from eyas.engine.request import Request
from eyas.model.target import Target
from eyas.tree.sampling import SamplingParams


@dataclass(frozen=True)
class EngineResponder:
    """The target's own answers through the engine: what `respond` is handed where no server is named."""

    target: Target
    config: RespondConfig

    def __call__(self, questions: QuestionQueue) -> Generator[Answered, None, None]:
        """One engine after another, each with twice the context of the one before: few prompts are long."""
        source = _QuestionSource(questions, self.config.seed)
        while (longest := source.next_length_tokens) is not None:
            yield from self._answer(source, context=1 << (longest - 1).bit_length())

    def _answer(self, source: "_QuestionSource", context: int) -> Iterator[Answered]:
        engine = Engine(self.target, (), self.config.batch_size, context)
        for answer in plain_loop(engine, source):
            assert answer.finish_reason in ("stop", "length"), "nobody cancels these"
            yield Answered(answer.request.id, answer.token_ids, answer.finish_reason)


@dataclass
class _QuestionSource:
    """Questions as the engine's source. One that does not fit into this engine waits until the engine is idle."""

    questions: QuestionQueue
    seed: int
    pending: Question | None = None

    @property
    def next_length_tokens(self) -> int | None:
        """Positions that the next question needs; None: there is none."""
        question = self._next()
        return None if question is None else len(question.prompt_ids) + question.decoding.max_tokens

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        while (
            engine.has_capacity and (longest := self.next_length_tokens) is not None and longest <= engine.max_context
        ):
            question = self._next()
            assert question is not None
            self.pending, decoding = None, question.decoding
            sampling = SamplingParams(temperature=decoding.temperature, top_k=decoding.top_k, top_p=decoding.top_p)
            seed = derive_seed(self.seed, question.id)
            engine.add(Request(question.id, tuple(question.prompt_ids), decoding.max_tokens, sampling, seed))
        return not engine.is_idle

    def _next(self) -> Question | None:
        self.pending = self.questions.next() if self.pending is None else self.pending
        return self.pending
