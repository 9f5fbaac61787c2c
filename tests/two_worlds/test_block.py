"""A block of training is the block of serving: the same logits, whatever the rounds accepted and however it was read.

K slots, Q blocks, D hidden, W target vocabulary, T rows.
"""

import pytest
import torch
from tests.drafters.blocks import MASK, SLOTS, answer_rows, block_spec, random_block
from tests.engine.small import CONTEXT, Spoken, check, poison
from torch import Tensor

from eyas.drafters.block import BlockDrafter
from eyas.engine.engine import Engine
from eyas.engine.scheduler import RoundWork
from eyas.evaluation.head_drafter import BlockHeadDrafter
from eyas.features.layout import Row
from eyas.model.block_head import BlockHead
from eyas.model.target import Target
from eyas.train.block_loss import run_blocks
from eyas.train.ttt import pack_rows
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Tree

ALL = 10_000  # blocks: none is left out


def trained_logits(head: BlockHead, target: Target, row: Row) -> dict[int, Tensor]:
    """logits_KW without the correction by position of the anchor, as training computes them."""
    packed = pack_rows([row], SLOTS, torch.float32, ALL)
    with torch.no_grad():
        logits_KQW = target.logits(run_blocks(head, packed, target))
    return {t + 1: logits_KQW[:, q] for q, t in enumerate(packed.chains_Q.tolist())}


def test_evaluation_drafts_with_the_logits_of_training(llama: Spoken) -> None:
    head, target = random_block(llama.target), llama.target
    rows = [row for row in answer_rows(llama) if len(row.ids_T) > 30]
    drafter = BlockHeadDrafter(head, target, target.embed, chain_shape(SLOTS), rows)
    compared = 0
    for number, row in enumerate(rows):
        for anchor, logits_KW in trained_logits(head, target, row).items():
            found_KW = drafter.base_logits(torch.tensor([number]), torch.tensor([anchor - 1]))[0]
            torch.testing.assert_close(found_KW, logits_KW, rtol=0, atol=3e-5 * float(logits_KW.abs().max()))
            compared += 1
    assert compared > 60


class Watched(BlockDrafter):
    """Before each tree, it compares the logits of the block with those of training at this place of the text."""

    trained: dict[tuple[int, ...], dict[int, Tensor]]
    compared: set[int]

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        base_BgW = self.base_logits(req_slots_B, lengths_B, roots_B, SLOTS)
        for line, length, base_gW in zip(req_slots_B.tolist(), lengths_B.tolist(), base_BgW, strict=True):
            text = self.future_map.tokens_RC[line, : length + 1].tolist()
            for known, by_anchor in self.trained.items():
                if list(known[: length + 1]) == text and length in by_anchor:
                    wanted_gW = by_anchor[length]
                    torch.testing.assert_close(base_gW, wanted_gW, rtol=0, atol=1e-4 * float(wanted_gW.abs().max()))
                    self.compared.add(length)
        return super().draft(req_slots_B, lengths_B, roots_B, shape)


@pytest.mark.parametrize(
    ("shape", "wanted"), [(chain_shape(SLOTS), {1, 5}), (TreeShape(SLOTS, 2, 8), {1, 2, 3})], ids=["chain", "tree"]
)
def test_serving_drafts_with_the_logits_of_training(
    llama: Spoken, learned: BlockHead, shape: TreeShape, wanted: set[int]
) -> None:
    """After prefill in one piece, after rounds of many lengths, at the first block of an answer and at later ones."""
    head, target = learned, llama.target
    rows = answer_rows(llama)
    spec = block_spec(head, target, shape)
    engine = poison(Engine(target, [spec], 3, CONTEXT))
    runner = engine.runner
    drafter = Watched(spec, runner.memory)
    drafter.trained = {tuple(row.ids_T.tolist()): trained_logits(head, target, row) for row in rows}
    drafter.compared, runner.drafters[0] = set(), drafter
    first = {int(row.loss_mask_T.nonzero()[0, 0]) for row in rows}
    outputs = [engine.add(request) for request in llama.requests]
    lengths = set()
    while (step := engine.launch()) is not None:
        engine.process(step)
        check(engine)
        if isinstance(step.work, RoundWork):
            lengths |= {length for output in outputs for length in output.accepted}
    assert {output.request.id: output.token_ids for output in outputs} == llama.answers
    assert lengths >= wanted
    assert len(drafter.compared & first) > 2, "the first block, whose context is the prompt"
    assert len(drafter.compared) > 20


def test_a_block_sees_nothing_from_its_anchor_on(llama: Spoken) -> None:
    """Bit by bit: later features, later tokens, other blocks and other texts change nothing. The row before does."""
    head, target = random_block(llama.target), llama.target
    one, other = [row for row in answer_rows(llama) if len(row.ids_T) > 30][:2]
    packed = pack_rows([one, other], SLOTS, torch.float32, ALL)

    def logits_KW(aux_PL: Tensor, tokens_KQ: Tensor) -> Tensor:
        changed = packed.map(lambda tensor: tensor)
        object.__setattr__(changed, "aux_PL", aux_PL)
        object.__setattr__(changed, "tokens_KQ", tokens_KQ)
        return run_blocks(head, changed, target)[:, block]

    block = 5
    anchor = int(packed.chains_Q[block]) + 1
    aux_PL, tokens_KQ = packed.aux_PL.clone(), packed.tokens_KQ.clone()
    with torch.no_grad():
        before_KW = logits_KW(aux_PL, tokens_KQ)
        aux_PL[anchor:] = torch.randn_like(aux_PL[anchor:])
        tokens_KQ[:, :block], tokens_KQ[:, block + 1 :], tokens_KQ[1:] = 3, 4, 5
        assert torch.equal(logits_KW(aux_PL, tokens_KQ), before_KW)
        tokens_KQ[0, block] += 1
        assert not torch.equal(logits_KW(aux_PL, tokens_KQ), before_KW), "the anchor's token"
        tokens_KQ[0, block] -= 1
        aux_PL[anchor - 1] += 1
        assert not torch.equal(logits_KW(aux_PL, tokens_KQ), before_KW), "the token before the anchor"


def test_slot_k_learns_the_token_k_plus_one_after_the_anchor(llama: Spoken, learned: BlockHead) -> None:
    head, target = learned, llama.target
    row = max(answer_rows(llama), key=lambda row: int(row.loss_mask_T.sum()))
    right = wrong = total = 0
    for anchor, logits_KW in trained_logits(head, target, row).items():
        for slot in range(min(SLOTS, len(row.ids_T) - anchor - 1)):
            logits_W = logits_KW[slot] + head.correction(row.ids_T[anchor + slot])
            right += int(logits_W.argmax()) == int(row.ids_T[anchor + slot + 1])
            wrong += int(logits_W.argmax()) == int(row.ids_T[anchor + slot])
            total += 1
    assert right > 0.9 * total
    assert wrong < 0.5 * total
    assert MASK not in row.ids_T
