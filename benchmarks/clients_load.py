"""The clients of clients_prometheus.py: a load without end, and calls whose results the clients count themselves."""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

MODEL = "embedded"
STREAMS, MAX_TOKENS = 4, 48
SLOTS, WAITING = 8, 4
KEY = "a-key-of-clients"
PROMPTS = ("Write a short poem.", "How many apples are left?", "Name three towns.", "Explain a queue to a child.")


@dataclass
class Seen:
    """The results of calls, as clients saw them.

    Attributes:
        prompts: The prompt tokens of each call.
        outputs: The output tokens of each call.
        finished: The number of calls, by finish reason.
        totals: Further counts: rounds after the first, cached prompt tokens, draft trees, accepted draft tokens.
        seconds: Sums over the calls: to the first token, between the tokens, to the last token.
    """

    prompts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    finished: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("ttft", "itl", "e2e"), 0.0))

    def add(self, start_s: float, chunks: list[tuple[float, dict[str, Any]]]) -> None:
        """Adds a call that has ended, by its chunks with the times of their arrival."""
        choices = [(now_s, choice) for now_s, chunk in chunks for choice in chunk["choices"]]
        times_s = [now_s - start_s for now_s, choice in choices if choice["round"]["texts"]]
        (last,) = [chunk for _, chunk in chunks if not chunk["choices"]]
        self.prompts.append(last["usage"]["prompt_tokens"])
        self.outputs.append(last["usage"]["completion_tokens"])
        self.finished[choices[-1][1]["finish_reason"]] += 1
        self.totals["rounds"] += len(times_s) - 1
        self.totals["cached"] += last["usage"]["prompt_tokens_details"]["cached_tokens"]
        speculation = (last.get("metrics") or {}).get("speculative_decoding", {})
        self.totals["drafts"] += speculation.get("num_spec_steps", 0)
        self.totals["accepted"] += speculation.get("num_accepted_draft_tokens", 0)
        self.seconds["ttft"] += times_s[0]
        self.seconds["itl"] += times_s[-1] - times_s[0]
        self.seconds["e2e"] += times_s[-1]


class Clients:
    """Clients of one server.

    Args:
        url: the URL of the server.
    """

    def __init__(self, url: str) -> None:
        self.calls = 0
        self._client = httpx.Client(timeout=120, headers={"Authorization": f"Bearer {KEY}"})
        self._url, self._lock, self._is_over = f"{url}/v1/completions", threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(STREAMS)]
        self._threads.append(threading.Thread(target=self._misbehave))

    def start(self) -> None:
        """Starts clients that ask until `stop`."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the clients after their current call."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def count(self, seconds: float) -> Seen:
        """Makes streamed calls for so long, `STREAMS` at once, and returns what the clients saw."""
        seen, end_s = Seen(), time.monotonic() + seconds

        def ask(number: int) -> None:
            while time.monotonic() < end_s:
                rest = {"stop": ["e"]} if number % 2 else {"ignore_eos": True}
                start_s = time.monotonic()
                chunks = list(self._stream(number, **rest))
                with self._lock:
                    seen.add(start_s, chunks)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return seen

    def leave_before_first_token(self) -> None:
        """Starts a call that waits behind others for a slot, and leaves at once. Returns when the others have ended."""
        long = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 60, "ignore_eos": True, "n": SLOTS}
        others = threading.Thread(target=lambda: self._client.post(self._url, json=long).raise_for_status())
        others.start()
        time.sleep(0.2)
        with contextlib.suppress(httpx.TimeoutException):
            self._client.post(self._url, json={**long, "n": 1}, timeout=0.2)
        others.join()

    def leave_after_first_token(self) -> None:
        """Starts a call and leaves when the first token has come."""
        next(self._stream(0, max_tokens=400, ignore_eos=True))

    def ask_too_much(self) -> int:
        """Fills the slots and the queue with one call, and returns the status of another."""
        body = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 40, "ignore_eos": True, "n": SLOTS + WAITING}
        others = threading.Thread(target=lambda: self._client.post(self._url, json=body).raise_for_status())
        others.start()
        time.sleep(0.2)
        status = self._client.post(self._url, json={**body, "n": 1}).status_code
        others.join()
        return status

    def _stream(self, number: int, **rest: Any) -> Iterator[tuple[float, dict[str, Any]]]:
        """Makes a streamed call and yields its chunks with the times of their arrival."""
        body = {"model": MODEL, "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": MAX_TOKENS, **rest}
        body |= {"stream": True, "stream_options": {"include_usage": True, "include_rounds": True}}
        if number == 0:
            body["speculation"] = "max"  # under load the policy may choose no drafts for a long time
        with self._client.stream("POST", self._url, json=body) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    yield time.monotonic(), json.loads(line.removeprefix("data: "))

    def _ask(self, number: int) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(httpx.HTTPStatusError):  # the queue is full
                for _ in self._stream(number):
                    pass
            with self._lock:
                self.calls += 1

    def _misbehave(self) -> None:
        """Leaves before the first token and after it, lets requests wait, and asks for more than the queue holds."""
        body = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 75, "ignore_eos": True}
        while not self._is_over.is_set():
            with contextlib.suppress(httpx.HTTPStatusError):
                self.leave_after_first_token()
            with contextlib.suppress(httpx.TimeoutException):
                self._client.post(self._url, json=body, timeout=0.005)
            for n in (SLOTS, SLOTS + WAITING):
                self._client.post(self._url, json={**body, "n": n})
