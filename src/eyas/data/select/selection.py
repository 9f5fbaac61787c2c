"""Selects prompts from the screened candidates: without duplicates, similar to production traffic, at most the limit.

    candidates -> drop duplicates and near-duplicates -> sample to match production, or at random -> prompts

It needs only a few bytes of memory for each of the N candidates.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.base.errors import InputError
from eyas.base.provenance import digest_json
from eyas.base.storage import convert_write_errors
from eyas.chat.conversation import Conversation, find_user_turns, read_conversations
from eyas.data.select.deduplicate import NearDuplicates
from eyas.data.select.screen import ScreeningJob
from eyas.data.select.traffic import MAX_FITTED, TrafficModel, sample_texts
from eyas.data.sources.record_formats import ParsedRecord, parse_record
from eyas.data.sources.source import SourceConfig, open_source, read_shard

DUPLICATE, NEAR_DUPLICATE = "duplicate", "near_duplicate"
MAX_PRODUCTION_REQUESTS = 20_000  # requests of the log that are read
BATCH_PROMPTS = 1000  # prompts whose features are computed at a time


@dataclass(frozen=True, eq=False)
class Selection:
    """The selection among all N candidates.

    Attributes:
        keep_N: True for each selected candidate.
        duplicates: The duplicates, by the number of the candidate: DUPLICATE or NEAR_DUPLICATE, and the number of the
            earlier candidate.
        traffic: The entry `traffic` of ledger.json; None without a production log.
    """

    keep_N: NDArray[np.bool_]
    duplicates: dict[int, tuple[str, int]]
    traffic: dict[str, Any] | None


def select_prompts(job: ScreeningJob) -> Selection:
    """Selects prompts from all screened candidates. Raises InputError if the production log has no prompts."""
    digests_N, lengths_N, sources_N = _load_arrays(job)
    duplicates = _find_duplicates(job, digests_N, sources_N)
    all_N = np.arange(len(digests_N))
    numbers = np.delete(all_N, list(duplicates))
    limit = job.config.limit
    traffic = None
    if job.config.production is not None:
        numbers, traffic = _match_production(job, numbers, lengths_N, sources_N)
    elif limit is not None and len(numbers) > limit:
        numbers = numbers[sorted(random.Random(job.config.seed).sample(range(len(numbers)), limit))]
    return Selection(np.isin(all_N, numbers), duplicates, traffic)


def read_screened(job: ScreeningJob) -> Iterator[tuple[int, Conversation]]:
    """Yields all candidates in order, each with the index of its source."""
    for number, shard in enumerate(job.shards):
        for conversation in read_conversations(job.path(number, ".jsonl")):
            yield shard.source_index, conversation


def _load_arrays(job: ScreeningJob) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
    """Returns digest, length in characters and source index of each candidate."""
    parts = []
    for number, shard in enumerate(job.shards):
        with np.load(job.path(number, ".npz")) as arrays:
            count = len(arrays["digests"])
            parts.append((arrays["digests"], arrays["lengths"], np.full(count, shard.source_index, dtype=np.int32)))
    digests, lengths, sources = (np.concatenate(part) for part in zip(*parts, strict=True))
    return digests, lengths, sources


def _find_duplicates(
    job: ScreeningJob, digests_N: NDArray[np.uint64], sources_N: NDArray[np.int32]
) -> dict[int, tuple[str, int]]:
    """Returns `Selection.duplicates`.

    Prompts that eyas writes itself (builtin: sources) are compared for exact copies only.
    """
    _, first, inverse = np.unique(digests_N, return_index=True, return_inverse=True)
    firsts_N = first[inverse]
    repeated = np.flatnonzero(firsts_N != np.arange(len(digests_N)))
    found = {int(number): (DUPLICATE, int(firsts_N[number])) for number in repeated}
    builtin = [index for index, source in enumerate(job.sources) if source.config.is_builtin]
    number_X = np.flatnonzero(~np.isin(sources_N, builtin))  # X: candidates with a signature
    with convert_write_errors(job.directory), NearDuplicates(job.directory, job.config.duplicate) as near:
        for number in range(len(job.shards)):
            with np.load(job.path(number, ".npz")) as arrays:
                near.add(arrays["signatures"])
        for later, earlier in number_X[near.find()].tolist():
            found.setdefault(later, (NEAR_DUPLICATE, earlier))
    return found


# --- traffic ---------------------------------------------------------------------------------------------------------


def _match_production(
    job: ScreeningJob, numbers: NDArray[np.int64], lengths_N: NDArray[np.int64], sources_N: NDArray[np.int32]
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """Selects candidates so that topics and lengths resemble production.

    Args:
        job: The screening job.
        numbers: The numbers of the candidates that are no duplicates.
        lengths_N: The characters of each candidate.
        sources_N: The index of the source of each candidate.

    Returns:
        The numbers of the selected candidates, and the entry `traffic` of ledger.json.
    """
    config = job.config
    production = _read_production_log(config.production or "")
    is_candidate = np.isin(np.arange(len(lengths_N)), numbers)
    texts = ((each.id, "\n".join(find_user_turns(each.messages))) for _, each in read_screened(job))
    pool = sample_texts(compress(texts, is_candidate), MAX_FITTED, config.seed)
    model = TrafficModel.fit(production, pool, config.seed)
    cells_N = np.concatenate([model.assign_cells(batch) for batch in _iter_text_batches(job)])
    lengths, cells, sources = lengths_N[numbers], cells_N[numbers], sources_N[numbers]
    by_source = {}
    for index in sorted(set(sources.tolist())):
        distance = model.measure_distance(cells[sources == index], lengths[sources == index])
        by_source[job.sources[index].name] = distance.to_json()
    selected = model.select(cells, lengths, config.limit, config.seed)
    return numbers[selected.indices], {
        "production": {"prompts": len(production)},
        "sources": by_source,
        "before": selected.before.to_json(),
        "after": selected.after.to_json(),
        "shortfall": selected.shortfalls,
    }


def _read_production_log(path: str) -> list[str]:
    """Returns the user turns of at most MAX_PRODUCTION_REQUESTS requests, evenly spread over the log."""
    source, texts = open_source(SourceConfig(path), 0), []
    step = -(-source.num_records // MAX_PRODUCTION_REQUESTS)
    for shard in source.shards:
        for number, record in enumerate(read_shard(source, shard), start=shard.first_record):
            parsed = parse_record(record.value) if number % step == 0 else None
            if isinstance(parsed, ParsedRecord):
                texts.append("\n".join(find_user_turns(parsed.messages)))
    if not texts:
        raise InputError(f"prompts.production={path} holds no prompt", "Name a log of requests with their messages")
    return texts


def _iter_text_batches(job: ScreeningJob) -> Iterator[list[str]]:
    texts = ("\n".join(find_user_turns(conversation.messages)) for _, conversation in read_screened(job))
    while batch := list(islice(texts, BATCH_PROMPTS)):
        yield batch


def digest_log(path: str) -> str:
    """Returns the digest of the files of a production log."""
    return digest_json(sorted(open_source(SourceConfig(path), 0).digests.values()))
