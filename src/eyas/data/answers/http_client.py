"""A client that sends chat completion requests to an OpenAI-compatible server and retries failed attempts.

`RemoteResponder` uses it. The client runs an event loop on its own thread:

    main thread    submit -> | questions | -> worker 0 .. N-1, one request at a time -> | outcomes | -> next_outcome

The main thread submits more questions than there are workers, so a free worker never waits for the main thread.
"""

import asyncio
import contextlib
import queue
import threading
import time
from dataclasses import dataclass
from typing import Self

import httpx

from eyas.base import openai_http
from eyas.base.errors import EyasError, InputError, StageError
from eyas.base.provenance import digest_json
from eyas.data.answers import openai_protocol as protocol
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Question, Retried

PROMPT_STATUSES = (400, 413, 422)  # statuses that concern one prompt; other 3xx and 4xx mean a wrong key, model or URL
IDS_KEY = "return_token_ids"


@dataclass(frozen=True)
class Completed:
    """The outcome of a question that the server answered."""

    question: Question
    reply: protocol.ChatReply


@dataclass(frozen=True)
class Rejected:
    """The outcome of a question that the server rejects, with its error as `reason`. Other questions may succeed."""

    question: Question
    reason: str


@dataclass(frozen=True)
class Failed:
    """The outcome of a question that got no reply, after which the run must end.

    Attributes:
        error: The error to raise; None if the question was not sent because the run was ending already.
    """

    error: EyasError | None


Outcome = Completed | Rejected | Failed | Retried


