"""A server that speaks OpenAI's chat route and has no model: its answers, its pace and its faults are the test's.

Plain asyncio without an HTTP library, so that it keeps up with a client that is measured, and owes it nothing.
"""

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MODEL = "fake"


@dataclass
class Manner:
    """How it answers. A step is one piece of the stream: tokens_a_step tokens, step_s after the one before.

    fault: what goes wrong, from request number `fault_from` on; "gone": nobody listens any more.
    refused: a prompt with this word is too long. path: of the chat route; "" has no list of models beside it.
    counters: whose /metrics it has. told_in: how answers say how they were drafted.
    """

    tokens: int = 32
    tokens_a_step: int = 1
    first_s: float = 0.0
    step_s: float = 0.0
    owner: str = "somebody"
    fault: str | None = None
    fault_from: int = 0
    key: str | None = None
    streams: bool = True
    usage: bool = True
    drafting: bool = False
    told_in: str = "metrics"  # vLLM's and eyas's; or SGLang's "meta_info"
    counters: str | None = None  # "vllm", "sglang"
    refuses_stream: bool = False
    refused: str | None = None
    path: str = ""
    off_step_s: float = 0.0  # of requests with speculation "off"
    off_words: str = "w"


@dataclass
class FakeServer:
    """url: of its API. bodies: what was asked, in order; open_now, most_open: requests in flight."""

    manner: Manner
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    steps: int = 0  # drafted so far, and what was generated in all
    tokens: int = 0
    by_position: list[int] = field(default_factory=list)
    listener: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection."""
        try:
            while head := await _head(reader):
                line, headers = head
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if not await self._answer(line, headers, body, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, line: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        if self.manner.key is not None and headers.get("authorization") != f"Bearer {self.manner.key}":
            return _send(writer, 401, {"error": {"message": "wrong key"}})
        manner = self.manner
        self.heads.append(headers)
        if line.startswith("GET /metrics") and manner.counters is not None:
            return _send(writer, 200, self._page(), "text/plain; version=0.0.4")
        if line.startswith("GET /v1/models") and not manner.path:
            return _send(writer, 200, {"data": [{"id": MODEL, "owned_by": self.manner.owner}]})
        if not line.startswith(f"POST {manner.path or '/v1/chat/completions'} "):
            return _send(writer, 404, {"error": {"message": "no such route"}})
        asked = json.loads(body)
        self.bodies.append(asked)
        number = len(self.bodies) - 1
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            return await self._chat(asked, number, writer)
        finally:
            self.open_now -= 1

    async def _chat(self, asked: dict[str, Any], number: int, writer: asyncio.StreamWriter) -> bool:
        manner = self.manner
        fault = manner.fault if number >= manner.fault_from else None
        if fault == "429":
            return _send(writer, 429, {"error": {"message": "slow down", "type": "rate_limit_error"}})
        if fault == "gone":
            assert self.listener is not None
            self.listener.close()
            writer.transport.abort()
            return False
        if manner.refuses_stream and asked.get("stream"):
            return _send(
                writer, 400, {"error": {"message": "stream is not supported", "type": "invalid_request_error"}}
            )
        if manner.refused is not None and manner.refused in json.dumps(asked["messages"]):
            return _send(
                writer, 400, {"error": {"message": "the prompt is too long", "code": "context_length_exceeded"}}
            )
        if fault == "hangs":
            await asyncio.sleep(60)
        off = asked.get("speculation") == "off"
        count, word = min(manner.tokens, asked["max_tokens"]), manner.off_words if off else "w"
        usage = {"prompt_tokens": 7, "completion_tokens": count} if manner.usage else None
        steps = -(-count // manner.tokens_a_step) - 1
        if not off:
            self._count(count, steps)
        if not (manner.streams and asked.get("stream")):
            message = {"role": "assistant", "content": word * count}
            return _send(writer, 200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        _event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        loop = asyncio.get_running_loop()
        due_s = loop.time() + manner.first_s
        for start in range(0, count, manner.tokens_a_step):
            if start:
                due_s += manner.off_step_s if off and manner.off_step_s else manner.step_s
            if (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            if fault == "dies" and start >= count // 2:
                writer.transport.abort()
                return False
            if fault == "error in stream" and start >= count // 2:
                _event(writer, {"error": {"message": "out of memory", "type": "server_error"}})
                break
            words = word * min(manner.tokens_a_step, count - start)
            _event(writer, {"choices": [{"delta": {"content": words}}]})
        last: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        if manner.drafting and not off and manner.told_in == "meta_info":
            last["choices"][0]["meta_info"] = {"spec_verify_ct": steps, "completion_tokens": count}
        elif manner.drafting and not off:
            told = {
                "num_spec_steps": steps,
                "num_accepted_draft_tokens": count - 1 - steps,
                "acceptance_histogram": [1],
            }
            last["metrics"] = {"speculative_decoding": told}
        _event(writer, last)
        if usage is not None:
            _event(writer, {"choices": [], "usage": usage})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _count(self, count: int, steps: int) -> None:
        """The first token is the prompt's; then every step accepts tokens_a_step - 1, the last one what is left."""
        self.steps += steps
        self.tokens += count
        left = count - 1
        for _ in range(steps):
            accepted = min(self.manner.tokens_a_step, left) - 1
            left -= accepted + 1
            self.by_position += [0] * (accepted - len(self.by_position))
            for position in range(accepted):
                self.by_position[position] += 1

    def _page(self) -> str:
        if self.manner.counters == "sglang":
            verified = [f'sglang:spec_verify_calls_total{{model_name="fake"}} {self.steps}.0'] if self.steps else []
            tokens = f'sglang:generation_tokens_total{{model_name="fake"}} {self.tokens}.0'
            return "\n".join([*verified, tokens, 'sglang:spec_accept_length{model_name="fake"} 9.0', ""])
        label = 'engine="0",model_name="fake"'
        lines = ["# TYPE vllm:spec_decode_num_drafts_total counter"]
        lines += [f"vllm:spec_decode_num_drafts_total{{{label}}} {self.steps}.0"]
        lines += [f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {sum(self.by_position)}.0"]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{{label},position="{i}"}} {count}.0' for i, count in enumerate(self.by_position)]
        return "\n".join([*lines, ""])


@contextmanager
def fake_server(manner: Manner, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[FakeServer]:
    """Runs a server in its own thread until the block ends. tls: the certificate for https; None: http."""
    server, ready = FakeServer(manner), threading.Event()
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        ends.append((asyncio.get_running_loop(), stop))
        server.listener = listener = await asyncio.start_server(server.serve, host, 0, ssl=tls)
        scheme = "http" if tls is None else "https"
        base = f"{scheme}://{'[::1]' if host == '::1' else host}:{listener.sockets[0].getsockname()[1]}"
        server.url = base + (manner.path or "/v1")
        ready.set()
        await stop.wait()
        listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))  # run cancels what is in flight
    thread.start()
    assert ready.wait(10), "it listens"
    try:
        yield server
    finally:
        ((loop, stop),) = ends
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]] | None:
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = text.strip().split("\r\n")
    return line, {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}


def _send(writer: asyncio.StreamWriter, status: int, value: Any, kind: str = "application/json") -> bool:
    body = (value if isinstance(value, str) else json.dumps(value)).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
    writer.write(body)
    return True


def _event(writer: asyncio.StreamWriter, value: Any) -> None:
    _chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
