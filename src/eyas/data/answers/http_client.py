"""Requests to an OpenAI-compatible server, so many in flight, on a thread with an event loop of its own.

    main thread     put -> | questions |  ->  worker 0 .. N-1, each one request at a time  ->  | outcomes | -> get

While the main thread renders prompts and writes answers, a worker that becomes free finds its next question waiting.
"""

import asyncio
import email.utils
import os
import queue
import random
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx

from eyas.base.errors import EyasError, InputError, StageError
from eyas.base.provenance import digest_json
from eyas.data.answers.openai_protocol import (
    ChatReply,
    ContentFilteredError,
    MalformedReplyError,
    build_request,
    parse_reply,
)
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Question
from eyas.data.answers.server_words import message_of, shown

INITIAL_BACKOFF_S = 0.5  # before the first retry, at most; twice as long before each further one
MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 600.0  # a server's Retry-After beyond this is cut
CONNECT_S = 30.0
RETRIED_STATUSES = (408, 409, 429)  # and all from 500 on
PROMPT_STATUSES = (400, 413, 422)  # any other refusal is about the whole run: a wrong key, model or URL
IDS_KEY = "return_token_ids"


@dataclass(frozen=True)
class Completed:
    """The server's answer."""

    question: Question
    reply: ChatReply


@dataclass(frozen=True)
class Rejected:
    """The server refuses this one question; why: its words, blanked."""

    question: Question
    reason: str


@dataclass(frozen=True)
class Failed:
    """No answer, and none to be hoped for: the run ends."""

    question: Question
    error: EyasError


@dataclass(frozen=True)
class Cancelled:
    """Given back because the run ends."""

    question: Question


@dataclass(frozen=True)
class Retrying:
    """An attempt has failed."""

    reason: str


Outcome = Completed | Rejected | Failed | Cancelled | Retrying


class _AgainError(Exception):
    """An attempt that may be made again; wait_s: what the server asks for."""

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.wait_s = wait_s


