"""Initializes the head before training: randomly, with the target's output rows, or with the weights of another head.

    train.init      train.lm_head   norms        matrices           rows of the head's output matrix
    "random"        "random"        1            normal             normal
    "random"        "target"        1            normal             the target's row of each draft token
    a directory     "random"        that head's  that head's        that head's row of a draft token, else normal
    a directory     "target"        that head's  that head's        that head's row of a draft token, else the target's

"normal" means drawn from a normal distribution. Training changes all weights, also rows copied from the target. A bias
or a soft cap of the target's logits is not copied, because a head has neither. EAGLE and SpecForge start from random
rows, speculators starts from the target's rows.

V draft vocabulary, W target vocabulary, D hidden.
"""

from dataclasses import fields, replace
from typing import Literal

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.formats.head_dir import StoredHead, read_head
from eyas.model.block_head import BlockConfig
from eyas.model.head import DraftHead, Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab

RANDOM = "random"
RowSource = Literal["random", "target"]  # of the head's output matrix
MAY_DIFFER = ("draft_vocab_size", "max_position_embeddings", "mask_id")
"""Sizes in which the initial head may differ from the new head.

Rows of different draft vocabularies are matched by token, and no weight depends on max_position_embeddings. A block
head keeps its mask token.
"""


@torch.no_grad()
def init_head(
    sizes: HeadConfig, vocab: DraftVocab, target: Target, seed: int, init: str = RANDOM, lm_head: RowSource = "random"
) -> DraftHead:
    """Returns a float32 head before its first update.

    Args:
        sizes: The sizes of the new head.
        vocab: The draft vocabulary of the new head.
        target: The target; `lm_head="target"` copies its output rows.
        seed: The seed of random weights.
        init: "random", or the directory of the head to start from.
        lm_head: The initial output rows of the draft tokens that the head in `init` does not have.

    Raises:
        InputError: If `init` is not a head directory, or the head in it has other sizes than `sizes`.
    """
    stored = None if init == RANDOM else _read_initial_head(init, sizes, target)
    if isinstance(sizes, BlockConfig) and stored is not None and isinstance(stored.config, BlockConfig):
        sizes = replace(sizes, mask_id=stored.config.mask_id)  # it has learned this one
    head = sizes.head_class.init(sizes, seed)
    weights = head.state_dict() if stored is None else stored.head.state_dict()
    if isinstance(head, Head):
        rows_VD = head.lm_head.weight.clone()
        if lm_head == "target":
            weight_WD = target.lm_head.weight
            assert isinstance(weight_WD, Tensor), "the target's output matrix"
            rows_VD = weight_WD.detach()[vocab.target_ids_V.to(weight_WD.device)].float().cpu()
        if stored is not None:
            stored_ids_V, is_stored_V = stored.vocab.to_draft(vocab.target_ids_V)
            rows_VD = torch.where(is_stored_V[:, None], weights["lm_head.weight"][stored_ids_V], rows_VD)
        weights["lm_head.weight"] = rows_VD
    head.load_state_dict(weights)
    return head


def _read_initial_head(init: str, sizes: HeadConfig, target: Target) -> StoredHead:
    stored = read_head(init, torch.float32, target.info.num_layers)
    fix = "Set train.drafter, train.block and train.head to those of that head, or set train.init to another head"
    if type(stored.config) is not type(sizes):
        raise InputError(f"The head in {init} is a {stored.config.variant} head, not a {sizes.variant} head", fix)
    names = [field.name for field in fields(sizes) if field.name not in MAY_DIFFER]
    differing = [name for name in names if getattr(stored.config, name) != getattr(sizes, name)]
    if differing:
        problem = f"The head in {init} has {_describe_sizes(stored.config, differing)}, but this training needs"
        raise InputError(f"{problem} {_describe_sizes(sizes, differing)}", fix)
    return stored


def _describe_sizes(config: HeadConfig, names: list[str]) -> str:
    values = {name: getattr(config, name) for name in names}
    return ", ".join(f"{name} {list(v) if isinstance(v, tuple) else v}" for name, v in values.items())
