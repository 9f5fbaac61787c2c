"""Which of the screened prompts are kept: without repetitions, like production traffic, no more than the limit.

N screened records. Works on a few bytes a record, so that memory hardly grows with the data.

    screened -> equal or nearly equal to an earlier one -> drawn by traffic, or evenly -> kept
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.base.errors import InputError
from eyas.base.provenance import digest_json
from eyas.base.storage import convert_write_errors
from eyas.chat.conversation import Conversation, read_conversations
from eyas.data.ledger.ledger import Ledger
from eyas.data.select.deduplicate import Duplicates
from eyas.data.select.screen import Work
from eyas.data.select.traffic import MAX_FITTED, Sample, Traffic
from eyas.data.sources.record_formats import Shaped, read_shape
from eyas.data.sources.records import read_piece
from eyas.data.sources.source import Source, SourceConfig, open_source

DUPLICATE, NEAR_DUPLICATE = "duplicate", "near_duplicate"
MOST_PRODUCTION = 20_000  # requests of the log that are looked at
BATCH = 1000  # prompts whose features are computed at a time


@dataclass(frozen=True)
class Repeat:
    """Why a record is no prompt of its own. of: number of the earlier record that it repeats."""

    reason: str
    of: int


@dataclass(frozen=True, eq=False)
class Choice:
    """What becomes of each screened record. traffic: for the ledger, where there is a production log."""

    kept_N: NDArray[np.bool_]
    repeats: dict[int, Repeat]
    traffic: dict[str, Any] | None


def choose(work: Work) -> Choice:
    """Decides over everything that was screened. InputError for a production log without prompts."""
    digests_N, lengths_N, sources_N = _arrays(work)
    repeats = _repeats(work, digests_N, sources_N)
    candidates = np.ones(len(digests_N), dtype=np.bool_)
    candidates[list(repeats)] = False
    numbers = np.flatnonzero(candidates)
    limit = work.config.limit
    traffic = None
    if work.config.production is not None:
        numbers, traffic = _like_production(work, numbers, lengths_N, sources_N)
    elif limit is not None and len(numbers) > limit:
        drawn = random.Random(work.config.seed).sample(range(len(numbers)), limit)
        numbers = numbers[sorted(drawn)]
    kept = np.zeros(len(digests_N), dtype=np.bool_)
    kept[numbers] = True
    return Choice(kept, repeats, traffic)


def screened(work: Work) -> Iterator[tuple[int, Conversation]]:
    """All screened conversations in order, each with the number of its source."""
    for number, piece in enumerate(work.pieces):
        for conversation in read_conversations(work.path(number, ".jsonl")):
            yield piece.source, conversation


def ledger_of(work: Work, number: int) -> Ledger:
    """What came and went in one piece."""
    return Ledger.load(json.loads(work.path(number, ".json").read_bytes()))


def _arrays(work: Work) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
    parts = []
    for number, piece in enumerate(work.pieces):
        with np.load(work.path(number, ".npz")) as held:
            count = len(held["digests"])
            parts.append((held["digests"], held["lengths"], np.full(count, piece.source, dtype=np.int32)))
    digests, lengths, sources = (np.concatenate(part) for part in zip(*parts, strict=True))
    return digests, lengths, sources


def _repeats(work: Work, digests_N: NDArray[np.uint64], sources_N: NDArray[np.int32]) -> dict[int, Repeat]:
    """By number of the record. What is nearly equal is looked for in people's words only."""
    _, first, inverse = np.unique(digests_N, return_index=True, return_inverse=True)
    firsts_N = first[inverse]
    repeated = np.flatnonzero(firsts_N != np.arange(len(digests_N)))
    found = {int(number): Repeat(DUPLICATE, int(firsts_N[number])) for number in repeated}
    own = [number for number, source in enumerate(work.sources) if source.config.is_builtin]
    place_X = np.flatnonzero(~np.isin(sources_N, own))
    with convert_write_errors(work.directory), Duplicates(work.directory, work.config.duplicate) as nearly:
        for number in range(len(work.pieces)):
            with np.load(work.path(number, ".npz")) as held:
                nearly.add(held["signatures"])
        for later, earlier in place_X[nearly.decide()].tolist():
            found.setdefault(later, Repeat(NEAR_DUPLICATE, earlier))
    return found


# --- traffic ---------------------------------------------------------------------------------------------------------


def _like_production(
    work: Work, numbers: NDArray[np.int64], lengths_N: NDArray[np.int64], sources_N: NDArray[np.int32]
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """The chosen of the candidates, and what the ledger tells of it."""
    config = work.config
    asked = _production(config.production or "")
    is_candidate = np.zeros(len(lengths_N), dtype=np.bool_)
    is_candidate[numbers] = True
    pool = Sample(MAX_FITTED, config.seed)
    for number, (_, conversation) in enumerate(screened(work)):
        if is_candidate[number]:
            pool.add(conversation.id, _asked(conversation))
    traffic = Traffic.fit(asked, pool.texts(), config.seed)
    cells_N = np.concatenate([traffic.cells(batch) for batch in _batches(work)])
    lengths, cells, sources = lengths_N[numbers], cells_N[numbers], sources_N[numbers]
    told = {
        name_of(work.sources[source]): traffic.distances(cells[sources == source], lengths[sources == source]).to_json()
        for source in sorted(set(sources.tolist()))
    }
    chosen = traffic.select(cells, lengths, config.limit, config.seed)
    shortfall = [
        {
            "cell": f"topic {short.topic + 1}, {short.min_chars} to {short.max_chars or 'any number of'} characters",
            "wanted": short.wanted,
            "got": short.available,
        }
        for short in chosen.shortfalls
    ]
    return numbers[chosen.indices], {
        "production": {"prompts": len(asked)},
        "sources": told,
        "before": chosen.before.to_json(),
        "after": chosen.after.to_json(),
        "shortfall": shortfall,
    }


def _production(path: str) -> list[str]:
    """What users asked, in at most MOST_PRODUCTION requests spread over the log. Nothing of it is kept."""
    source, texts = open_source(SourceConfig(path), 0), []
    every = -(-source.count // MOST_PRODUCTION)
    for piece in source.pieces:
        for number, record in enumerate(read_piece(source, piece), start=piece.first):
            shaped = read_shape(record.value) if record.is_json and number % every == 0 else None
            if isinstance(shaped, Shaped):
                texts.append("\n".join(message.content for message in shaped.messages))
    if not texts:
        raise InputError(f"no prompt in {path}", "a log of requests with what users asked", "check prompts.production")
    return texts


def _batches(work: Work) -> Iterator[list[str]]:
    batch: list[str] = []
    for _, conversation in screened(work):
        batch.append(_asked(conversation))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _asked(conversation: Conversation) -> str:
    return "\n".join(message.content for message in conversation.messages if message.role == "user")


def name_of(source: Source) -> str:
    """What the ledger calls it."""
    return ", ".join(sorted({file.source for file in source.files}))


def digest_of_log(path: str) -> str:
    """The digest of a production log's files."""
    return digest_json(sorted(open_source(SourceConfig(path), 0).digests.values()))
