"""Plans the batches of an epoch and divides them among processes.

The plan depends only on (seed, epoch) and the manifest. So a resumed run continues with the next update. The number of
processes changes which process computes a micro-batch, but not the rows of the micro-batch.

    update        = rows with `batch_tokens` supervised tokens in total           one optimizer step
    micro-batch   = rows of an update with at most `micro_tokens` tokens          one packed forward and backward

    micro-batches of update 1    [ a ]   [ b ]   [ c ]   [ d ]      `assign_to_ranks` balances the tokens:
    tokens in each of them        900     800     700     500         rank 0 gets a and d, rank 1 gets b and c
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eyas.features.shard import RowInfo


@dataclass(frozen=True)
class Update:
    """The rows of one optimizer step.

    Attributes:
        micro_batches: For each micro-batch, the indices of its rows in `Manifest.rows`.
        num_supervised: The supervised tokens of all micro-batches.
    """

    micro_batches: tuple[tuple[int, ...], ...]
    num_supervised: int


def plan_epoch(
    rows: Sequence[RowInfo], indices: Sequence[int], epoch_seed: tuple[int, int], batch_tokens: int, micro_tokens: int
) -> list[Update]:
    """Returns the updates of one epoch. Rows are shuffled; a row without supervised tokens is left out.

    A row longer than `micro_tokens` is a separate micro-batch. The last update may be smaller.

    Args:
        rows: All rows of the manifest.
        indices: The indices of the rows to train on.
        epoch_seed: The seed of the shuffle: the seed of the training, and the epoch.
        batch_tokens: The supervised tokens that complete an update.
        micro_tokens: The most tokens of a micro-batch, prompts included.
    """
    usable = [index for index in indices if rows[index].num_supervised > 0]
    shuffled = np.random.default_rng(epoch_seed).permutation(len(usable))
    updates: list[Update] = []
    micro_batches: list[list[int]] = []
    num_tokens = num_supervised = 0
    for position, index in enumerate((usable[i] for i in shuffled), 1):
        row = rows[index]
        if not micro_batches or num_tokens + row.length > micro_tokens:
            micro_batches.append([])
            num_tokens = 0
        micro_batches[-1].append(index)
        num_tokens += row.length
        num_supervised += row.num_supervised
        if num_supervised >= batch_tokens or position == len(usable):
            updates.append(Update(tuple(tuple(micro) for micro in micro_batches), num_supervised))
            micro_batches, num_tokens, num_supervised = [], 0, 0
    return updates


def assign_to_ranks(update: Update, rows: Sequence[RowInfo], world_size: int) -> list[list[tuple[int, ...]]]:
    """Returns the micro-batches of each rank, in the order of the update. The list of a rank may be empty.

    Micro-batches are assigned from the longest to the shortest. Each goes to the rank with the fewest tokens so far; on
    a tie, to the lowest rank. The busiest rank gets at most 4/3 of the tokens that it would get in the best possible
    assignment (Graham, 1969).
    """
    tokens = [sum(rows[index].length for index in micro) for micro in update.micro_batches]
    load, assigned = [0] * world_size, [[] for _ in range(world_size)]
    for number in sorted(range(len(tokens)), key=lambda number: -tokens[number]):  # stable
        rank = min(range(world_size), key=load.__getitem__)
        load[rank] += tokens[number]
        assigned[rank].append(number)
    return [[update.micro_batches[number] for number in sorted(numbers)] for numbers in assigned]
