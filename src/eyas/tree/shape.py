"""The shape of a draft tree: the unit in which the budget of a round is counted."""

from dataclasses import dataclass

from eyas.base.errors import UsageError


@dataclass(frozen=True)
class TreeShape:
    """How far and how wide a round drafts, and how much of it the target verifies.

    depth: levels below the root; a round accepts at most depth + 1 tokens (the bonus included).
    top_k: nodes expanded in each level, and children scored for each of them.
    nodes: rows of the target's verify forward, *the root included* (SGLang's num-draft-tokens, EAGLE's total_token).
    Raises UsageError when a value is no positive integer or no node is left beside the root.
    """

    depth: int
    top_k: int
    nodes: int

    def __post_init__(self) -> None:
        bounds = (("depth", self.depth, 1), ("top_k", self.top_k, 1), ("nodes", self.nodes, 2))
        for name, value, least in bounds:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(
                    f"tree {name} = {value!r}",
                    f"an integer of at least {least}",
                    f"set {name} to {least} or more (the root is one of the nodes)",
                )

    @property
    def name(self) -> str:
        """DEPTH,TOP_K,NODES, as command lines write it."""
        return f"{self.depth},{self.top_k},{self.nodes}"

    @property
    def candidates(self) -> int:
        """Nodes that growing scores, the root not counted: top_k in level 0, then top_k * top_k in each level."""
        return self.top_k + (self.depth - 1) * self.top_k**2

    @property
    def max_accepted(self) -> int:
        """S: the most tokens that one round can accept, the bonus included."""
        return self.depth + 1


def chain_shape(depth: int) -> TreeShape:
    """The shape of one path without branches."""
    return TreeShape(depth=depth, top_k=1, nodes=depth + 1)
