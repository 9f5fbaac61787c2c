"""The loss of a block head against one that autograd computes, the drawing of blocks, and training from end to end.

Q blocks, K slots, N = K * Q, J teacher rows, W target vocabulary.
"""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafters.blocks import SLOTS, every_token, random_block
from tests.features.small import random_row

from eyas.base.config import build, to_toml
from eyas.base.errors import InputError
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.block_head import BlockConfig, BlockHead
from eyas.model.submodules import apply_softcap
from eyas.model.target import Target
from eyas.model.vocab import choose_mask_id
from eyas.train import train
from eyas.train.block_loss import compute_block_loss, run_blocks
from eyas.train.config import BlockOptions, HeadOptions, TrainConfig, build_head_config, match_sizes
from eyas.train.loss import Teacher
from eyas.train.ttt import PackedBatch, pack_rows

CONFIG = TrainConfig(
    drafter="block",
    block=BlockOptions(layers=1, size=3, rank=8, anchors=6),
    updates=6,
    batch_tokens=60,
    micro_tokens=80,
    dtype="float32",
    stored_dtype="float32",
    evaluate_answers=2,
    log_every=1,
    head=HeadOptions(intermediate_size=32),
)
DECAY, TOKEN = 0.7, 0.3


def pack(target: Target, picture: tuple[str, ...], max_chains: int = 99) -> PackedBatch:
    rows = [random_row(one, target.info.hidden_size, target.info.vocab_size) for one in picture]
    return pack_rows(rows, SLOTS, torch.float32, max_chains, (1,))


@pytest.mark.parametrize("method", ["dspark", "dflash"])
@pytest.mark.parametrize("softcap", [None, 3.0], ids=["plain", "softcap"])
def test_loss_and_gradients_are_those_of_autograd(target: Target, softcap: float | None, method: str) -> None:
    packed = pack(target, ("..xxxx", ".xx..xxxx", "...xx"))
    teacher = Teacher(target.lm_head, every_token(target), torch.float32, softcap)
    grads, losses = [], []
    for is_ours in (True, False):
        head = random_block(target, method=method).requires_grad_(True)
        loss = compute_block_loss(head, packed, teacher, target, (DECAY, TOKEN)).loss if is_ours else None
        if loss is None:
            loss = reference_loss(head, packed, target, teacher)
        loss.backward()
        losses.append(float(loss.detach()))
        grads.append({name: weight.grad for name, weight in head.named_parameters()})
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, grad in grads[1].items():
        assert grad is not None, name
        torch.testing.assert_close(grads[0][name], grad, rtol=1e-4, atol=2e-6 * float(grad.abs().max() + 1))


def reference_loss(head: BlockHead, packed: PackedBatch, target: Target, teacher: Teacher) -> torch.Tensor:
    """The formula of DSpark, slot by slot."""
    normed_KQD, softcap, rows_WD = run_blocks(head, packed, target), teacher.logit_softcap, teacher.weight_WD
    total, rows = torch.zeros(()), packed.teacher_rows_J.tolist()
    for k, q in packed.supervised_KQ.nonzero().tolist():
        row = int(packed.chains_Q[q]) + 1 + k
        target_W = apply_softcap(rows_WD @ packed.hidden_JD[rows.index(row)], softcap).softmax(-1)
        before = packed.tokens_KQ[k, q]
        assert before == packed.ids_P[row], "the token before the slot"
        base_W = apply_softcap(rows_WD @ normed_KQD[k, q], softcap)
        log_W = (base_W + head.correction(before)).log_softmax(-1)
        distance = (log_W.exp() - target_W).abs().sum()
        total = total + DECAY**k * (0.9 * distance - TOKEN * log_W[packed.ids_P[row + 1]])
        if head.config.markov_rank:
            vector = head.markov_head.markov_w1(before)
            confidence = head.confidence(normed_KQD[k, q], vector)
            goal = (1 - distance / 2).detach()
            total = total + DECAY**k * torch.nn.functional.binary_cross_entropy_with_logits(confidence, goal)
    return total / sum(DECAY**k for k in range(SLOTS))


