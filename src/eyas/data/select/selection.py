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
from eyas.data.select.deduplicate import NearDuplicates
from eyas.data.select.screen import ScreeningJob
from eyas.data.select.traffic import MAX_FITTED, TextSample, TrafficModel
from eyas.data.sources.record_formats import ParsedRecord, parse_record
from eyas.data.sources.source import SourceConfig, open_source, read_shard

DUPLICATE, NEAR_DUPLICATE = "duplicate", "near_duplicate"
MAX_PRODUCTION_REQUESTS = 20_000  # requests of the log that are looked at
BATCH_PROMPTS = 1000  # prompts whose features are computed at a time


@dataclass(frozen=True)
class Duplicate:
    """Why a record is no prompt of its own. of: number of the earlier record that it repeats."""

    reason: str
    original: int


@dataclass(frozen=True, eq=False)
class Selection:
    """What becomes of each screened record. traffic: for the ledger, where there is a production log."""

    keep_N: NDArray[np.bool_]
    duplicates: dict[int, Duplicate]
    traffic: dict[str, Any] | None


def select_prompts(job: ScreeningJob) -> Selection:
    """Decides over everything that was screened. InputError for a production log without prompts."""
    digests_N, lengths_N, sources_N = _load_arrays(job)
    repeats = _find_duplicates(job, digests_N, sources_N)
    candidates = np.ones(len(digests_N), dtype=np.bool_)
    candidates[list(repeats)] = False
    numbers = np.flatnonzero(candidates)
    limit = job.config.limit
    traffic = None
    if job.config.production is not None:
        numbers, traffic = _match_production(job, numbers, lengths_N, sources_N)
    elif limit is not None and len(numbers) > limit:
        drawn = random.Random(job.config.seed).sample(range(len(numbers)), limit)
        numbers = numbers[sorted(drawn)]
    kept = np.zeros(len(digests_N), dtype=np.bool_)
    kept[numbers] = True
    return Selection(kept, repeats, traffic)


def read_screened(job: ScreeningJob) -> Iterator[tuple[int, Conversation]]:
    """All screened conversations in order, each with the number of its source."""
    for number, piece in enumerate(job.shards):
        for conversation in read_conversations(job.path(number, ".jsonl")):
            yield piece.source_index, conversation


def read_shard_ledger(job: ScreeningJob, number: int) -> Ledger:
    """What came and went in one piece."""
    return Ledger.load(json.loads(job.path(number, ".json").read_bytes()))


def _load_arrays(work: ScreeningJob) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
    parts = []
    for number, piece in enumerate(work.shards):
        with np.load(work.path(number, ".npz")) as held:
            count = len(held["digests"])
            parts.append((held["digests"], held["lengths"], np.full(count, piece.source_index, dtype=np.int32)))
    digests, lengths, sources = (np.concatenate(part) for part in zip(*parts, strict=True))
    return digests, lengths, sources


def _find_duplicates(
    work: ScreeningJob, digests_N: NDArray[np.uint64], sources_N: NDArray[np.int32]
) -> dict[int, Duplicate]:
    """By number of the record. What is nearly equal is looked for in people's words only."""
    _, first, inverse = np.unique(digests_N, return_index=True, return_inverse=True)
    firsts_N = first[inverse]
    repeated = np.flatnonzero(firsts_N != np.arange(len(digests_N)))
    found = {int(number): Duplicate(DUPLICATE, int(firsts_N[number])) for number in repeated}
    own = [number for number, source in enumerate(work.sources) if source.config.is_builtin]
    place_X = np.flatnonzero(~np.isin(sources_N, own))
    with convert_write_errors(work.directory), NearDuplicates(work.directory, work.config.duplicate) as nearly:
        for number in range(len(work.shards)):
            with np.load(work.path(number, ".npz")) as held:
                nearly.add(held["signatures"])
        for later, earlier in place_X[nearly.find()].tolist():
            found.setdefault(later, Duplicate(NEAR_DUPLICATE, earlier))
    return found


# --- traffic ---------------------------------------------------------------------------------------------------------


def _match_production(
    work: ScreeningJob, numbers: NDArray[np.int64], lengths_N: NDArray[np.int64], sources_N: NDArray[np.int32]
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """The chosen of the candidates, and what the ledger tells of it."""
    config = work.config
    asked = _read_production_log(config.production or "")
    is_candidate = np.zeros(len(lengths_N), dtype=np.bool_)
    is_candidate[numbers] = True
    pool = TextSample(MAX_FITTED, config.seed)
    for number, (_, conversation) in enumerate(read_screened(work)):
        if is_candidate[number]:
            pool.add(conversation.id, _user_text(conversation))
    traffic = TrafficModel.fit(asked, pool.texts(), config.seed)
    cells_N = np.concatenate([traffic.assign_cells(batch) for batch in _iter_text_batches(work)])
    lengths, cells, sources = lengths_N[numbers], cells_N[numbers], sources_N[numbers]
    told = {
        work.sources[source].name: traffic.measure_distance(
            cells[sources == source], lengths[sources == source]
        ).to_json()
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


def _read_production_log(path: str) -> list[str]:
    """What users asked, in at most MAX_PRODUCTION_REQUESTS requests spread over the log. Nothing of it is kept."""
    source, texts = open_source(SourceConfig(path), 0), []
    every = -(-source.num_records // MAX_PRODUCTION_REQUESTS)
    for piece in source.shards:
        for number, record in enumerate(read_shard(source, piece), start=piece.first_record):
            shaped = parse_record(record.value) if record.is_json and number % every == 0 else None
            if isinstance(shaped, ParsedRecord):
                texts.append("\n".join(message.content for message in shaped.messages))
    if not texts:
        raise InputError(f"no prompt in {path}", "a log of requests with what users asked", "check prompts.production")
    return texts


def _iter_text_batches(work: ScreeningJob) -> Iterator[list[str]]:
    batch: list[str] = []
    for _, conversation in read_screened(work):
        batch.append(_user_text(conversation))
        if len(batch) == BATCH_PROMPTS:
            yield batch
            batch = []
    if batch:
        yield batch


def _user_text(conversation: Conversation) -> str:
    return "\n".join(message.content for message in conversation.messages if message.role == "user")


def digest_log(path: str) -> str:
    """The digest of a production log's files."""
    return digest_json(sorted(open_source(SourceConfig(path), 0).digests.values()))
