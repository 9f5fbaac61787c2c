"""Removes rejected rows from the cache of a dense attention, as after a forward over a draft tree."""

from torch import Tensor

from eyas.model.attention import DenseAttention


def keep_rows(attend: DenseAttention, rows_BR: Tensor) -> None:
    """Keeps only these cached rows of each request, in this order, in every layer."""
    for layer, (k_BGSH, v_BGSH) in attend.kv_by_layer.items():
        rows_BGRH = rows_BR[:, None, :, None].expand(-1, k_BGSH.shape[1], -1, k_BGSH.shape[3])
        attend.kv_by_layer[layer] = (k_BGSH.gather(2, rows_BGRH), v_BGSH.gather(2, rows_BGRH))