class CompletionClient:
    """A context manager around the thread. Nothing of a key or a prompt is in any outcome but the questions' own."""

    def __init__(self, config: RespondConfig) -> None:
        """InputError where the environment does not hold the key."""
        self.config = config
        self._key = _read_key(config.api_key_env)
        self._url = f"{(config.url or '').rstrip('/')}/chat/completions"
        self._outcomes: queue.SimpleQueue[Outcome | Exception] = queue.SimpleQueue()
        self._with_ids = True
        self._next_s = 0.0  # when the next request may begin
        self._context = httpx.create_ssl_context()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="asking", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def submit(self, question: Question) -> None:
        """Have it asked as soon as a worker is free."""
        self._loop.call_soon_threadsafe(self._questions.put_nowait, question)

    def next_outcome(self, timeout_s: float | None = None) -> Outcome | None:
        """What came next; None where nothing came in time."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def stop(self) -> None:
        """Begin no request and no retry any more; those in flight may end."""
        self._loop.call_soon_threadsafe(self._stopping.set)

    # --- the thread --------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._questions: asyncio.Queue[Question] = asyncio.Queue()
        self._stopping, self._ending = asyncio.Event(), asyncio.Event()
        workers = [asyncio.create_task(self._work()) for _ in range(self.config.concurrency)]
        self._started.set()
        await self._ending.wait()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        """One worker. An error here is our own mistake: the main thread raises it, or it would wait for ever."""
        try:
            await self._serve()
        except Exception as error:
            self._outcomes.put(error)

    async def _serve(self) -> None:
        """One request at a time. A client for each: a pool that all share looks through all connections each time."""
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        timeout = httpx.Timeout(self.config.timeout_s, connect=min(CONNECT_S, self.config.timeout_s))
        async with httpx.AsyncClient(headers=headers, timeout=timeout, verify=self._context) as client:
            while True:
                self._outcomes.put(await self._ask(client, await self._questions.get()))

    async def _ask(self, client: httpx.AsyncClient, question: Question) -> Outcome:
        """The outcome of one question, after as many attempts as it takes."""
        why = ""
        for attempt in range(self.config.retries + 1):
            await self._pace()
            if self._stopping.is_set():
                return Cancelled(question)
            try:
                return await self._attempt(client, question)
            except _AgainError as again:
                why = again.why
                if attempt < self.config.retries:
                    self._outcomes.put(Retrying(why))
                    await self._pause(max(again.wait_s, backoff_s(self.config.seed, question.id, attempt)))
            except EyasError as error:
                self._stopping.set()
                return Failed(question, error)
        self._stopping.set()
        return Failed(question, self._given_up(question, why))

    async def _attempt(self, client: httpx.AsyncClient, question: Question) -> Outcome:
        """One request. _AgainError; StageError where no other attempt would end differently."""
        with_ids = self._with_ids
        body = build_request(question, self.config.model or "", self.config.seed, with_ids)
        try:
            async with asyncio.timeout(self.config.timeout_s):
                response = await client.post(self._url, json=body)
        except (TimeoutError, httpx.TimeoutException):
            raise _AgainError(f"no answer within {self.config.timeout_s:g} s") from None
        except httpx.HTTPError as error:  # its text may hold what was sent
            raise _AgainError(f"a broken connection ({type(error).__name__})") from None
        status = response.status_code
        if status in RETRIED_STATUSES or status >= 500:
            raise _AgainError(f"status {status}", parse_retry_after_s(response.headers.get("retry-after"), time.time()))
        if status >= 300:
            return await self._refused(client, question, response, with_ids)
        try:
            reply = parse_reply(response.json(), question.decoding.max_tokens)
        except ContentFilteredError:
            return Rejected(question, "the server's content filter")
        except MalformedReplyError as error:
            raise _AgainError(str(error)) from None
        except (ValueError, RecursionError):  # ValueError: no JSON, no UTF-8
            raise _AgainError("a reply that is not JSON" if response.content else "an empty reply") from None
        self._check_prompt(question, reply)
        return Completed(question, reply)

    async def _refused(
        self, client: httpx.AsyncClient, question: Question, response: httpx.Response, with_ids: bool
    ) -> Outcome:
        """A status that says no. StageError where it would say so to every question."""
        status, said = response.status_code, message_of(response.content)
        echoed = any(IDS_KEY in text for text in _texts(question))
        if with_ids and status in PROMPT_STATUSES and IDS_KEY in response.text and not echoed:
            self._with_ids = False  # a server that knows no token ids: their text is rendered
            return await self._attempt(client, question)
        words = shown(said.replace(self._key, "") if self._key else said, [self._key or "", *_texts(question)])
        if status in PROMPT_STATUSES:
            return Rejected(question, f"status {status}{words and ': '}{words}")
        raise StageError(
            f"status {status} from {self._url} for {question.id}{words and ': '}{words}",
            "an answer",
            "correct respond.url, respond.model or respond.api_key_env and run the same command again",
        )

    def _check_prompt(self, question: Question, reply: ChatReply) -> None:
        """StageError where the server does not feed what training will render."""
        if reply.prompt_ids is None or list(reply.prompt_ids) == question.prompt_ids:
            return
        theirs, ours = list(reply.prompt_ids), question.prompt_ids
        raise StageError(
            f"{self._url} feeds {len(theirs)} tokens of digest {digest_json(theirs)} for {question.id}: "
            "the server uses another chat template or tokenizer",
            f"{len(ours)} tokens of digest {digest_json(ours)}, as target.model's chat template renders it",
            "start the server with this target and its own template, or correct target.model",
        )

    def _given_up(self, question: Question, why: str) -> StageError:
        return StageError(
            f"{self.config.retries + 1} attempts at {self._url} for {question.id} without an answer, the last: {why}",
            "a server that answers",
            "see to the server and run the same command again: what was answered is kept and not asked again",
        )

    async def _pace(self) -> None:
        """Waits until the next request may begin."""
        if self.config.requests_per_second is None:
            return
        now_s = self._loop.time()
        begin_s = max(now_s, self._next_s)
        self._next_s = begin_s + 1 / self.config.requests_per_second
        await self._pause(begin_s - now_s)

    async def _pause(self, seconds: float) -> None:
        """Waits, but not longer than the run goes on."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _read_key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise InputError(f"no environment variable {name}", "the server's API key in it", f"export {name}=...")
    if not key.isascii() or not key.isprintable():
        raise InputError(f"{name} with characters that no header holds", "an API key", "check how it was set")
    return key


def _texts(question: Question) -> list[str]:
    """Everything that was sent of a conversation."""
    calls = [call for message in question.messages for call in message.tool_calls]
    texts = [text for message in question.messages for text in (message.content, message.reasoning or "")]
    return [*texts, *(text for call in calls for text in (call.name, call.arguments))]


def backoff_s(seed: int, name: str, attempt: int) -> float:
    """Exponential with full jitter: anything from 0 to twice the longest wait before, so that clients spread."""
    most_s = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2**attempt)
    return random.Random(f"{seed}/{name}/{attempt}").uniform(0, most_s)


def parse_retry_after_s(value: str | None, now_s: float) -> float:
    """A Retry-After header as seconds from now: a number or a date; 0 where there is none that can be read."""
    try:
        wait_s = float(value or 0)
    except ValueError:
        try:
            wait_s = email.utils.parsedate_to_datetime(value or "").timestamp() - now_s
        except ValueError:
            return 0.0
    return min(wait_s, MAX_RETRY_AFTER_S) if wait_s > 0 else 0.0
