"""Gets the target's answers from the OpenAI-compatible server at `respond.url` (eyas, vLLM, SGLang and others).

If an error ends the run, requests in flight may finish first. Their answers are yielded before the error is raised, so
that the next run does not request them again.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from eyas.base.errors import EyasError, InputError, StageError
from eyas.chat.render import render_answer
from eyas.data.answers.http_client import Completed, CompletionClient, Rejected
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, QuestionQueue, Refused, ResponderEvent, Retried
from eyas.data.ledger.ledger import REFUSED, UNRENDERED

QUESTIONS_PER_REQUEST = 2  # questions rendered for each request in flight, those in flight included
DRAIN_TIMEOUT_S = 60.0  # for requests in flight when the run must end
# A server may reject this many questions plus this share of the answered ones. More is a mistake in the recipe.
MAX_REJECTED, MAX_REJECTED_SHARE = 3, 0.05


@dataclass(frozen=True)
class RemoteResponder:
    """An `AnswerFunction` that sends the questions to `respond.url`.

    Attributes:
        config: The recipe keys.
        tokenizer: The target's tokenizer. It renders answers that come without token ids.
    """

    config: RespondConfig
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, questions: QuestionQueue) -> Generator[ResponderEvent, None, None]:
        """Sends all questions, and yields an event for each answer, refusal and retry.

        Raises:
            InputError: The API key is not set.
            StageError: The server fails, rejects too many questions, or its answers cannot be used for training.
        """
        with CompletionClient(self.config) as client:
            yield from _RemoteRun(self, client, questions).events()


@dataclass
class _RemoteRun:
    """One run of `RemoteResponder`, with the counts of its questions and the error that ends it."""

    remote: RemoteResponder
    client: CompletionClient
    questions: QuestionQueue
    num_open: int = 0
    num_answered: int = 0
    num_rejected: int = 0
    error: EyasError | None = None
    deadline_s: float = 0.0  # with an error: when to stop waiting for requests in flight

    def events(self) -> Generator[ResponderEvent, None, None]:
        self._submit_questions()
        while self.num_open:
            timeout_s = None if self.error is None else max(0.0, self.deadline_s - time.monotonic())
            outcome = self.client.next_outcome(timeout_s)
            if outcome is None:
                break
            if isinstance(outcome, Retried):
                yield outcome
                continue
            self.num_open -= 1
            if isinstance(outcome, Rejected):
                self._count_rejected(outcome)
                yield Refused(outcome.question.id, REFUSED)
            elif isinstance(outcome, Completed):
                if (event := self._to_event(outcome)) is not None:
                    yield event
            elif outcome.error is not None:
                self._end(outcome.error)
            self._submit_questions()
        if self.error is not None:
            raise self.error

    def _submit_questions(self) -> None:
        """Submits questions until twice as many are open as requests can be in flight."""
        while self.error is None and self.num_open < QUESTIONS_PER_REQUEST * self.remote.config.concurrency:
            question = self.questions.next()
            if question is None:
                return
            self.num_open += 1
            self.client.submit(question)

    def _end(self, error: EyasError) -> None:
        if self.error is None:
            self.error, self.deadline_s = error, time.monotonic() + DRAIN_TIMEOUT_S
            self.client.stop()

    def _count_rejected(self, rejected: Rejected) -> None:
        self.num_rejected += 1
        if self.num_rejected > MAX_REJECTED + MAX_REJECTED_SHARE * self.num_answered:
            counts = f"{self.num_rejected} of {self.num_rejected + self.num_answered} questions"
            last = f"{rejected.question.id} with {rejected.reason}"
            problem = f"{self.remote.config.url} rejects {counts}, the last one {last}"
            fix = "Correct the recipe's respond.* keys or the server, and run the same command again"
            self._end(StageError(problem, fix))

    def _to_event(self, completed: Completed) -> Answered | Refused | None:
        """Returns the answer with its token ids. Returns None, and ends the run, if the answer cannot be tokenized."""
        question, reply = completed.question, completed.reply
        self.num_answered += 1
        if reply.token_ids is not None:
            return Answered(question.id, reply.token_ids, reply.finish, reply.message)
        try:
            tokenizer, variables = self.remote.tokenizer, question.template_variables
            ids = render_answer(question.messages, reply.message, tokenizer, reply.finish == "stop", variables)
        except InputError:
            if not reply.message.tool_calls:
                raise
            ids = None  # the template does not accept tool calls
        if ids is not None:
            return Answered(question.id, ids, reply.finish, reply.message, "rendered")
        if reply.message.tool_calls:
            return Refused(question.id, UNRENDERED)
        problem = f"The answer to {question.id} has no token ids, and the chat template does not render it"
        fix = "Use a server with token ids (eyas, vLLM, SGLang from mid 2026), or a template that renders reasoning"
        self._end(StageError(f"{problem} as it was generated", fix))
        return None
