"""Many clients at once, some rude: what the server must survive, and what every answer must still be."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.engine.small import CONTEXT

from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.model.target import Target
from eyas.tree.sampling import SamplingParams

CLIENTS = 24
MOST_TOKENS = 48
LONGEST_S = 60.0
PATIENCE_S = 0.05  # before a refused client asks again
MALFORMED: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[1, 2]",
    b'{"model": "tiny"}',
    b'{"model": "tiny", "prompt": "a", "max_tokens": -1}',
    b'{"model": "tiny", "prompt": "a", "temperature": "hot"}',
    b'{"model": "tiny", "prompt": "a", "tempreature": 1}',
    b'{"model": "other", "prompt": "a"}',
    b'{"model": "tiny", "prompt": [1, 99999999]}',
    b"\xff\xfe\x00",
)


@dataclass(frozen=True)
class Case:
    """A prompt with its settings, and the tokens that it gets alone in a server without a head."""

    prompt_ids: tuple[int, ...]
    temperature: float
    seed: int
    token_ids: tuple[int, ...]


@dataclass
class Report:
    """What came of it: outcomes by kind, and what went wrong in words."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def solo_cases(target: Target, count: int, seed: int) -> list[Case]:
    """Prompts of many lengths, some with a common beginning, each answered alone by plain decoding."""
    rng = random.Random(seed)
    stem = [rng.randrange(256) for _ in range(120)]
    engine = Engine(target, (), 1, CONTEXT)
    cases = []
    for number in range(count):
        begin = stem[: rng.choice((0, 0, 30, 100, 120))]
        ids = (*begin, *(rng.randrange(256) for _ in range(rng.randint(1, 60))))
        temperature = rng.choice((0.0, 0.0, 0.8))
        request = Request(str(number), ids, MOST_TOKENS, SamplingParams(temperature), number)
        (answer,) = plain_loop(engine, RequestList([request]))
        cases.append(Case(ids, temperature, number, tuple(answer.token_ids)))
    return cases


def soak(url: str, cases: Sequence[Case], num_requests: int, seed: int) -> Report:
    """Send the requests, CLIENTS at a time; every one must end within LONGEST_S."""
    return asyncio.run(_soak(url, cases, num_requests, seed))


async def _soak(url: str, cases: Sequence[Case], num_requests: int, seed: int) -> Report:
    report, numbers = Report(), iter(range(num_requests))
    limits = httpx.Limits(max_connections=CLIENTS + 4)
    async with httpx.AsyncClient(base_url=url, timeout=LONGEST_S, limits=limits) as client:

        async def work() -> None:
            for number in numbers:
                rng = random.Random(seed * 1_000_003 + number)
                try:
                    await asyncio.wait_for(_one(client, cases, rng, report), LONGEST_S)
                except (TimeoutError, httpx.HTTPError) as error:
                    report.wrong.append(f"request {number}: {type(error).__name__} {error}")

        await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return report


async def _one(client: httpx.AsyncClient, cases: Sequence[Case], rng: random.Random, report: Report) -> None:
    kind = rng.choices(("plain", "stream", "leave", "malformed", "stop"), (40, 25, 15, 10, 10))[0]
    if kind == "malformed":
        reply = await client.post("/v1/completions", content=rng.choice(MALFORMED))
        report.outcomes[f"malformed {reply.status_code}"] += 1
        if not 400 <= reply.status_code < 500:
            report.wrong.append(f"a malformed body got {reply.status_code}")
        return
    case = rng.choice(cases)
    num_tokens = rng.randint(1, MOST_TOKENS)
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": list(case.prompt_ids),
        "max_tokens": num_tokens,
        "temperature": case.temperature,
        "seed": case.seed,
        "return_token_ids": True,
        "speculation": rng.choice(("auto", "auto", "off", "max")),
    }
    wanted = list(case.token_ids[:num_tokens])
    if kind == "stop":  # a stop id that the answer holds: it ends there
        place = rng.randrange(len(wanted))
        body["stop_token_ids"] = [wanted[place]]
        wanted = wanted[: wanted.index(wanted[place]) + 1]
    if kind == "plain" or kind == "stop":
        reply = await client.post("/v1/completions", json=body)
        while reply.status_code == 429:
            report.outcomes["429"] += 1
            await asyncio.sleep(PATIENCE_S)
            reply = await client.post("/v1/completions", json=body)
        report.outcomes[f"{kind} {reply.status_code}"] += 1
        found = reply.json()["choices"][0]["token_ids"] if reply.status_code == 200 else None
        if found != wanted:
            report.wrong.append(f"{kind}: {body} got {found}, alone {wanted}")
        return
    await _stream(client, body | {"stream": True}, wanted, kind == "leave", rng, report)


async def _stream(
    client: httpx.AsyncClient, body: dict[str, Any], wanted: list[int], leaves: bool, rng: random.Random, report: Report
) -> None:
    """Read a stream to its end, or leave it in the middle."""
    patience, found = rng.randint(0, 6) if leaves else None, []
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        if reply.status_code != 200:
            report.outcomes[str(reply.status_code)] += 1
            if reply.status_code != 429:
                report.wrong.append(f"stream: {body} got {reply.status_code}")
            return
        number = 0
        async for line in reply.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
                found += choice.get("token_ids") or []
            number += 1
            if patience is not None and number > patience:
                report.outcomes["left"] += 1
                return
    report.outcomes["stream 200"] += 1
    if found != wanted:
        report.wrong.append(f"stream: {body} got {found}, alone {wanted}")
