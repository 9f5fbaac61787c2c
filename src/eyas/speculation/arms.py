"""What a round can run, for whom, and what was decided: the words between the engine and its budget.

Default arms, and what the embedded pair accepts with each (docs: acceptance length at one stream, float32):

    off      the target alone: no drafting, no extend
    chain d  one path of d drafted nodes: the cheapest drafting, for busy engines
    tree n   n rows of verify for each request *on average*: with B requests the round verifies n * B rows, and the
             likeliest nodes of the whole batch fill them

All trees have the same top-k, so each is a piece of the next: what a larger one accepted says what a smaller one would
have. Depth grows with the nodes because each level costs one forward of the head: 8 nodes rarely reach below depth 4,
and 32 nodes at depth 6 would stop where most paths still go on.
"""

from dataclasses import dataclass

from eyas.tree.shape import TreeShape, chain_shape


@dataclass(frozen=True)
class Arm:
    """One way to run a round. shape None: the target alone."""

    name: str
    shape: TreeShape | None

    @property
    def nodes(self) -> int:
        """Rows of the verify forward for each request, the root included."""
        return 1 if self.shape is None else self.shape.nodes

    @property
    def depth(self) -> int:
        """The most drafted tokens that a round can accept."""
        return 0 if self.shape is None else min(self.shape.depth, self.shape.nodes - 1)

    @property
    def is_chain(self) -> bool:
        """Whether it drafts one path without branches."""
        return self.shape is not None and self.shape.top_k == 1


OFF = Arm("off", None)
"""No drafting, no extend: the target alone."""


def default_arms() -> tuple[Arm, ...]:
    """Off, chains and trees, by rows of verify."""
    return (
        OFF,
        *(Arm(f"chain{depth}", chain_shape(depth)) for depth in (1, 2, 3, 5)),
        Arm("tree8", TreeShape(depth=4, top_k=4, nodes=8)),
        Arm("chain8", chain_shape(8)),
        Arm("tree16", TreeShape(depth=6, top_k=4, nodes=16)),
        Arm("tree32", TreeShape(depth=8, top_k=4, nodes=32)),
    )


@dataclass(frozen=True)
class BatchLoad:
    """Who takes part in a round.

    contexts   tokens before the root, of each request that follows the arm
    lags       committed tokens that the head has not read yet, of each of them
    fixed      contexts of the requests that run besides, with one row whatever the arm: speculation "off"
    """

    contexts: tuple[int, ...]
    draft_lags: tuple[int, ...]
    plain_contexts: tuple[int, ...] = ()

    @property
    def num_requests(self) -> int:
        """Requests of the round."""
        return len(self.contexts) + len(self.plain_contexts)


@dataclass(frozen=True)
class SpeculationDecision:
    """What the budget decided for one round; the engine hands it back with what came out.

    arm     the arm to run
    drafts  which of load.contexts draft: none for off, else all; one alone, where off is best and another is tried
    best    the arm that it would run if it did not explore
    """

    arm: Arm
    drafts: tuple[bool, ...]
    best_arm: Arm
    load: BatchLoad

    @property
    def is_exploration(self) -> bool:
        """Whether the round is run to learn from it."""
        return self.arm != self.best_arm

    @property
    def is_partial(self) -> bool:
        """Whether only some draft: such a round says what they accept, not what the arm costs."""
        return any(self.drafts) and not all(self.drafts)
