"""Where training starts: a random head, rows of the target's output matrix, or the weights of another head.

    train.init      train.lm_head   norms   matrices      rows of lm_head
    "random"        "random"        1       normal        normal
    "random"        "target"        1       normal        the target's, of each draft token
    a directory     either          its     its           its, of the draft tokens that it has; the others as above

Rows copied from the target are only a start and are trained like the rest; a bias or a cap of the target's logits has
no place in a head and is left behind. EAGLE and SpecForge start at random, speculators from the rows (facts A).

V draft vocabulary, D hidden.
"""

from dataclasses import fields
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.formats.head_dir import read_head
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab

RANDOM = "random"
MAY_DIFFER = ("draft_vocab_size", "max_position_embeddings")
"""In what the head that training starts from may differ: its rows are matched, and no weight depends on the other."""


@torch.no_grad()
def init_head(
    sizes: HeadConfig,
    vocab: DraftVocab,
    target: Target,
    seed: int,
    init: str = RANDOM,
    lm_head: Literal["random", "target"] = "random",
) -> Head:
    """A float32 head before its first update. `InputError` if `init` is no head, or one of another shape."""
    head = Head.init(sizes, seed)
    rows_VD = head.lm_head.weight
    if lm_head == "target":
        rows_VD.copy_(_target_output_rows(target, vocab))
    if init == RANDOM:
        return head
    stored = read_head(init, torch.float32, target.info.num_layers)
    _require_same_sizes(stored.config, sizes, Path(init))
    weights = stored.head.state_dict()
    own = stored.vocab.to_draft(vocab.target_ids_V)
    old_VD = weights.pop("lm_head.weight")
    weights["lm_head.weight"] = torch.where(own.in_vocab[:, None], old_VD[own.ids], rows_VD)
    head.load_state_dict(weights)
    return head


def _target_output_rows(target: Target, vocab: DraftVocab) -> Tensor:
    weight_WD = target.lm_head.weight
    assert isinstance(weight_WD, Tensor), "the target's output matrix"
    return weight_WD.detach()[vocab.target_ids_V.to(weight_WD.device)].float().cpu()


def _require_same_sizes(found: HeadConfig, wanted: HeadConfig, place: Path) -> None:
    names = [field.name for field in fields(HeadConfig) if field.name not in MAY_DIFFER]
    differ = [name for name in names if getattr(found, name) != getattr(wanted, name)]
    if differ:
        raise InputError(
            f"a head in {place} with {_describe_sizes(found, differ)}",
            f"{_describe_sizes(wanted, differ)}, as target, features and train.head ask for",
            "set train.head to its sizes where they differ, or start from another head",
        )


def _describe_sizes(config: HeadConfig, names: list[str]) -> str:
    values = {name: getattr(config, name) for name in names}
    return ", ".join(f"{name} {list(v) if isinstance(v, tuple) else v}" for name, v in values.items())
