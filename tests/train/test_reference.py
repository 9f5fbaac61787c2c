"""Head, loss and gradients of the unrolled training against a reference that shares no code with it: plain loops over
texts, steps and positions, one softmax at a time, float64.
"""

import dataclasses
import math

import pytest
import torch
from tests.features.small import random_row
from torch import Tensor

from eyas.features.layout import Row, count_supervised, teacher_positions
from eyas.model.head import Head, HeadConfig
from eyas.model.layer_ids import HFIndex
from eyas.model.vocab import DraftVocab
from eyas.train import chain_attention, loss
from eyas.train.loss import LossOutput, Teacher, compute_loss
from eyas.train.optimizer import MasterWeightOptimizer
from eyas.train.ttt import pack_rows, unroll

WIDTH, VOCAB, DRAFT, STEPS, DECAY = 12, 11, 7, 7, 0.8
CONFIG = HeadConfig(
    hidden_size=WIDTH,
    intermediate_size=20,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    rms_norm_eps=1e-5,
    rope_theta=100.0,
    vocab_size=VOCAB,
    draft_vocab_size=DRAFT,
    max_position_embeddings=64,
    target_hidden_size=WIDTH,
    aux_layer_ids=(HFIndex(1), HFIndex(2), HFIndex(3)),
)
PICTURES = ("...xxxxxxxxxxxx", ".xx..xxxxx.xxxxx", "....xxx")


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum() / len(x) + CONFIG.rms_norm_eps) * weight


def turn(x: Tensor, position: int) -> Tensor:
    """Rotary position, one pair of components at a time."""
    half, out = len(x) // 2, [x[0]] * len(x)
    for i in range(half):
        angle = position * CONFIG.rope_theta ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return torch.stack(out)


class Reference:
    """One chain of one text at a time. Keys are (text position, step)."""

    def __init__(self, w: dict[str, Tensor], config: HeadConfig, embedding: Tensor) -> None:
        self.w, self.config, self.embedding = w, config, embedding

    def feed(
        self, hidden: Tensor, token: int, position: int
    ) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        """Residual stream, and queries, keys, values by head."""
        w, size = self.w, self.config.head_dim
        layer = "midlayer.self_attn."
        e = rms(self.embedding[token], w["midlayer.input_layernorm.weight"])
        pair = torch.cat([e, rms(hidden, w["midlayer.hidden_norm.weight"])])
        q = [turn(part, position) for part in (w[layer + "q_proj.weight"] @ pair).split(size)]
        k = [turn(part, position) for part in (w[layer + "k_proj.weight"] @ pair).split(size)]
        v = list((w[layer + "v_proj.weight"] @ pair).split(size))
        return hidden, q, k, v

    def finish(self, hidden: Tensor, q: list[Tensor], keys: list[list[Tensor]], values: list[list[Tensor]]) -> Tensor:
        w, heads = self.w, []
        for n, query in enumerate(q):
            g = n * self.config.num_kv_heads // self.config.num_heads
            scores = torch.stack([query @ key[g] for key in keys]) / math.sqrt(self.config.head_dim)
            heads.append(sum(p * value[g] for p, value in zip(torch.softmax(scores, 0), values, strict=True)))
        mixed = hidden + w["midlayer.self_attn.o_proj.weight"] @ torch.cat(heads)
        x = rms(mixed, w["midlayer.post_attention_layernorm.weight"])
        gate = w["midlayer.mlp.gate_proj.weight"] @ x
        up = w["midlayer.mlp.up_proj.weight"] @ x
        return mixed + w["midlayer.mlp.down_proj.weight"] @ (gate / (1 + torch.exp(-gate)) * up)

    def fuse(self, aux: Tensor) -> Tensor:
        if self.config.fc_norm:
            parts = aux.split(WIDTH)
            aux = torch.cat([rms(part, self.w[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)])
        return self.w["fc.weight"] @ aux

    def chain(self, row: Row, t: int, steps: int) -> list[Tensor]:
        """Logits of the steps of the chain at t."""
        ids = row.ids_T.tolist()
        prefix = [self.feed(self.fuse(row.aux_TL[s]), ids[s + 1], s) for s in range(t + 1)]
        keys, values = [one[2] for one in prefix], [one[3] for one in prefix]
        hidden, q = prefix[t][0], prefix[t][1]
        logits = []
        for step in range(steps):
            if step > 0:
                hidden, q, key, value = self.feed(hidden, ids[t + 1 + step], t + step)
                keys, values = [*keys, key], [*values, value]
            out = self.finish(hidden, q, keys, values)
            normed = rms(out, self.w["norm.weight"])
            logits.append(self.w["lm_head.weight"] @ normed)
            hidden = normed if self.config.norm_output else out
        return logits


@dataclasses.dataclass
class Expected:
    loss: Tensor
    hits: list[int]
    taught: list[int]
    overlap: list[float]


def expected(reference: Reference, rows: list[Row], output: Tensor, draft_ids: list[int]) -> Expected:
    """The issue's formula, read aloud."""
    result = Expected(torch.zeros((), dtype=torch.float64), [0] * STEPS, [0] * STEPS, [0.0] * STEPS)
    for row in rows:
        length, mask = len(row.ids_T), row.loss_mask_T.tolist()
        for t in range(length):
            wanted = [k for k in range(STEPS) if t + 2 + k < length and mask[t + 1] and mask[t + 2 + k]]
            if not wanted:
                continue
            logits = reference.chain(row, t, max(wanted) + 1)
            for k in wanted:
                full = torch.softmax(
                    output @ row.hidden_UD[int(teacher_positions(row.loss_mask_T)[: t + 1 + k].sum())], 0
                )
                inside = full[draft_ids]
                q = torch.softmax(logits[k], 0)
                best = int(full.argmax())
                result.taught[k] += 1
                result.overlap[k] += float(torch.minimum(inside, q.detach()).sum())
                if best in draft_ids:
                    result.hits[k] += draft_ids[int(q.argmax())] == best
                    result.loss = result.loss - DECAY**k * (inside / inside.sum() * q.log()).sum()
    return result


def ours(head: Head, rows: list[Row], embedding: Tensor, teacher: Teacher) -> tuple[LossOutput, Tensor]:
    packed = pack_rows(rows, STEPS, embedding.dtype)
    out_KQD = unroll(head, packed, embedding[packed.next_ids_P], embedding[packed.tokens_KQ])
    return compute_loss(
        head.norm(out_KQD).flatten(0, 1), head.lm_head.weight, packed, teacher, DECAY
    ), packed.supervised_JK


def wild_head(config: HeadConfig, dtype: torch.dtype) -> Head:
    """Far from the soft start, so that a wrong term shows."""
    head = Head.init(config, 0, torch.float64)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn_like(weight) * 0.4 + (weight.ndim == 1))
    return head.to(dtype)


