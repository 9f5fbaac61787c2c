"""Chooses the drafter of a stored head by its kind. Callers need to know no kind."""

import torch

from eyas.drafters.block import BlockSpec
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.drafters.head_spec import HeadSpec
from eyas.formats.head_dir import StoredHead
from eyas.model.block_head import BlockHead
from eyas.tree.shape import TreeShape


def draft_with(device: torch.device, stored: StoredHead, shape: TreeShape) -> HeadSpec:
    """Returns the spec of the drafter for a stored head. The arguments are those of `HeadSpec.on`."""
    return (BlockSpec if isinstance(stored.head, BlockHead) else Eagle3Spec).on(device, stored, shape)
