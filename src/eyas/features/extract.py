"""Extracts features: runs the target over texts, and quantizes and copies their features. For capture.py and reader.py.

B rows of a batch, T tokens, U of them teacher positions, D hidden, L = 3D captured features, N heads, G key-value
heads, H head size.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, count, cycle

import torch
from torch import Tensor

from eyas.base.errors import StageError
from eyas.features.examples import group_by_length
from eyas.features.layout import NUM_AUX_LAYERS, teacher_positions
from eyas.features.quantize import StoredDtype, is_finite, quantize
from eyas.features.shard import CodesAndScales
from eyas.kernels.dispatch import pack_target
from eyas.model.attention import AttentionParams, causal_attention
from eyas.model.target import Target, TargetOutput
from eyas.staging import Staging, to_host

Text = tuple[Tensor, Tensor]
"""The token ids and the loss mask of a text: ids_T, loss_mask_T."""


@dataclass(frozen=True, eq=False)
class ExtractedFeatures:
    """The features of one text.

    Attributes:
        index: The index of the text in its group.
        batch: The number of the batch, over all groups.
        aux_TL: The captured layers of each token, before any norm.
        hidden_UD: The final hidden states of the teacher positions, after the final norm.
    """

    index: int
    batch: int
    aux_TL: Tensor
    hidden_UD: Tensor


ReadFeatures = Callable[[str], tuple[CodesAndScales, CodesAndScales]]  # see launch_quantization


def prefill_attention(layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
    """Computes causal attention over rows padded on the right, without a KV cache. No real token sees the padding."""
    return causal_attention(q_BNTH, k_BGTH, v_BGTH, params)


@torch.no_grad()
def extract_features(
    groups: Iterable[Sequence[Text]], target: Target, batch_tokens: int
) -> Iterator[ExtractedFeatures]:
    """Runs the target over groups of texts and yields their features on its device, group by group.

    A batch holds texts of one group, of similar length, and at most `batch_tokens` padded tokens. So the order within a
    group differs; see `ExtractedFeatures.index`. If the layers are on several devices, as many batches are launched
    before the first one is read. Each of them has its own streams, because a copy between devices waits for all earlier
    work on both of its streams.
    """
    pack_target(target)
    devices = list(dict.fromkeys(weight.device for weight in target.model.parameters()))
    lanes = cycle([[torch.cuda.Stream(d) for d in devices if d.type == "cuda" and len(devices) > 1] for _ in devices])
    launched: deque[Iterator[ExtractedFeatures]] = deque()
    numbers, staging = count(), Staging(devices[0])
    for texts in groups:
        lengths = [len(ids_T) for ids_T, _ in texts]
        for batch in group_by_length(range(len(texts)), lengths.__getitem__, batch_tokens):
            with ExitStack() as stack:
                for stream in (streams := next(lanes)):
                    stream.wait_stream(torch.cuda.current_stream(stream.device))
                    stack.enter_context(torch.cuda.stream(stream))
                padded_BT = torch.nn.utils.rnn.pad_sequence([texts[index][0] for index in batch], batch_first=True)
                teachers = [teacher_positions(texts[index][1]).numpy().nonzero()[0] for index in batch]
                ids_BT, *teachers_U = staging.copy(padded_BT.numpy(), *teachers)
                positions_1T = torch.arange(ids_BT.shape[1], device=devices[0])[None]
                out = target.forward(ids_BT, positions_1T, prefill_attention, want_aux=True)
            rows = [(index, lengths[index], at_U) for index, at_U in zip(batch, teachers_U, strict=True)]
            launched.append(_read_batch(next(numbers), rows, out, streams))
            if len(launched) == len(devices):
                yield from launched.popleft()
    yield from chain.from_iterable(launched)


def _read_batch(
    number: int, batch: Sequence[tuple[int, int, Tensor]], out: TargetOutput, streams: Sequence[torch.cuda.Stream]
) -> Iterator[ExtractedFeatures]:
    """Yields the features of a launched batch, without waiting for a device.

    Args:
        number: The number of the batch.
        batch: For each text, its index in the group, its number of tokens and its teacher positions.
        out: The output of the target.
        streams: The streams on which CUDA devices compute the output.
    """
    for stream in streams:
        torch.cuda.current_stream(stream.device).wait_stream(stream)
    assert out.aux_BTL is not None
    for slot, (index, length, teachers_U) in enumerate(batch):
        hidden_TD, aux_TL = out.hidden_BTD[slot, :length], out.aux_BTL[slot, :length]
        yield ExtractedFeatures(index, number, aux_TL, hidden_TD[teachers_U.to(hidden_TD.device)])


def launch_quantization(features: ExtractedFeatures, dtype: StoredDtype, shared: int = 0) -> ReadFeatures:
    """Quantizes the features of one text and copies them to the CPU. A CUDA device does so later, without waiting.

    Args:
        features: The features.
        dtype: The stored dtype.
        shared: The number of first tokens whose aux features are left out, because the row before stores them.

    Returns:
        A function that waits for the copy and returns the aux features and the final hidden states as codes and scales.
        Its argument is the id of the row. It raises StageError if a feature is NaN or infinite.
    """
    pairs = quantize(features.aux_TL[shared:], NUM_AUX_LAYERS, dtype), quantize(features.hidden_UD, 1, dtype)
    device_parts = [part for pair in pairs for part in pair] + [is_finite(*pair) for pair in pairs]
    devices = {part.device for part in device_parts if part.device.type == "cuda"}
    parts = [to_host(part) for part in device_parts] if devices else device_parts
    events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def read(row_id: str) -> tuple[CodesAndScales, CodesAndScales]:
        for event in events:
            event.synchronize()
        if not all(parts[4:]):
            raise not_finite_error(row_id)
        # Pinned memory is freed for the next batches.
        aux, aux_scales, hidden, hidden_scales = (part.clone() if events else part for part in parts[:4])
        return (aux, aux_scales), (hidden, hidden_scales)

    return read


def not_finite_error(row_id: str) -> StageError:
    """Returns the error for a conversation with such a feature."""
    problem = f"The target computes a feature of conversation {row_id} that is NaN or infinite"
    return StageError(problem, "Set target.dtype to float32 or bfloat16, or remove this conversation")