class CompletionClient:
    """A context manager that owns the thread of the client. No outcome and no error contains the API key."""

    def __init__(self, config: RespondConfig) -> None:
        """Raises InputError if the environment variable of the API key is missing or invalid."""
        self.config = config
        self._url = f"{(config.url or '').rstrip('/')}{openai_http.CHAT_PATH}"
        self._read_headers()
        self._outcomes: queue.SimpleQueue[Outcome | Exception] = queue.SimpleQueue()
        self._with_ids = True
        self._next_start_s = 0.0  # when the next request may start, on the loop's clock
        self._tls_context = httpx.create_ssl_context()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="http_client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def submit(self, question: Question) -> None:
        """Queues a question for the next free worker."""
        self._loop.call_soon_threadsafe(self._questions.put_nowait, question)

    def next_outcome(self, timeout_s: float | None = None) -> Outcome | None:
        """Waits for the next outcome. Returns None after `timeout_s` seconds; None as timeout waits without end."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def stop(self) -> None:
        """Stops the client from starting requests and retries. Requests in flight may finish."""
        self._loop.call_soon_threadsafe(self._stopping.set)

    # --- on the thread -----------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._questions: asyncio.Queue[Question] = asyncio.Queue()
        self._stopping, self._closing = asyncio.Event(), asyncio.Event()
        workers = [asyncio.create_task(self._work()) for _ in range(self.config.concurrency)]
        self._started.set()
        await self._closing.wait()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        """Runs one worker. An unexpected error goes to the main thread, which would otherwise wait forever.

        It sends one request at a time, with its own HTTP client: a shared client scans all connections.
        """
        connect_s = min(openai_http.CONNECT_TIMEOUT_S, self.config.timeout_s)
        timeout = httpx.Timeout(self.config.timeout_s, connect=connect_s)
        try:
            async with httpx.AsyncClient(timeout=timeout, verify=self._tls_context) as client:
                while True:
                    self._outcomes.put(await self._process(client, await self._questions.get()))
        except Exception as error:
            self._outcomes.put(error)

    async def _process(self, client: httpx.AsyncClient, question: Question) -> Outcome:
        """Sends a question until it has an outcome or no attempt is left."""
        reason = ""
        for attempt in range(self.config.retries + 1):
            await self._wait_for_rate_limit()
            if self._stopping.is_set():
                return Failed(error=None)
            try:
                return await self._attempt(client, question)
            except protocol.FailedAttemptError as error:
                reason = str(error)
                if attempt < self.config.retries:
                    self._outcomes.put(Retried(reason))
                    await self._sleep(max(error.wait_s, openai_http.backoff_s(self.config.seed, question.id, attempt)))
            except EyasError as error:
                self._stopping.set()
                return Failed(error)
        self._stopping.set()
        attempts = f"{self.config.retries + 1} attempts"
        problem = f"{self._url} gave no answer to {question.id} in {attempts}; the last: {reason}"
        fix = "Check the server and run the same command again: finished answers are kept"
        return Failed(StageError(problem, fix))

    async def _attempt(self, client: httpx.AsyncClient, question: Question) -> Outcome:
        """Sends one request.

        Raises:
            FailedAttemptError: Another attempt may succeed.
            StageError: Every attempt would fail the same way.
        """
        with_ids = self._with_ids
        body = protocol.build_request(question, self.config.model or "", self.config.seed, with_ids)
        try:
            async with asyncio.timeout(self.config.timeout_s):
                response = await client.post(self._url, json=body, headers=await asyncio.to_thread(self._read_headers))
        except (TimeoutError, httpx.TimeoutException):
            raise protocol.FailedAttemptError(f"no answer within {self.config.timeout_s:g} s") from None
        except httpx.HTTPError as error:  # the error's text may contain the request
            raise protocol.FailedAttemptError(f"the connection failed ({type(error).__name__})") from None
        except InputError:
            raise protocol.FailedAttemptError("there is no access token for it") from None
        status = response.status_code
        if openai_http.is_retried(status):
            wait_s = openai_http.parse_retry_after_s(response.headers.get("retry-after"), time.time())
            raise protocol.FailedAttemptError(openai_http.describe_error(status, response.content), wait_s)
        if status >= 300:
            return await self._handle_rejection(client, question, response, with_ids)
        try:
            reply = protocol.parse_reply(response.json(), question.decoding.max_tokens)
        except protocol.ContentFilteredError:
            return Rejected(question, "the server's content filter")
        except (ValueError, RecursionError):  # not JSON, or not UTF-8
            raise protocol.FailedAttemptError(f"the reply is {'not JSON' if response.content else 'empty'}") from None
        self._check_prompt(question, reply)
        return Completed(question, reply)

    async def _handle_rejection(
        self, client: httpx.AsyncClient, question: Question, response: httpx.Response, with_ids: bool
    ) -> Outcome:
        """Returns the outcome of a response with a 3xx or 4xx status.

        Sends the request again without `return_token_ids` if the server rejects that key.

        Args:
            client: The HTTP client of the worker.
            question: The question.
            response: The response.
            with_ids: The request had the key `return_token_ids`.

        Raises:
            StageError: The server would reject every question, for example because of a wrong key.
        """
        is_echo = any(IDS_KEY in text for message in question.messages for text in protocol.message_texts(message))
        if with_ids and response.status_code in PROMPT_STATUSES and IDS_KEY in response.text and not is_echo:
            self._with_ids = False  # the server cannot return token ids: the text of answers is rendered instead
            return await self._attempt(client, question)
        error = openai_http.describe_error(response.status_code, response.content)
        if response.status_code in PROMPT_STATUSES:
            return Rejected(question, error)
        fix = "Correct respond.url, respond.model or respond.api_key_env and run the same command again"
        raise StageError(f"{self._url} rejects the request for {question.id}: {error}", fix)

    def _check_prompt(self, question: Question, reply: protocol.ChatReply) -> None:
        """Raises StageError if the server's prompt token ids differ from those that training will use."""
        server_ids, target_ids = reply.prompt_ids, question.prompt_ids
        if server_ids is None or server_ids == target_ids:
            return
        rendered = f"it renders {question.id} to {len(server_ids)} tokens ({digest_json(server_ids)})"
        problem = f"{self._url} uses another chat template or tokenizer: {rendered}"
        fix = "Start the server with this target and its own template, or correct target.model"
        raise StageError(f"{problem}, target.model to {len(target_ids)} ({digest_json(target_ids)})", fix)

    def _read_headers(self) -> dict[str, str]:
        return openai_http.auth_headers(openai_http.read_api_key(self.config.api_key_env, self._url))

    async def _wait_for_rate_limit(self) -> None:
        if self.config.requests_per_second is None:
            return
        now_s = self._loop.time()
        start_s = max(now_s, self._next_start_s)
        self._next_start_s = start_s + 1 / self.config.requests_per_second
        await self._sleep(start_s - now_s)

    async def _sleep(self, seconds: float) -> None:
        """Sleeps for some seconds, or until `stop` is called."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
