"""The two conventions of a block's slots: a head that knows its texts drafts them by one of the two only.

Slot k of "shift" (DSpark) predicts the token k + 1 after the anchor, row k of "fill-in" (DFlash) the token k after it.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from tests.drafters.blocks import SLOTS
from tests.engine.small import Spoken
from tests.formats.test_block_parity import export, rewrite

from eyas.formats.parity import TargetStates, read_matrices
from eyas.formats.reference_reader import ReferenceBlockHead
from eyas.model.block_head import BlockHead


@torch.no_grad()
def share_right(spoken: Spoken, make_reader: Callable[[], ReferenceBlockHead]) -> dict[int, float]:
    """Returns the share of drafted tokens that equal the text, by its offset: 1 behind the anchor, 0 from it on."""
    pairs = zip(spoken.requests, spoken.texts, strict=True)
    answers = [(len(request.prompt_ids), ids) for request, ids in pairs if len(request.prompt_ids) < 100]
    places = [(ids, start) for length, ids in answers for start in range(length, len(ids) - SLOTS, 5)]
    assert len(places) > 15
    reader, hits = make_reader(), {1: 0, 0: 0}
    for ids, start in places:
        # The head reads the last layer, which an export leaves out: here the reader gets what eyas captures.
        states = TargetStates.capture(spoken.target, ids[:start]).aux_TL.chunk(3, -1)
        _, tokens = reader.draft(states, ids[start])
        for offset in hits:
            hits[offset] += sum(a == b for a, b in zip(tokens, ids[start + offset :], strict=False))
    return {offset: count / (len(places) * SLOTS) for offset, count in hits.items()}


def test_a_shift_head_is_told_from_a_fill_in_head(llama: Spoken, learned: BlockHead, tmp_path: Path) -> None:
    """Slot k drafts the token k + 1 after the anchor. Read as the token k after it, the same weights draft nothing."""
    directory = export(learned, llama.target, tmp_path)["vllm"]
    right = {}
    for is_shift in (True, False):
        rewrite(directory, sample_from_anchor=is_shift)
        right[is_shift] = share_right(llama, lambda: ReferenceBlockHead(directory, "vllm", read_matrices(llama.target)))
    assert right[True][1] > 0.8, "by its own convention the head drafts the text"
    assert right[True][0] < 0.5, "and not the text one token earlier"
    assert right[False][1] < 0.5, "the other convention reads other rows"


def test_a_fill_in_head_is_told_from_a_shift_head(llama: Spoken, learned_dflash: BlockHead, tmp_path: Path) -> None:
    """Row k drafts the token k after the anchor. Read as the token k + 1 after it, the same weights draft nothing."""
    directory = export(learned_dflash, llama.target, tmp_path)["vllm"]

    def read() -> ReferenceBlockHead:
        return ReferenceBlockHead(directory, "vllm", read_matrices(llama.target))

    fill_in = share_right(llama, read)
    assert fill_in[1] > 0.8, "by its own convention the head drafts the text"
    assert fill_in[0] < 0.5, "and not the text one token earlier"
    rewrite(directory, architectures=["Qwen3DSparkModel"], sample_from_anchor=True, markov_head_type="vanilla")
    rewrite(directory, mask_token_id=learned_dflash.config.mask_id, markov_rank=0)
    assert share_right(llama, read)[1] < 0.5, "the other convention reads other rows"
