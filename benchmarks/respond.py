"""`eyas respond` against a local OpenAI-compatible server: its tokens a second, as a share of the server's own.

    python benchmarks/respond.py

`eyas serve` runs in a process of its own with the embedded target. The server's own throughput is that of as many bare
clients as `respond` has requests in flight, each asking for the next conversation as soon as it has its answers: they
neither render, check nor write anything. Both are measured in turn, on prompts that the server has seen before, and the
share is the median over the rounds. Prints one JSON object; exit 1 below the target.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import httpx
from rows import Row

from eyas.base.provenance import Origin, finish
from eyas.chat.conversation import Conversation, Message, parse_messages, read
from eyas.evalsets import FAMILIES, example
from eyas.recipe import Recipe, Run, TargetConfig
from eyas.synth import respond
from eyas.synth.prompts import PROMPTS_FILE
from eyas.synth.respond_config import RespondConfig

NAME, GOAL = "respond against a local server, share of the server's own tokens/s", 0.95
STREAMS, PROMPTS, MAX_TOKENS, ROUNDS = 16, 96, 64, 3
MODEL = "embedded"


def main() -> int:
    row = measure()
    print(json.dumps(asdict(row)))
    return 0 if row.ok else 1


def measure(rounds: int = ROUNDS) -> Row:
    """The row of `make prove-data`."""
    with tempfile.TemporaryDirectory() as directory, serving() as url:
        place = Path(directory)
        prompts = write_prompts(place / "prompts")
        asyncio.run(bare_clients(url, prompts))  # the server's caches know the prompts from here on
        shares = []
        for _ in range(rounds):
            alone = asyncio.run(bare_clients(url, prompts))
            shares.append(responding(url, prompts, place / "conversations") / alone)
        share = statistics.median(shares)
        return Row(NAME, round(share, 3), f">= {GOAL}", share >= GOAL)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The URL of a server of its own, without a head, whose speed nothing changes while it is measured."""
    command = "import sys; from eyas.cli import main; sys.exit(main())"
    arguments = ["--no-head", "--no-compile", "--dtype", "float32", "--slots", str(STREAMS), "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-c", command, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None, "it is a pipe"
        yield next(word for word in server.stdout.readline().split() if word.startswith("http"))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def write_prompts(directory: Path) -> Path:
    """Prompts of the grammar, one in four with a second turn."""
    directory.mkdir()
    records = []
    for index in range(PROMPTS):
        family = list(FAMILIES)[index % len(FAMILIES)]
        one = example(family, "eval", index)
        asked = tuple(m for m in parse_messages(one.messages, one.id) if m.role != "assistant")
        asked += (Message("user", "Say it again."),) if index % 4 == 0 else ()
        records.append(Conversation(f"bench:{index}", "bench", asked, {"task": family}))
    (directory / PROMPTS_FILE).write_bytes(b"".join(record.to_line() for record in records))
    finish(directory, Origin("prompts", "bench", {}), time.time())
    return directory


async def bare_clients(url: str, prompts: Path) -> float:
    """Tokens a second of clients that do nothing but ask."""
    waiting, num_tokens = iter(list(read(prompts / PROMPTS_FILE))), 0

    async def work() -> None:
        nonlocal num_tokens
        async with httpx.AsyncClient(timeout=600) as client:
            for prompt in waiting:
                said: list[dict[str, str]] = []
                for message in prompt.messages:
                    said.append(message.to_json())
                    if message.role == "system":
                        continue
                    body = {"model": MODEL, "messages": said, "max_tokens": MAX_TOKENS, "temperature": 0}
                    reply = await client.post(f"{url}/chat/completions", json=body | {"return_token_ids": True})
                    choice = reply.raise_for_status().json()["choices"][0]
                    num_tokens += len(choice["token_ids"])
                    said.append({"role": "assistant", "content": choice["message"]["content"]})

    began_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(STREAMS)))
    return num_tokens / (time.perf_counter() - began_s)


def responding(url: str, prompts: Path, out: Path) -> float:
    """Tokens a second of `eyas respond`, from its call to the finished directory."""
    shutil.rmtree(out, ignore_errors=True)
    config = RespondConfig(max_tokens=MAX_TOKENS, url=url, model=MODEL, concurrency=STREAMS, part_size=PROMPTS // 3)
    responder = Run(Recipe(target=TargetConfig(MODEL), respond=config), out).responder()
    began_s = time.perf_counter()
    respond.run(config, prompts, out, responder, progress=False)
    seconds = time.perf_counter() - began_s
    return json.loads((out / respond.LEDGER_FILE).read_bytes())["tokens"] / seconds


if __name__ == "__main__":
    sys.exit(main())
