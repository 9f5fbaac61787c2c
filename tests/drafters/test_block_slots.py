"""The two conventions of a block's slots: a head that knows its texts drafts them by one of the two only.

Slot k of "shift" (DSpark) predicts the token k + 1 after the anchor, slot k of "fill-in" (DFlash) the token k after it.
"""

from pathlib import Path

import torch
from tests.drafters.blocks import SLOTS
from tests.engine.small import Spoken
from tests.formats.test_block_parity import export, rewrite

from eyas.formats.parity import TargetStates, read_matrices
from eyas.formats.reference_reader import ReferenceBlockHead
from eyas.model.block_head import BlockHead


@torch.no_grad()
def test_the_slots_of_both_conventions_are_told_apart(llama: Spoken, learned: BlockHead, tmp_path: Path) -> None:
    """Slot k drafts the token k + 1 after the anchor. Read as the token k after it, the same weights draft nothing."""
    target = llama.target
    directory = export(learned, target, tmp_path)["vllm"]
    pairs = zip(llama.requests, llama.texts, strict=True)
    answers = [(len(request.prompt_ids), ids) for request, ids in pairs if len(request.prompt_ids) < 100]
    places = [(ids, start) for length, ids in answers for start in range(length, len(ids) - SLOTS, 5)]
    assert len(places) > 15
    right = {}
    for is_shift in (True, False):
        rewrite(directory, sample_from_anchor=is_shift)
        reader, hits = ReferenceBlockHead(directory, "vllm", read_matrices(target)), {1: 0, 0: 0}
        for ids, start in places:
            # The head reads the last layer, which an export leaves out: here the reader gets what eyas captures.
            states = TargetStates.capture(target, ids[:start]).aux_TL.chunk(3, -1)
            _, tokens = reader.draft(states, ids[start])
            for offset in hits:
                hits[offset] += sum(a == b for a, b in zip(tokens, ids[start + offset :], strict=False))
        right[is_shift] = {offset: count / (len(places) * SLOTS) for offset, count in hits.items()}
    assert right[True][1] > 0.8, "by its own convention the head drafts the text"
    assert right[True][0] < 0.5, "and not the text one token earlier"
    assert right[False][1] < 0.5, "the other convention reads other rows"
