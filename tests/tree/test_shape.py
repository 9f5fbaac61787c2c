import pytest

from eyas.base.errors import UsageError
from eyas.tree.shape import TreeShape, chain_shape


def test_candidates_are_counted() -> None:
    assert TreeShape(depth=3, top_k=2, nodes=6).candidates == 2 + 4 + 4
    assert chain_shape(4) == TreeShape(depth=4, top_k=1, nodes=5)
    assert chain_shape(4).candidates == 4
    assert chain_shape(4).max_accepted == 5


@pytest.mark.parametrize(("depth", "top_k", "nodes"), [(0, 4, 16), (5, 0, 16), (5, 4, 1), (5, 4, 16.0), (True, 4, 16)])
def test_a_shape_that_is_none_is_refused(depth: int, top_k: int, nodes: int) -> None:
    with pytest.raises(UsageError, match=r"tree .* is not a whole number of at least"):
        TreeShape(depth=depth, top_k=top_k, nodes=nodes)
