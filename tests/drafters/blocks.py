"""A block head for tests: random, or trained until it knows the answers of a small target by heart.

B requests, T rows, Q blocks, K slots, D hidden, W target vocabulary.
"""

import dataclasses

import pytest
import torch
from tests.engine.small import Spoken, row_of

from eyas.drafters.block import BlockSpec
from eyas.features.layout import Row
from eyas.model.block_head import BlockConfig, BlockHead
from eyas.model.head import HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.train.block_loss import compute_block_loss
from eyas.train.loss import Teacher
from eyas.train.ttt import pack_rows
from eyas.tree.shape import TreeShape, chain_shape

SLOTS = 4
MASK = 287  # a row of the embedding that no text uses


def block_config(target: Target, size: int = SLOTS, method: str = "dspark") -> BlockConfig:
    """Two layers, for a target of tests.tiny."""
    info = target.info
    sizes = HeadConfig.for_target(info, info.vocab_size, intermediate_size=96, aux_layer_ids=target.aux_layer_ids)
    shared = {field.name: getattr(sizes, field.name) for field in dataclasses.fields(HeadConfig)}
    fill_in = method == "dflash"
    return BlockConfig(
        **shared, num_layers=2, block_size=size, markov_rank=0 if fill_in else 8, mask_id=MASK, fill_in=fill_in
    )


def random_block(target: Target, seed: int = 0, method: str = "dspark") -> BlockHead:
    """Random weights, wide enough that every input moves the logits; no norm is 1."""
    head = BlockHead.init(block_config(target, method=method), seed)
    with torch.no_grad():
        for number, weight in enumerate(head.parameters()):
            weight.mul_(5 if weight.ndim == 2 else 1 + 0.01 * number)
    return head.requires_grad_(False)


def every_token(target: Target) -> DraftVocab:
    return DraftVocab.from_chosen(torch.ones(target.info.vocab_size, dtype=torch.bool))


def block_spec(head: BlockHead, target: Target, shape: TreeShape | None = None) -> BlockSpec:
    return BlockSpec(head, every_token(target), shape or chain_shape(SLOTS))


def answer_rows(spoken: Spoken) -> list[Row]:
    prompts = [len(request.prompt_ids) for request in spoken.requests]
    texts = zip(spoken.texts, prompts, strict=True)
    return [row_of(spoken.target, text, length) for text, length in texts if len(text) - length > 2 and length < 200]


@pytest.fixture(scope="session")
def learned(llama: Spoken) -> BlockHead:
    """A DSpark head that has learned the answers of `llama`."""
    return learn(llama, "dspark")


@pytest.fixture(scope="session")
def learned_dflash(llama: Spoken) -> BlockHead:
    """A DFlash head that has learned the answers of `llama`."""
    return learn(llama, "dflash")


def learn(spoken: Spoken, method: str) -> BlockHead:
    """Returns a head that has learned the answers, with the loss of training."""
    target, updates = spoken.target, 120
    head, rows = BlockHead.init(block_config(target, method=method), 0), answer_rows(spoken)
    teacher = Teacher(target.lm_head, every_token(target), torch.float32)
    optimizer = torch.optim.AdamW(head.parameters(), lr=4e-3)
    for update in range(updates):
        packed = pack_rows(rows, SLOTS, torch.float32, 40, (update,))
        loss = compute_block_loss(head, packed, teacher, target, (0.9, 0.1)).loss / len(packed.chains_Q)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.requires_grad_(False)
