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
from eyas.chat.conversation import Conversation, read
from eyas.synth.dedupe import Duplicates
from eyas.synth.ledger import Tally
from eyas.synth.records import read_piece
from eyas.synth.screen import Work
from eyas.synth.shapes import Shaped, read_shape
from eyas.synth.sources import SourceConfig, open_source
from eyas.synth.traffic import Traffic, sampled

DUPLICATE = "duplicate"
POOL_SAMPLE = 5000  # screened prompts from which topics are learnt
MOST_PRODUCTION = 20_000  # requests of the log that are looked at
BATCH = 1000  # prompts whose features are computed at a time


@dataclass(frozen=True, eq=False)
class Choice:
    """What becomes of each screened record. kept_N; duplicate_of: number of the earlier record; traffic for the ledger."""

    kept_N: NDArray[np.bool_]
    duplicates: dict[int, int]
    traffic: dict[str, Any] | None


def choose(work: Work) -> Choice:
    """Decides over everything that was screened. InputError for a production log without prompts."""
    digests_N, lengths_N, sources_N = _arrays(work)
    duplicates = _duplicates(work, digests_N)
    candidates = np.ones(len(digests_N), dtype=np.bool_)
    candidates[list(duplicates)] = False
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
    return Choice(kept, duplicates, traffic)


def screened(work: Work) -> Iterator[tuple[int, Conversation]]:
    """All screened conversations in order, each with the number of its source."""
    for number, piece in enumerate(work.pieces):
        for conversation in read(work.path(number, ".jsonl")):
            yield piece.source, conversation


def tally_of(work: Work, number: int) -> Tally:
    """What came and went in one piece."""
    return Tally.load(json.loads(work.path(number, ".json").read_bytes()))


def _arrays(work: Work) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
    parts = []
    for number, piece in enumerate(work.pieces):
        with np.load(work.path(number, ".npz")) as held:
            count = len(held["digests"])
            parts.append((held["digests"], held["lengths"], np.full(count, piece.source, dtype=np.int32)))
    digests, lengths, sources = (np.concatenate(part) for part in zip(*parts, strict=True))
    return digests, lengths, sources


def _duplicates(work: Work, digests_N: NDArray[np.uint64]) -> dict[int, int]:
    """Number of a record to that of the earlier one that it repeats. Near ones are looked for in people's words."""
    _, first, inverse = np.unique(digests_N, return_index=True, return_inverse=True)
    firsts_N = first[inverse]
    repeated = np.flatnonzero(firsts_N != np.arange(len(digests_N)))
    found = {int(number): int(firsts_N[number]) for number in repeated}
    nearly = Duplicates(work.directory / "near", work.config.duplicate)
    numbers: list[NDArray[np.int64]] = []
    at = 0
    for number, piece in enumerate(work.pieces):
        with np.load(work.path(number, ".npz")) as held:
            count = len(held["digests"])
            if not work.sources[piece.source].config.is_builtin:
                nearly.add(held["signatures"])
                numbers.append(np.arange(at, at + count))
            at += count
    if numbers:
        place = np.concatenate(numbers)
        for later, earlier in nearly.decide():
            found.setdefault(int(place[later]), int(place[earlier]))
    return found


# --- traffic ---------------------------------------------------------------------------------------------------------


def _like_production(
    work: Work, numbers: NDArray[np.int64], lengths_N: NDArray[np.int64], sources_N: NDArray[np.int32]
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    config = work.config
    asked = _production(config.production or "", config.seed)
    is_candidate = np.zeros(len(lengths_N), dtype=np.bool_)
    is_candidate[numbers] = True
    pool = [
        _asked(conversation)
        for number, (_, conversation) in enumerate(screened(work))
        if is_candidate[number] and sampled(conversation.id, POOL_SAMPLE / len(numbers), config.seed)
    ]
    traffic = Traffic.fit(asked, pool, config.seed)
    cells_N = np.concatenate([traffic.cells(batch) for batch in _batches(work)])
    lengths, cells, sources = lengths_N[numbers], cells_N[numbers], sources_N[numbers]
    told = {
        "production": {"prompts": len(asked)},
        "sources": {
            _name(work, source): traffic.distance(cells[sources == source], lengths[sources == source]).to_json()
            for source in sorted(set(sources.tolist()))
        },
    }
    chosen = traffic.select(cells, lengths, config.limit, config.seed)
    return numbers[chosen.indices], told | chosen.to_json()


def _production(path: str, seed: int) -> list[str]:
    """What users asked, of at most MOST_PRODUCTION requests. Nothing of it is kept."""
    source = open_source(SourceConfig(path), 0)
    share, texts = MOST_PRODUCTION / max(source.count, 1), []
    for piece in source.pieces:
        for record in read_piece(source, piece):
            if share < 1 and not sampled(record.id, share, seed):
                continue
            shaped = read_shape(record.value) if record.is_json else None
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


def _name(work: Work, number: int) -> str:
    source = work.sources[number]
    return ", ".join(sorted({file.source for file in source.files}))


def digest_of_log(path: str) -> str:
    """The digest of a production log's files."""
    return digest_json(sorted(open_source(SourceConfig(path), 0).digests.values()))
