"""Which trees are compared, where and how long: the recipe keys `tune.*`."""

import math
from dataclasses import dataclass

from eyas.base.errors import UsageError
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape


@dataclass(frozen=True)
class TuneConfig:
    """Raises UsageError.

    streams        requests at once, one answer each
    depth          the deepest tree and the longest chain
    top_k, nodes   of the trees; top-k 1 stands for chains, which have a node for each level and the root
    answers        held-out answers, at most, that trees are drafted on
    temperature    None: these answers as they are; a number: drawn anew at that temperature, max_tokens at most each
    batch_tokens   padded tokens of the texts read together
    allowance_s    for measuring rounds; what is not measured by then is taken from smaller batches
    compile        on a CPU: forwards run compiled, as `eyas serve` runs them (a minute or two, once for a pair)
    seed           of the choice of answers, of their bootstrap and of answers drawn anew
    """

    streams: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    depth: int = 8
    top_k: tuple[int, ...] = (1, 2, 4, 8)
    nodes: tuple[int, ...] = (8, 16, 32, 64)
    answers: int = 48
    temperature: float | None = None
    max_tokens: int = 256
    batch_tokens: int = 16384
    allowance_s: float = 60.0
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.sampling
        for name in ("streams", "top_k", "nodes"):
            values = getattr(self, name)
            least = 2 if name == "nodes" else 1
            if not values or min(values) < least or len(set(values)) < len(values):
                expected = f"different numbers of at least {least}, one at least"
                raise UsageError(f"tune.{name} = {list(values)}", expected, f"change tune.{name}")
        for name in ("depth", "answers", "max_tokens", "batch_tokens"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"tune.{name} = {value}", "at least 1", f"raise tune.{name}")
        if not 0 < self.allowance_s < math.inf:
            raise UsageError(f"tune.allowance_s = {self.allowance_s}", "seconds, above 0", "change tune.allowance_s")
        if not self.shapes_by_top_k:
            raise UsageError(
                f"no tree of depth {self.depth} with top_k {list(self.top_k)} and nodes {list(self.nodes)}",
                "one at least that has room for a branch, or top_k 1 for chains",
                "add 1 to tune.top_k, or other numbers to tune.nodes",
            )

    @property
    def sampling(self) -> SamplingParams | None:
        """How answers are drawn anew; None: they are not."""
        return None if self.temperature is None else SamplingParams(self.temperature)

    @property
    def shapes_by_top_k(self) -> dict[int, list[TreeShape]]:
        """By top-k, all trees that are compared: with more nodes than a chain has, and no more than there can be."""
        found: dict[int, list[TreeShape]] = {}
        if 1 in self.top_k:
            found[1] = [chain_shape(depth) for depth in range(1, self.depth + 1)]
        for top_k in sorted(set(self.top_k) - {1}):
            all_shapes = [TreeShape(d, top_k, n) for d in range(1, self.depth + 1) for n in sorted(self.nodes)]
            if some := [one for one in all_shapes if one.depth + 1 < one.nodes <= one.candidates + 1]:
                found[top_k] = some
        return found
