"""The arms: ways to run a round, from plain decoding to the largest draft tree. The budget chooses one each round.

    off      the target alone: no drafting, no extend
    chain d  one path of d drafted nodes: the cheapest drafting, for busy engines
    tree n   n rows of verify for each request *on average*: with B requests the round verifies n * B rows, and the
             most likely nodes of the whole batch fill them

All trees have the same top-k, so each is a part of the next: the acceptance of a larger tree shows that of a smaller
one. Depth grows with the nodes because each level costs one forward of the head: 8 nodes rarely reach below depth 4,
and 32 nodes at depth 6 would stop where most paths still continue.
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
        """The most draft tokens that a round can accept."""
        return 0 if self.shape is None else min(self.shape.depth, self.shape.nodes - 1)

    @property
    def is_chain(self) -> bool:
        """True if it drafts one path without branches."""
        return self.shape is not None and self.shape.top_k == 1


OFF = Arm("off", None)
"""Plain decoding: no drafting, no extend."""


def default_arms() -> tuple[Arm, ...]:
    """Returns off, chains and trees, ordered by rows of verify."""
    return (
        OFF,
        *(Arm(f"chain{depth}", chain_shape(depth)) for depth in (1, 2, 3, 5)),
        Arm("tree8", TreeShape(depth=4, top_k=4, nodes=8)),
        Arm("chain8", chain_shape(8)),
        Arm("tree16", TreeShape(depth=6, top_k=4, nodes=16)),
        Arm("tree32", TreeShape(depth=8, top_k=4, nodes=32)),
    )
