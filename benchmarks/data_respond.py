"""Part `respond` of `make prove-data`: compares the throughput of `eyas respond` with that of a plain HTTP client."""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import httpx
from data_options import Options
from result_rows import Row

EMBEDDED = "embedded"  # the name of the target, also on the server
PROMPTS, MAX_TOKENS, CONCURRENCY = 128, 64, 8
MIN_RATIO = 0.95
STOP_S = 60


def respond(options: Options) -> Iterator[Row]:
    """Yields the row of output tokens per second, measured in pairs in rotated order."""
    from eyas.evalsets import FAMILIES, example

    families = sorted(FAMILIES)
    prompts = [example(families[i % len(families)], "eval", i // len(families)).prompt for i in range(PROMPTS)]
    prompts = [[message for message in prompt if message["role"] == "user"][:1] for prompt in prompts]
    code = "import sys; from eyas.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", "--target", EMBEDDED, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None, "it is a pipe"
        ready = server.stdout.readline()  # eyas serves embedded at http://127.0.0.1:40123/v1 (arms: ...)
        url = next(word for word in ready.split() if word.startswith("http"))
        with tempfile.TemporaryDirectory() as directory:
            yield _compared(url, prompts, Path(directory), options.pairs)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(STOP_S)


def _compared(url: str, prompts: list[list[dict[str, str]]], directory: Path, pairs: int) -> Row:
    _write_prompts(directory / "prompts", prompts)
    arms = {
        "plain": lambda number: asyncio.run(_plain(url, prompts)),
        "eyas": lambda number: _eyas(url, directory / "prompts", directory / str(number)),
    }
    for arm in arms.values():
        for warm_up in (-1, -2):  # the server compiles its forwards at the same time
            arm(warm_up)
    found: dict[str, list[float]] = {name: [] for name in arms}
    for pair in range(pairs):
        for name in list(arms)[:: 1 if pair % 2 == 0 else -1]:
            found[name].append(arms[name](pair))
        figures = {name: round(values[-1], 1) for name, values in found.items()}
        print(f"respond: pair {pair + 1} of {pairs}: {figures} tokens/s", file=sys.stderr, flush=True)
    ratio = median(ours / plain for ours, plain in zip(found["eyas"], found["plain"], strict=True))
    name = f"eyas respond over a plain client, output tokens per second, {CONCURRENCY} requests at a time"
    return Row(name, round(ratio, 3), f"at least {MIN_RATIO}", ratio >= MIN_RATIO)


async def _plain(url: str, prompts: Sequence[list[dict[str, str]]]) -> float:
    """Returns the output tokens per second of a client that only sends requests."""
    waiting, tokens = list(prompts), 0

    async def worker(client: httpx.AsyncClient) -> None:
        nonlocal tokens
        while waiting:
            body = {"model": EMBEDDED, "messages": waiting.pop(0), "max_tokens": MAX_TOKENS, "temperature": 0}
            reply = await client.post("/chat/completions", json=body)
            reply.raise_for_status()
            tokens += reply.json()["usage"]["completion_tokens"]

    began_s = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        await asyncio.gather(*(worker(client) for _ in range(CONCURRENCY)))
    return tokens / (time.perf_counter() - began_s)


def _eyas(url: str, prompts: Path, out: Path) -> float:
    """Returns the output tokens per second of the respond stage, from its call to its finished directory."""
    from eyas.chat.conversation import read_conversation_dir
    from eyas.data.answers import respond, respond_config
    from eyas.recipe import Recipe, Run, TargetConfig

    config = respond_config.RespondConfig(url=url, model=EMBEDDED, max_tokens=MAX_TOKENS, concurrency=CONCURRENCY)
    work = Run(Recipe(target=TargetConfig(EMBEDDED), respond=config), out)
    responder = work.build_responder()
    conversations = out / "conversations"
    began_s = time.perf_counter()
    respond.run(config, prompts, conversations, responder, progress=False)
    passed_s = time.perf_counter() - began_s
    tokens = sum(len(turn.token_ids) for each in read_conversation_dir(conversations) for turn in each.turns)
    return tokens / passed_s


def _write_prompts(directory: Path, prompts: Sequence[list[dict[str, str]]]) -> None:
    """Writes a finished prompts directory."""
    from eyas.base.provenance import StageInputs, finish_stage
    from eyas.chat.conversation import Conversation, Message

    directory.mkdir()
    records = [
        Conversation(f"q:{i}", "q", tuple(Message("user", message["content"]) for message in prompt), {"task": "q"})
        for i, prompt in enumerate(prompts)
    ]
    (directory / "prompts.jsonl").write_bytes(b"".join(record.to_line() for record in records))
    finish_stage(directory, StageInputs("prompts", "prove-data", {}), time.time())
