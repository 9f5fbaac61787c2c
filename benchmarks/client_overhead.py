"""Measures the TPOT that the client of `eyas bench --url` adds to a server. Exits 1 if it is too much.

    python benchmarks/client_overhead.py [--streams 32] [--tokens 200] [--step-ms 1]

A fake server in its own process writes one token for each stream at every step and does nothing else. It records when
it wrote the first and the last token of each answer. The figure is the client's TPOT over the server's TPOT. Client and
server need one core each; on a busy machine the figure is not valid.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from result_rows import Row, print_rows

from eyas.bench.client.bench_server import run
from eyas.bench.config import ClientConfig

MAX_RATIO = 1.02
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = b'{"data": [{"id": "fake", "owned_by": "nobody"}]}'


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _chunk(**fields: object) -> bytes:
    value = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "fake"} | fields
    return _frame(b"data: " + json.dumps(value).encode() + b"\n\n")


TOKEN = _chunk(choices=[{"index": 0, "delta": {"content": "w"}}])


def last_chunks(tokens: int) -> bytes:
    """Returns the chunks after the last of `tokens` tokens: finish reason, usage and the end marker."""
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    end = _chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + _chunk(choices=[], usage=usage)
    return end + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def accept_requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Yields once for each completion request of a connection, after the response head. Answers GET requests."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(MODELS) + MODELS)
            continue
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(HEAD)
        yield


class TickingServer:
    """A fake server that writes the next token of all streams at the same tick, like an engine with batches."""

    def __init__(self, tokens: int, step_s: float) -> None:
        self.tokens, self.step_s = tokens, step_s
        self.end = last_chunks(tokens)
        self.open: dict[asyncio.StreamWriter, list[float]] = {}  # writer -> [time of its first token, number of tokens]
        self.tpots_s: list[float] = []

    async def tick(self) -> None:
        """Writes tokens at every step until it is canceled. After a late tick the next one comes a whole step later."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self.step_s, loop.time())
            while (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(0 if wait_s < 0.002 else wait_s - 0.001)
            for writer, (first_s, count) in list(self.open.items()):
                writer.write(TOKEN)
                now_s = time.perf_counter()
                if count + 1 < self.tokens:
                    self.open[writer] = [first_s or now_s, count + 1]
                    continue
                del self.open[writer]
                self.tpots_s.append((now_s - first_s) / (self.tokens - 1))
                writer.write(self.end)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves the requests of one connection."""
        async for _ in accept_requests(reader, writer):
            self.open[writer] = [0.0, 0]


def serve(pipe: Connection, tokens: int, step_s: float) -> None:
    """Runs the server in its process. Sends its port through the pipe, and the measured TPOTs after any message."""

    async def main() -> None:
        server = TickingServer(tokens, step_s)
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        pipe.send(listener.sockets[0].getsockname()[1])
        ticks = asyncio.create_task(server.tick())
        await asyncio.to_thread(pipe.recv)
        ticks.cancel()
        pipe.send(server.tpots_s)

    asyncio.run(main())


def measure(streams: int, tokens: int, step_s: float) -> Row:
    """Returns the row with the client's median TPOT over the server's."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, tokens, step_s), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}/v1"
    config = ClientConfig(
        limit=8,
        repeats=1,
        one_stream=False,
        concurrency=(streams,),
        requests_per_stream=8,
        max_tokens=tokens,
        warm_up=0,
    )
    with tempfile.TemporaryDirectory() as directory:
        found = run(url, None, config, Path(directory), progress=False)
    ours.send("end")
    truth_ms = 1000 * median(ours.recv())
    server.join(10)
    seen_ms = found["concurrency"][0]["arms"]["server"]["tpot_ms"]["p50"]
    name = f"client's TPOT over the server's, {streams} streams, a token each {1000 * step_s:g} ms"
    told = f"{name} (the server kept {truth_ms:.3f} ms, the client saw {seen_ms:.3f})"
    return Row(told, round(seen_ms / truth_ms, 4), f"at most {MAX_RATIO}", seen_ms <= MAX_RATIO * truth_ms)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=1.0)
    parsed = parser.parse_args()
    return print_rows([measure(parsed.streams, parsed.tokens, parsed.step_ms / 1000)])


if __name__ == "__main__":
    sys.exit(main())
