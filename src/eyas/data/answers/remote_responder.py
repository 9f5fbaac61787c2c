"""The target's answers from an OpenAI-compatible server (eyas, vLLM, SGLang, ...): what `respond` is handed for a URL.

Nobody is asked twice for an answer that was paid for: when the run must end, requests in flight may still finish, and
their answers are yielded before the error is raised.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from eyas.base.errors import EyasError, InputError, StageError
from eyas.chat.render import render_answer
from eyas.data.answers.http_client import Cancelled, Completed, CompletionClient, Failed, Rejected, Retrying
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, Event, Question, Questions, Refused, Retried
from eyas.data.ledger.shard_stats import REFUSED, UNRENDERED

REQUESTS_AHEAD = 2  # questions rendered for each request in flight, those in flight included
DRAIN_S = 60.0  # that requests in flight get when the run must end
MIN_REFUSED = 3  # questions that a server may refuse, and
MAX_REFUSED_SHARE = 0.05  # this share of those that it answered; more is a mistake in the recipe, not in some prompts


@dataclass(frozen=True)
class RemoteResponder:
    """Asks `respond.url`. tokenizer: the target's own, for answers that come without token ids."""

    config: RespondConfig
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, questions: Questions) -> Generator[Event, None, None]:
        """InputError for a key that is not set; StageError for a server that gives no answers, see `Asking`."""
        with CompletionClient(self.config) as asking:
            yield from _Answering(self, asking, questions).events()


@dataclass
class _Answering:
    """One run: what is open, and why it must end."""

    remote: RemoteResponder
    asking: CompletionClient
    questions: Questions
    num_open: int = 0
    num_answered: int = 0
    num_refused: int = 0
    error: EyasError | None = None
    until_s: float = 0.0  # when it must end: how long to wait for what is in flight

    def events(self) -> Generator[Event, None, None]:
        self._fill()
        while self.num_open:
            outcome = self.asking.next_outcome(
                None if self.error is None else max(0.0, self.until_s - time.monotonic())
            )
            if outcome is None:
                break
            if isinstance(outcome, Retrying):
                yield Retried(outcome.reason)
                continue
            self.num_open -= 1
            if isinstance(outcome, Failed):
                self._end(outcome.error)
            elif isinstance(outcome, Rejected):
                self._refuse(outcome)
                yield Refused(outcome.question.id, REFUSED)
            elif isinstance(outcome, Completed):
                event = self._read(outcome)
                if event is not None:
                    yield event
            else:
                assert isinstance(outcome, Cancelled), outcome
            self._fill()
        if self.error is not None:
            raise self.error

    def _fill(self) -> None:
        """Hands out questions, a few more than can be in flight."""
        while self.error is None and self.num_open < REQUESTS_AHEAD * self.remote.config.concurrency:
            question = self.questions.next()
            if question is None:
                return
            self.num_open += 1
            self.asking.submit(question)

    def _end(self, error: EyasError) -> None:
        if self.error is None:
            self.error, self.until_s = error, time.monotonic() + DRAIN_S
            self.asking.stop()

    def _refuse(self, declined: Rejected) -> None:
        self.num_refused += 1
        if self.num_refused > MIN_REFUSED + MAX_REFUSED_SHARE * self.num_answered:
            self._end(
                StageError(
                    f"{self.num_refused} of {self.num_refused + self.num_answered} questions refused by "
                    f"{self.remote.config.url}, the last one {declined.question.id} ({declined.reason})",
                    "a server that answers them",
                    "correct the recipe's respond.* or the server, and run the same command again",
                )
            )

    def _read(self, replied: Completed) -> Answered | Refused | None:
        """The answer with its ids; None where it cannot be trained on and the run ends."""
        question, reply = replied.question, replied.reply
        self.num_answered += 1
        if reply.token_ids is not None:
            return Answered(question.id, reply.token_ids, reply.finish, reply.message)
        try:
            ids = render_answer(question.messages, reply.message, self.remote.tokenizer, reply.finish == "stop")
        except InputError:
            if not reply.message.tool_calls:
                raise
            ids = None  # a template that takes no calls
        if ids is not None:
            return Answered(question.id, ids, reply.finish, reply.message, "rendered")
        if reply.message.tool_calls:
            return Refused(question.id, UNRENDERED)
        self._end(_unrendered(question))
        return None


def _unrendered(question: Question) -> StageError:
    return StageError(
        f"an answer to {question.id} without token ids, which the chat template does not render as it was generated",
        "token ids from the server (return_token_ids), or a template that writes answers with their reasoning",
        "ask a server that returns them: eyas, vLLM, SGLang from mid 2026 on",
    )