def test_blocks_are_drawn_and_end_with_the_turn(target: Target) -> None:
    """In "..xxx..xxxx" the anchors are 2, 3 and 7, 8, 9; no slot is supervised beyond the end of a turn."""
    packed = pack(target, ("..xxx..xxxx",))
    assert (packed.chains_Q + 1).tolist() == [2, 3, 7, 8, 9]
    assert packed.supervised_KQ.sum(0).tolist() == [2, 1, 3, 2, 1]
    rows = [random_row("..xxxxxxxx", 4, 9)]
    drawn = {tuple(pack_rows(rows, 3, torch.float32, 3, (seed,)).chains_Q.tolist()) for seed in range(20)}
    assert len(drawn) > 5
    assert all(len(chains) == 3 and list(chains) == sorted(chains) for chains in drawn)
    assert {chain for chains in drawn for chain in chains} == {1, 2, 3, 4, 5, 6, 7}
    first, second = (pack_rows(rows, 3, torch.float32, 3, (5,)).chains_Q for _ in range(2))
    assert torch.equal(first, second), "the same seed draws the same blocks"


def test_teacher_is_the_normed_state_before_the_token(target: Target, features: Path) -> None:
    """The argmax of the teacher of slot 0 is the target's next token; states before the norm fail."""
    rows = [row for row in Features(features).rows(Features(features).indices("train")) if row.loss_mask_T.sum() > 4]
    packed = pack_rows(rows, 2, torch.float32, 50, (0,))
    teacher = Teacher(target.lm_head, every_token(target), torch.float32)
    wanted_J = target.logits(packed.hidden_JD).argmax(-1)
    assert torch.equal(teacher.soft_targets(packed.hidden_JD).best_J, wanted_J)
    unnormed = packed.aux_PL[packed.teacher_rows_J, -target.info.hidden_size :]
    assert (target.logits(unnormed).argmax(-1) == wanted_J).float().mean() < 0.9


def test_mask_token_is_rare_and_distinguishable() -> None:
    embedding_WD = torch.ones(6, 2)
    embedding_WD[5] = 0
    counts_W = torch.tensor([4, 0, 3, 0, 0, 0])
    assert choose_mask_id(counts_W, [4], embedding_WD) == 3, "5 is a row of zeros, 4 has a role"
    assert choose_mask_id(torch.tensor([4, 1, 3]), [], torch.ones(3, 2)) == 1


@pytest.mark.parametrize("kind", [{"markov_rank": 0, "fill_in": True}, {"markov_rank": 0}, {"markov_rank": 8}])
def test_a_recipe_can_name_the_sizes_of_any_block_head(target: Target, kind: dict[str, Any]) -> None:
    """`eyas drift` writes such a recipe, which trains the head further."""
    sizes = dataclasses.replace(random_block(target).config, **kind)
    matched = match_sizes(TrainConfig(), sizes)
    again = build(TrainConfig, tomllib.loads(to_toml(matched)))
    assert again == matched
    assert build_head_config(again, sizes.aux_layer_ids, target.info, sizes.mask_id) == sizes


def test_trains_resumes_and_starts_from_a_head(target: Target, features: Path, tmp_path: Path) -> None:
    """The run writes the same bytes when it is interrupted, and its head is read as a block head."""
    train.run(CONFIG, features, target, tmp_path / "head", progress=False)
    stored = read_head(tmp_path / "head")
    assert isinstance(stored.config, BlockConfig)
    assert (stored.config.num_layers, stored.config.block_size, stored.config.intermediate_size) == (1, 3, 32)
    lines = [json.loads(line) for line in (tmp_path / "head" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines[-1]["accuracy"]) == 3
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert "# Block draft head" in (tmp_path / "head" / "README.md").read_text()
    again = dataclasses.replace(CONFIG, checkpoint_every_s=0.0)
    killed = False

    class StoppedError(Exception):
        pass

    real = train.Trainer._save_if_due

    def stop_after_three(self: train.Trainer, *arguments: Any) -> bool:
        nonlocal killed
        result = real(self, *arguments)
        if not killed and arguments[2] == 3:
            killed = True
            raise StoppedError
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Trainer, "_save_if_due", stop_after_three)
        with pytest.raises(StoppedError):
            train.run(again, features, target, tmp_path / "again", progress=False)
        train.run(again, features, target, tmp_path / "again", progress=False)
    for name in ("model.safetensors", "config.json", "metrics.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "head" / name).read_bytes(), name
    further = dataclasses.replace(CONFIG, init=str(tmp_path / "head"), updates=1)
    train.run(further, features, target, tmp_path / "further", progress=False)
    with pytest.raises(InputError, match="is a block"):
        train.run(dataclasses.replace(further, drafter="eagle3"), features, target, tmp_path / "x", progress=False)