@dataclasses.dataclass
class Case:
    """Rows, target and head in one precision, and what the reference makes of them in float64."""

    head: Head
    rows: list[Row]
    embedding: Tensor
    teacher: Teacher
    goal: Expected
    weights: dict[str, Tensor]


def case(config: HeadConfig, dtype: torch.dtype) -> Case:
    head = wild_head(config, dtype)
    rows = [random_row(picture, WIDTH, VOCAB, torch.float64) for picture in PICTURES]
    rows = [dataclasses.replace(row, aux_TL=row.aux_TL.to(dtype), hidden_UD=row.hidden_UD.to(dtype)) for row in rows]
    embedding = torch.randn(VOCAB, WIDTH, dtype=dtype)
    output = torch.nn.Linear(WIDTH, VOCAB, bias=False, dtype=dtype)
    with torch.no_grad():
        output.weight.copy_(torch.randn(VOCAB, WIDTH))
    vocab = DraftVocab.from_counts(torch.rand(VOCAB), DRAFT)
    weights = {name: weight.detach().double().requires_grad_() for name, weight in head.named_parameters()}
    wide = [dataclasses.replace(row, aux_TL=row.aux_TL.double(), hidden_UD=row.hidden_UD.double()) for row in rows]
    reference = Reference(weights, config, embedding.double())
    goal = expected(reference, wide, output.weight.detach().double(), vocab.target_ids_V.tolist())
    goal.loss.backward()
    return Case(head, rows, embedding, Teacher(output, vocab, dtype), goal, weights)


def gradient_error(found: Tensor | None, wanted: Tensor | None) -> float:
    assert found is not None
    assert wanted is not None
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("flags", "dtype", "tolerance"),
    [
        ({}, torch.float64, 1e-8),
        ({"norm_output": True}, torch.float64, 1e-8),
        ({"fc_norm": True}, torch.float64, 1e-8),
        ({"fc_norm": True, "norm_output": True}, torch.float64, 1e-8),
        ({}, torch.float32, 1e-5),
    ],
)
def test_loss_gradients_and_figures_over_seven_steps(flags: dict[str, bool], dtype: torch.dtype, tolerance: float):
    given = case(dataclasses.replace(CONFIG, **flags), dtype)
    goal = given.goal
    graded, taught_JK = ours(given.head, given.rows, given.embedding, given.teacher)
    graded.loss.backward()
    torch.testing.assert_close(graded.loss.double(), goal.loss, rtol=tolerance, atol=0)
    assert taught_JK.sum(0).tolist() == goal.taught
    assert graded.hits_JK.sum(0).tolist() == goal.hits
    assert sum(goal.hits) > 0
    torch.testing.assert_close(graded.overlap_JK.sum(0).tolist(), goal.overlap, rtol=tolerance, atol=0)
    for name, weight in given.head.named_parameters():
        error = gradient_error(weight.grad, given.weights[name].grad)
        assert error < tolerance, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize(("block_floats", "sharing"), [(120, ()), (100_000, ("cpu",))])
def test_packed_cut_accumulated_and_compacted_is_the_naive_path(
    block_floats: int, sharing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32: texts packed into two micro-batches, attention in blocks, logits in chunks, float32 accumulators."""
    given = case(CONFIG, torch.float32)
    monkeypatch.setattr(chain_attention, "BLOCK_FLOATS", block_floats)
    monkeypatch.setattr(chain_attention, "SHARING", sharing)
    monkeypatch.setattr(loss, "CHUNK_FLOATS", 3 * STEPS * DRAFT)
    count = sum(count_supervised(row.loss_mask_T) for row in given.rows)
    masters, total = MasterWeightOptimizer(given.head, weight_decay=0.0, clip=1.0), 0.0
    for rows in (given.rows[:2], given.rows[2:]):
        graded, _ = ours(given.head, rows, given.embedding, given.teacher)
        (graded.loss / count).backward()
        masters.accumulate_gradients()
        total += float(graded.loss.detach()) / count
    assert total == pytest.approx(float(given.goal.loss.detach()) / count, rel=1e-5)
    for name, found in masters.grad_sums.items():
        wanted = given.weights[name].grad
        assert wanted is not None
        error = gradient_error(found, wanted / count)
        assert error < 1e-5, f"{name}: relative error {error:.1e}"
