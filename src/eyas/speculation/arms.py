"""The arms: the ways to run a round, from plain decoding to the largest draft tree. The budget chooses one per round.

    name      what a round does
    off       plain decoding: the target computes one token per request; nothing is drafted
    chain5    drafts one path of 5 tokens, without branches; the cheapest way to draft, for engines with many requests
    tree16    drafts trees and verifies 16 nodes per request *on average*: of the nodes of all B requests, the 16 * B
              most likely ones

All trees have the same top-k, so a smaller tree is a part of a larger one. The acceptance of a larger tree therefore
shows the acceptance of the smaller one. Each level of a tree costs one forward of the head, so smaller trees have less
depth: 8 nodes rarely reach below depth 4. With 32 nodes and depth 6, most paths would end too early.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eyas.tree.shape import TreeShape, chain_shape


@dataclass(frozen=True)
class Arm:
    """One way to run a round.

    Attributes:
        name: The name for options and metrics, for example "tree16".
        shape: The shape of the draft trees; None for plain decoding.
    """

    name: str
    shape: TreeShape | None

    @property
    def nodes(self) -> int:
        """The number of tree nodes that the target verifies per request, the root included; 1 for plain decoding."""
        return 1 if self.shape is None else self.shape.nodes

    @property
    def depth(self) -> int:
        """The maximum number of draft tokens that a round can accept for one request."""
        return 0 if self.shape is None else min(self.shape.depth, self.shape.nodes - 1)

    @property
    def is_chain(self) -> bool:
        """True if the arm drafts one path without branches."""
        return self.shape is not None and self.shape.top_k == 1


OFF = Arm("off", None)
"""Plain decoding: no drafting, no extend."""


def largest_arms(arms: Sequence[Arm]) -> list[Arm]:
    """Returns the arms whose acceptance shows that of all: the longest chain, if there is a chain, and each tree."""
    chains = sorted((arm for arm in arms if arm.is_chain), key=lambda arm: arm.depth)
    return [*chains[-1:], *(arm for arm in arms if arm.shape is not None and not arm.is_chain)]


def default_arms(max_depth: int | None = None) -> tuple[Arm, ...]:
    """Returns the arms of a server with a head, ordered by `Arm.nodes`. The first one is `OFF`.

    Args:
        max_depth: The number of tokens that the head can draft one after the other (`HeadConfig.max_depth`). Longer
            chains are left out, and trees are limited to this depth. None: no limit.
    """
    arms = (
        OFF,
        *(Arm(f"chain{depth}", chain_shape(depth)) for depth in (1, 2, 3, 5)),
        Arm("tree8", TreeShape(depth=4, top_k=4, nodes=8)),
        Arm("chain8", chain_shape(8)),
        Arm("tree16", TreeShape(depth=6, top_k=4, nodes=16)),
        Arm("tree32", TreeShape(depth=8, top_k=4, nodes=32)),
    )
    limited = [Arm(arm.name, arm.shape and arm.shape.limit_depth(max_depth)) for arm in arms]
    return tuple(arm for arm, full in zip(limited, arms, strict=True) if not arm.is_chain or arm == full)
