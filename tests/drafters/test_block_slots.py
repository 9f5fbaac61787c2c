"""The two conventions of a block's slots: an exported head that knows its texts by heart drafts them by one of them only.

Slot k of "shift" (DSpark) predicts the token k + 1 after the anchor, slot k of "fill-in" (DFlash) the token k after it.
"""

from pathlib import Path

import torch
from tests.drafters.blocks import SLOTS
from tests.engine.small import Spoken
from tests.formats.test_block_parity import export, rewrite

from eyas.formats.parity import TargetStates
from eyas.formats.reference_reader import ReferenceBlockHead
from eyas.model.block_head import BlockHead


@torch.no_grad()
def test_the_slots_of_both_conventions_are_told_apart(llama: Spoken, learned: BlockHead, tmp_path: Path) -> None:
    """Slot k drafts the token k + 1 after the anchor. Read as the token k after it, the same weights draft nothing."""
    target = llama.target
    directory = export(learned, target, tmp_path)["vllm"]
    matrices = (target.embedding.weight, target.lm_head.weight)
    places = [(text, len(text) - SLOTS - 1 - back) for text in llama.texts[:4] for back in (1, 3) if len(text) > 30]
    assert len(places) > 3
    right = {}
    for is_shift in (True, False):
        rewrite(directory, sample_from_anchor=is_shift)
        reader, hits = ReferenceBlockHead(directory, "vllm", matrices), {1: 0, 0: 0}
        for ids, start in places:
            states = TargetStates.capture(target, ids[:start]).states_TD
            _, tokens = reader.draft([states[i] for i in reader.layers], ids[start])
            for offset in hits:
                hits[offset] += sum(a == b for a, b in zip(tokens, ids[start + offset :], strict=False))
        right[is_shift] = {offset: count / (len(places) * SLOTS) for offset, count in hits.items()}
    assert right[True][1] > 0.8, "by its own convention the head drafts the text"
    assert right[True][0] < 0.5, "and not the text one token earlier"
    assert right[False][1] < 0.5, "the other convention reads other rows"
