"""Plans the batches of an epoch and divides them among processes.

The plan is a pure function of (seed, epoch) and the manifest. So a resumed run continues with the very next batch, and
the number of processes changes only who computes a micro-batch, not its rows.

    update        = rows until `batch_tokens` supervised tokens are together      one optimizer step
    micro-batch   = its rows until `micro_tokens` tokens are together             one forward and backward, packed

    update 1    [ micro a ][ micro b ][ micro c ][ micro d ]      rank 0 takes a and d, rank 1 takes b and c:
                  900        800        700        500              `assign_to_ranks`, by tokens
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eyas.features.shard import RowInfo


@dataclass(frozen=True)
class Update:
    """One optimizer step: its micro-batches as indices into the manifest's rows, and its supervised tokens."""

    micro_batches: tuple[tuple[int, ...], ...]
    num_supervised: int


def plan_epoch(
    rows: Sequence[RowInfo],
    indices: Sequence[int],
    seed_and_epoch: tuple[int, int],
    batch_tokens: int,
    micro_tokens: int,
) -> list[Update]:
    """Returns the updates of one epoch over those rows that have supervised tokens, in random order.

    A row longer than `micro_tokens` is a micro-batch of its own. The last update may be smaller.
    """
    usable = [index for index in indices if rows[index].num_supervised > 0]
    shuffled = np.random.default_rng(seed_and_epoch).permutation(len(usable))
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
    """Returns the micro-batches of each rank, in the order of the update. A rank may have none.

    The longest micro-batch goes first, always to the rank with the fewest tokens so far, on a tie to the lowest rank.
    The busiest rank gets at most 4/3 of the tokens of the best division (Graham, 1969).
    """
    tokens = [sum(rows[index].length for index in micro) for micro in update.micro_batches]
    load, assigned = [0] * world_size, [[] for _ in range(world_size)]
    for number in sorted(range(len(tokens)), key=lambda number: -tokens[number]):  # stable
        rank = min(range(world_size), key=load.__getitem__)
        load[rank] += tokens[number]
        assigned[rank].append(number)
    return [[update.micro_batches[number] for number in sorted(numbers)] for numbers in assigned]
