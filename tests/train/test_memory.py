"""Memory of training grows with the length of a text, not with its square, and not with text times vocabulary."""

import dataclasses
from typing import Any

import pytest
import torch
from tests.features.small import random_row
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eyas.model.head import Head, HeadConfig
from eyas.model.layer_ids import HFIndex
from eyas.model.vocab import DraftVocab
from eyas.train import loss
from eyas.train.loss import Teacher, compute_loss
from eyas.train.ttt import pack_rows, unroll

WIDTH, VOCAB, DRAFT, STEPS = 16, 3000, 64, 7
CONFIG = HeadConfig(
    hidden_size=WIDTH,
    intermediate_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    vocab_size=VOCAB,
    draft_vocab_size=DRAFT,
    max_position_embeddings=4096,
    target_hidden_size=WIDTH,
    aux_layer_ids=(HFIndex(1), HFIndex(2), HFIndex(3)),
)


class Largest(TorchDispatchMode):
    """The most elements that any result of any operation has, forward and backward."""

    num_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() // 4 for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.num_elements = max([self.num_elements, *sizes])
        return out


@dataclasses.dataclass
class Kept:
    """Bytes that the forward leaves for the backward, each storage once."""

    storages: dict[int, int] = dataclasses.field(default_factory=dict)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor


def learn(length: int) -> tuple[int, int, int]:
    """Elements of the largest tensor, bytes kept for the backward, and chains, of one text of so many tokens."""
    row = random_row("." * (length // 4) + "x" * (length - length // 4), WIDTH, VOCAB)
    head, embedding = Head.init(CONFIG, 0), torch.randn(VOCAB, WIDTH)
    teacher = Teacher(torch.nn.Linear(WIDTH, VOCAB), DraftVocab.from_counts(torch.rand(VOCAB), DRAFT), torch.float32)
    packed, kept = pack_rows([row], STEPS, torch.float32), Kept()
    embeds = embedding[packed.next_ids_P], embedding[packed.tokens_KQ]
    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
            out_KQD = unroll(head, packed, *embeds)
            graded = compute_loss(head.norm(out_KQD).flatten(0, 1), head.lm_head.weight, packed, teacher, 0.8)
        graded.loss.backward()
    return largest.num_elements, sum(kept.storages.values()), packed.chains_Q.shape[0]


def test_memory_is_linear_in_the_length_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_FLOATS", 1_000_000)  # so that even the short text has more than one chunk
    short_largest, short_kept, _ = learn(512)
    largest, kept, chains = learn(2048)
    assert largest < chains * 2048, "no chains times keys, let alone for each head or step"
    assert largest < 2048 * VOCAB, "no positions times vocabulary"
    assert largest <= 4 * short_largest
    assert kept <= 4.1 * short_kept
