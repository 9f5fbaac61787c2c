"""Makes the inputs of the training benchmarks: a random target, packs of documents, and a trainer for them.

T tokens of a document, U supervised tokens, P rows of a pack, D hidden, L = 3D captured features.

The shape: hidden 512, 8 heads over 4 key-value heads, feed-forward 1536, target vocabulary 8192, draft vocabulary 4096.
Values are random, because time and memory do not depend on them. Every peer gets the same values.
"""

import dataclasses
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from eyas.base.provenance import StageInputs, finish_stage
from eyas.chat.conversation import Conversation, Message, Turn
from eyas.features.layout import Row, count_supervised, teacher_positions
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, TOKENIZER_FILES, resolve_target
from eyas.model.vocab import DraftVocab
from eyas.train.loss import Teacher
from eyas.train.optimizer import MasterWeightOptimizer
from eyas.train.trainer import compute_batch_loss
from eyas.train.ttt import pack_rows

PACK_TOKENS = 2048
SHARE = 0.6  # the supervised share of each document, at its end
MIN_TOKENS = 512  # of a document
FIRST_ID = 6  # smaller ids are special tokens of the embedded tokenizer
DECAY, LEARNING_RATE = 0.8, 1e-3


def make_target(place: Path, num_layers: int = 10) -> Path:
    """Writes a random Llama of this shape with the embedded target's tokenizer and chat template. Returns `place`."""
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=num_layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=65536,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=5,  # of the embedded tokenizer
        rms_norm_eps=1e-5,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(place)
    embedded = resolve_target(EMBEDDED)
    for name in (*TOKENIZER_FILES, "chat_template.jinja"):
        if (embedded / name).is_file():
            shutil.copy(embedded / name, place / name)
    return place


def lengths_of_pack(tokens: int, number: int) -> list[int]:
    """Returns the lengths of documents that fill a pack, each at least MIN_TOKENS. `number` seeds them."""
    generator = torch.Generator().manual_seed(number)
    lengths: list[int] = []
    left = tokens
    while left >= 2 * MIN_TOKENS:
        lengths.append(
            int(torch.randint(MIN_TOKENS, min(left - MIN_TOKENS, 2 * MIN_TOKENS) + 1, (1,), generator=generator))
        )
        left -= lengths[-1]
    return [*lengths, left]


def make_rows(lengths: Sequence[int], hidden_size: int, vocab_size: int, seed: int) -> list[Row]:
    """Makes documents of random ids and bfloat16 features. The last SHARE of each is supervised."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number, length in enumerate(lengths):
        mask_T = torch.arange(length) >= round((1 - SHARE) * length)
        ids_T = torch.randint(FIRST_ID, vocab_size, (length,), generator=generator)
        aux_TL = torch.randn(length, 3 * hidden_size, generator=generator).bfloat16()
        hidden_UD = torch.randn(int(teacher_positions(mask_T).sum()), hidden_size, generator=generator).bfloat16()
        rows.append(Row(str(number), "random", ids_T, mask_T, aux_TL, hidden_UD))
    return rows


@dataclass(frozen=True)
class OurTrainer:
    """A random head with the trainer of eyas.train: one optimizer step for each pack."""

    target: Target
    head: Head
    optimizer: MasterWeightOptimizer
    teacher: Teacher
    steps: int
    dtype: torch.dtype

    @staticmethod
    def make(target: Target, steps: int, draft_vocab_size: int, dtype: torch.dtype = torch.bfloat16) -> "OurTrainer":
        """Makes a head with random weights, its optimizer and its teacher."""
        sizes = HeadConfig.for_target(target.info, draft_vocab_size)
        counts_W = torch.ones(target.info.vocab_size, dtype=torch.int64)
        vocab = DraftVocab.from_counts(counts_W, draft_vocab_size, target.info.eos_ids)
        head = Head.init(sizes, 0).to(target.embedding.weight.device)
        optimizer = MasterWeightOptimizer(head, weight_decay=0.01, clip=0.5)
        head.to(dtype)
        return OurTrainer(target, head, optimizer, Teacher(target.lm_head, vocab, dtype), steps, dtype)

    def step(self, rows: Sequence[Row]) -> float:
        """Trains one step on a pack, on the head's device, and returns the loss for each supervised token."""
        packed, device = pack_rows(rows, self.steps, self.dtype), self.head.lm_head.weight.device
        if device.type != "cpu":
            packed = packed.map(lambda tensor: tensor.to(device))
        graded = compute_batch_loss(self.head, packed, self.teacher, self.target, DECAY)
        loss = graded.loss / sum(count_supervised(row.loss_mask_T) for row in rows)
        loss.backward()
        self.optimizer.accumulate_gradients()
        self.optimizer.step(LEARNING_RATE)
        return float(loss.detach())


def to_tensors(packs: Sequence[Sequence[Row]]) -> dict[str, Tensor]:
    """Returns the packs for a peer: ids_P, mask_P, lengths, aux_PL, hidden_PD. Missing states are zeros."""
    found: dict[str, Tensor] = {}
    for number, rows in enumerate(packs):
        hidden = []
        for row in rows:
            hidden_TD = torch.zeros(row.ids_T.shape[0], row.hidden_UD.shape[1], dtype=row.hidden_UD.dtype)
            hidden_TD[teacher_positions(row.loss_mask_T)] = row.hidden_UD
            hidden.append(hidden_TD)
        one = {
            "ids_P": torch.cat([row.ids_T for row in rows]),
            "mask_P": torch.cat([row.loss_mask_T for row in rows]),
            "lengths": torch.tensor([row.ids_T.shape[0] for row in rows]),
            "aux_PL": torch.cat([row.aux_TL for row in rows]),
            "hidden_PD": torch.cat(hidden),
        }
        found |= {f"{number}.{name}": tensor for name, tensor in one.items()}
    return found


def with_dtype(rows: Sequence[Row], dtype: torch.dtype) -> list[Row]:
    """Returns the rows with features of another dtype."""
    return [dataclasses.replace(row, aux_TL=row.aux_TL.to(dtype), hidden_UD=row.hidden_UD.to(dtype)) for row in rows]


def write_conversations(place: Path, target: Target, count: int) -> Path:
    """Writes a finished directory of conversations: 512 to 1,024 random tokens each, of which SHARE is the answer."""
    generator = torch.Generator().manual_seed(0)
    place.mkdir(parents=True)
    lines = b""
    for number in range(count):
        length = int(torch.randint(MIN_TOKENS, 2 * MIN_TOKENS + 1, (1,), generator=generator))
        answer = round(SHARE * length)
        words = torch.randint(FIRST_ID, len(target.tokenizer), (length - answer,), generator=generator).tolist()
        text = target.tokenizer.decode(words)
        new = tuple(torch.randint(FIRST_ID, target.info.vocab_size, (answer,), generator=generator).tolist())
        messages = Message("user", str(text)), Message("assistant", "an answer of random ids")
        turn = Turn(new, (True,) * answer, "length")
        lines += Conversation(f"random:{number}", "random", messages, {"task": "random"}, turns=(turn,)).to_line()
    (place / "part-00000.jsonl").write_bytes(lines)
    finish_stage(place, StageInputs("respond", "benchmark", {}), time.time())
    return place
