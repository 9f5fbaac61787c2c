"""The shape of a draft tree: depth, top-k and nodes, as recipes and command lines set it."""

from dataclasses import dataclass

from eyas.base.errors import UsageError


@dataclass(frozen=True)
class TreeShape:
    """The size of a draft tree: how deep and wide a round drafts, and how many nodes the target verifies.

    Raises UsageError for a value that is not a whole number or is too small. SGLang calls `nodes`
    speculative-num-draft-tokens, and EAGLE calls it total_token.

    Attributes:
        depth: The levels of the tree below its root; a round accepts at most depth + 1 tokens, the bonus token
            included.
        top_k: The number of nodes that the head expands in each level, and the number of children of each of them.
        nodes: The number of rows of the target's verify forward, the root included.
    """

    depth: int
    top_k: int
    nodes: int

    def __post_init__(self) -> None:
        bounds = (("depth", self.depth, 1), ("top_k", self.top_k, 1), ("nodes", self.nodes, 2))
        for name, value, least in bounds:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                problem = f"tree {name} = {value!r} is not a whole number of at least {least}"
                raise UsageError(problem, "The root counts as one of the nodes" if name == "nodes" else "")

    @property
    def name(self) -> str:
        """DEPTH,TOP_K,NODES, the form of command lines."""
        return f"{self.depth},{self.top_k},{self.nodes}"

    @property
    def candidates(self) -> int:
        """Number of nodes that growing scores, without the root: top_k in level 0, then top_k * top_k in each level."""
        return self.top_k + (self.depth - 1) * self.top_k**2

    def limit_depth(self, max_depth: int | None) -> "TreeShape":
        """Returns the shape with at most `max_depth` levels; None: no limit. A chain has a node less for each level."""
        depth = self.depth if max_depth is None else min(self.depth, max_depth)
        nodes = min(self.nodes, depth + 1) if self.top_k == 1 else self.nodes
        return TreeShape(depth, self.top_k, nodes)

    @property
    def max_accepted(self) -> int:
        """S: the largest number of tokens that one round can accept, the bonus token included."""
        return self.depth + 1


def chain_shape(depth: int) -> TreeShape:
    """Returns the shape of a chain: a tree of `depth` tokens below the root, without branches."""
    return TreeShape(depth=depth, top_k=1, nodes=depth + 1)
