"""An OpenAI-compatible server on a loopback port. Its answers depend only on the messages; tests set its faults."""

import asyncio
import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from tests.tiny import tiny_tokenizer
from transformers import PreTrainedTokenizerFast

from eyas.chat.conversation import Message
from eyas.chat.render import render_prompt
from eyas.server.server import bind, server_url

KEY = "sk-7f3a9c"
MODEL = "tiny"


@dataclass
class Fake:
    """The behavior of the server and the requests that it received. The last user message identifies a question.

    faults[message]: the faults of the attempts at a question, in order: "429", "500", "garbage", "half", "empty",
    "slow", "drop" (the connection), or (status, body, headers). every: the fault of all other questions.
    """

    faults: dict[str, list[Any]] = field(default_factory=dict)
    every: Any = None
    delay_s: float = 0.0
    dies_after: int | None = None  # answers; from then on every connection breaks
    with_ids: bool = True
    in_choice: bool = False  # SGLang's place for the prompt's ids
    template: str | None = None  # another one than the tokenizer's
    more: dict[str, Any] = field(default_factory=dict)  # keys of the answer's message
    text: str | None = None  # the same answer for all
    finish: str | None = None
    asked: list[tuple[float, str]] = field(default_factory=list)  # when, which
    bodies: list[dict[str, Any]] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    keys: set[str | None] = field(default_factory=set)
    most_open: int = 0
    num_open: int = 0
    url: str = ""
    server: uvicorn.Server | None = None
    tokenizer: PreTrainedTokenizerFast = field(default_factory=tiny_tokenizer)

    def times(self, words: str) -> list[float]:
        return [at for at, name in self.asked if name == words]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == "/v1/chat/completions", scope["path"]
        data, more = b"", True
        while more:
            event = await receive()
            data, more = data + event.get("body", b""), event.get("more_body", False)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            await self._answer(json.loads(data), scope, send)
        finally:
            self.num_open -= 1

    async def _answer(self, body: dict[str, Any], scope: Any, send: Any) -> None:
        words = [message["content"] for message in body["messages"] if message["role"] == "user"][-1]
        self.asked.append((time.monotonic(), words))
        self.bodies.append(body)
        self.keys.add(dict(scope["headers"]).get(b"authorization", b"").decode() or None)
        await asyncio.sleep(self.delay_s)
        own = self.faults.get(words)
        fault = own.pop(0) if own else None if own is not None else self.every
        if self.dies_after is not None and self.answered.total() >= self.dies_after:
            fault = "drop"
        if fault is not None:
            return await self._fail(fault, scope, send)
        self.answered[words] += 1
        await _send(send, 200, json.dumps(self._reply(body)).encode())

    async def _fail(self, fault: Any, scope: Any, send: Any) -> None:
        echo = {"error": {"message": "a fault", "type": "x", "param": None, "code": None}}
        if fault == "slow":
            await asyncio.sleep(30)
        elif fault == "drop":
            assert self.server is not None
            (protocol,) = [one for one in self.server.server_state.connections if getattr(one, "scope", None) is scope]
            protocol.transport.abort()
        elif fault in ("garbage", "empty"):
            await _send(send, 200, b"<html>{]" if fault == "garbage" else b"")
        elif fault == "half":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"500")]})
            await send({"type": "http.response.body", "body": b'{"choices": [{"mess', "more_body": True})
            raise RuntimeError("half")  # uvicorn closes the connection
        elif isinstance(fault, tuple):
            status, content, extra = fault
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            await _send(send, status, content, extra)
        else:
            extra = {"retry-after": "0.3"} if fault == "429" else {}
            await _send(send, int(fault), json.dumps(echo).encode(), extra)

    def _reply(self, body: dict[str, Any]) -> dict[str, Any]:
        tokenizer = self.tokenizer
        if self.template is not None:
            tokenizer.chat_template = self.template
        end = tokenizer.eos_token_id
        assert isinstance(end, int)
        prompt = render_prompt([Message(one["role"], one["content"]) for one in body["messages"]], tokenizer)
        rng = random.Random(str(prompt))
        # The first ids are those of "!" to "~".
        token_ids = [rng.randrange(94) for _ in range(min(rng.randint(1, 14), body["max_tokens"]))]
        if self.text is not None:
            token_ids = tokenizer.encode(self.text, add_special_tokens=False)
        finish = "length" if len(token_ids) == body["max_tokens"] else "stop"
        text = tokenizer.decode(token_ids)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text} | self.more,
            "finish_reason": self.finish or finish,
        }
        reply: dict[str, Any] = {"object": "chat.completion", "choices": [choice]}
        if self.with_ids and body.get("return_token_ids"):
            choice["token_ids"] = [*token_ids, end] if finish == "stop" else token_ids
            (choice if self.in_choice else reply)["prompt_token_ids"] = prompt
        return reply


async def _send(send: Any, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """Runs the server on a thread and sets `url`."""
    config = uvicorn.Config(fake, http="h11", ws="none", lifespan="off", log_config=None, log_level="critical")
    config.timeout_graceful_shutdown = 1
    fake.server = server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as holder:
        thread = threading.Thread(target=server.run, args=([holder],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            fake.url = f"{server_url(holder)}/v1"
            yield fake
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
