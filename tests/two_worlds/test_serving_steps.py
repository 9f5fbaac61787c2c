"""Step k of training is step k of serving: the same logits at the same place of the same text.

B requests, S path slots, L = 3D captured features, K frontier nodes, V draft vocabulary, Q chains.
"""

import dataclasses

import pytest
import torch
from tests.engine.poison import poison_map
from tests.tiny import tiny_target
from torch import Tensor

from eyas.drafters.drafter import AcceptedTokens, EngineMemory
from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.drafters.head_spec import SINK_TOKENS
from eyas.features.layout import Row, teacher_positions
from eyas.kernels.paged_attention import NEVER_HIDDEN, prepare_dense
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_pool import KVPool
from eyas.model.attention import DenseAttention
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.train.ttt import pack_rows, unroll
from eyas.tree.shape import TreeShape
from eyas.tree.tree import ExpandFn, Frontier, ToTargetFn, Tree, TreeGrower

STEPS = 6
LENGTH = 40
VARIANTS = (
    {},
    {"norm_output": True},
    {"fc_norm": True},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
)
ANSWER = 9  # where the answer starts; chains start one before


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_target(tmp_path_factory.mktemp("target")), torch.float32, layers=(1, 2, 3))


@pytest.fixture(scope="module")
def rows(target: Target) -> list[Row]:
    out = []
    for seed in range(3):
        ids_1T = torch.randint(0, 256, (1, LENGTH), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            features = target.forward(ids_1T, torch.arange(LENGTH)[None], DenseAttention(), want_aux=True)
        assert features.aux_BTL is not None
        mask_T = torch.arange(LENGTH) >= ANSWER
        out.append(
            Row(
                str(seed),
                "any",
                ids_1T[0],
                mask_T,
                features.aux_BTL[0],
                features.hidden_BTD[0, teacher_positions(mask_T)],
            )
        )
    return out


def make_head(target: Target, flags: dict[str, bool]) -> Head:
    """Random, five times as wide as a fresh one, so that every input moves the logits; no norm is one."""
    sizes = HeadConfig.for_target(target.info, 96, aux_layer_ids=target.aux_layer_ids)
    head = Head.init(dataclasses.replace(sizes, **flags), 0)
    with torch.no_grad():
        for number, weight in enumerate(head.parameters()):
            weight.mul_(5 if weight.ndim == 2 else 1 + 0.1 * number)
    return head


def trained_logits(head: Head, target: Target, row: Row) -> dict[tuple[int, int], Tensor]:
    """logits_V by (position of the chain, step), as training computes them."""
    packed = pack_rows([row], STEPS, torch.float32)
    with torch.no_grad():
        out_KQD = unroll(head, packed, target.embed(packed.next_ids_P), target.embed(packed.tokens_KQ))
        logits_KQV = head.logits(out_KQD)
    chains = packed.chains_Q.tolist()
    return {(t, k): logits_KQV[k, q] for q, t in enumerate(chains) for k in range(STEPS) if t + k + 1 < LENGTH}


class TextGrower(TreeGrower):
    """Feeds the drafter the text itself: node `lane` of every level, the other nodes a wrong text beside it."""

    def __init__(self, width: int, lane: int, texts: list[list[int]]) -> None:
        """texts[b]: the tokens behind the root of request b."""
        super().__init__(TreeShape(STEPS, width, 2), torch.device("cpu"))
        self.width, self.lane, self.texts = width, lane, texts
        self.logits_BV: list[Tensor] = []

    def grow(self, root_B: Tensor, logits_BV: Tensor, advance: ExpandFn, to_target: ToTargetFn) -> Tree:
        count, eye_KK = root_B.shape[0], torch.eye(self.width, dtype=torch.bool)
        self.logits_BV = [logits_BV]
        for level in range(STEPS - 1):
            tokens_BK = torch.full((count, self.width), 7 + level)
            tokens_BK[:, self.lane] = torch.tensor([text[level] for text in self.texts])
            parents_BK = torch.arange(self.width).expand(count, -1) if level else None
            visible_BKE = eye_KK.repeat(1, level + 1).expand(count, -1, -1)
            self.logits_BV.append(advance(Frontier(level, tokens_BK, parents_BK, visible_BKE))[:, self.lane])
        return Tree.from_chains(root_B[:, None], torch.ones_like(root_B[:, None], dtype=torch.bool))


@pytest.mark.parametrize("flags", VARIANTS, ids=lambda flags: "-".join(flags) or "plain")
@pytest.mark.parametrize(("width", "lane"), [(1, 0), (3, 1)], ids=["chain", "tree"])
def test_step_k_of_training_is_step_k_of_serving(
    target: Target, rows: list[Row], width: int, lane: int, flags: dict[str, bool]
) -> None:
    """Three texts in three lines; each moves on by another number of tokens a round, read by `extend` or by `read`."""
    head = make_head(target, flags)
    trained = [trained_logits(head, target, row) for row in rows]
    vocab = DraftVocab.from_counts(torch.ones(target.info.vocab_size), 96)
    drafter = make_drafter(target, Eagle3Spec(head.pack_projections(), vocab, TreeShape(STEPS, width, 2)), rows)
    compared = set()
    with torch.no_grad():
        req_slots_B = torch.arange(len(rows))
        lengths = [ANSWER + line for line in range(len(rows))]
        commit(drafter, rows, lengths)
        drafter.read(range(len(rows)), lengths)
        for number, steps in enumerate(([1, 3, 2], [5, 1, 4], [2, 2, 2], [1, 6, 1], [6, 1, 3])):
            texts = [row.ids_T[length + 1 :].tolist() for row, length in zip(rows, lengths, strict=True)]
            shape = TreeShape(STEPS, width, 2)
            grower = drafter.growers[shape] = TextGrower(width, lane, texts)
            roots_B = torch.tensor([int(row.ids_T[n]) for row, n in zip(rows, lengths, strict=True)])
            drafter.draft(req_slots_B, torch.tensor(lengths), roots_B, shape)
            for k, logits_BV in enumerate(grower.logits_BV):
                for line, length in enumerate(lengths):
                    t = length - 1  # the last committed row: its chain drafts now
                    wanted_V = trained[line][t, k]
                    scale = float(wanted_V.abs().max())
                    torch.testing.assert_close(logits_BV[line], wanted_V, rtol=0, atol=1e-5 * max(1.0, scale))
                    compared.add((t, k))
            if number % 2:
                extend(drafter, rows, lengths, steps)
            lengths = [length + step for length, step in zip(lengths, steps, strict=True)]
            commit(drafter, rows, lengths)
            if number % 2 == 0:
                drafter.read(range(len(rows)), steps)
    assert {k for _, k in compared} == set(range(STEPS))
    assert len({t for t, _ in compared}) > 10


def windowed_logits(head: Head, target: Target, row: Row, length: int, num_extended: int) -> list[Tensor]:
    """Returns logits_V of each level that continues the text, from dense passes over all rows and drafts.

    The last `num_extended` rows of the text and the drafts also see the sink tokens.
    """
    attend, num_read = DenseAttention(), length - num_extended

    def step(inputs_1D: Tensor, token: int, position: int) -> tuple[Tensor, Tensor]:
        positions_1S = torch.arange(position + 1)[None]
        positions_1S[:, :SINK_TOKENS] = NEVER_HIDDEN
        attend.set_visible(torch.ones(1, 1, position + 1, dtype=torch.bool), positions_1S)
        embeds_11D = target.embed(row.ids_T[None, token : token + 1])
        return head.step_with_logits(embeds_11D, inputs_1D, torch.tensor([[position]]), attend)

    embeds_1TD = target.embed(row.ids_T[None, 1 : num_read + 1])
    fused_1TD = head.fuse_aux(row.aux_TL[None, :length])
    positions_1T = torch.arange(num_read)[None]
    hidden_1TD, logits_1TV = head.step_with_logits(embeds_1TD, fused_1TD[:, :num_read], positions_1T, attend)
    for position in range(num_read, length):
        hidden_1TD, logits_1TV = step(fused_1TD[:, position : position + 1], position + 1, position)
    found = [logits_1TV[0, -1]]
    for level in range(STEPS - 1):
        hidden_1TD, logits_1TV = step(hidden_1TD[:, -1:], length + 1 + level, length + level)
        found.append(logits_1TV[0, -1])
    return found


@pytest.mark.parametrize("num_extended", [0, 2])
@pytest.mark.parametrize("window", [None, 2, 4, 9, 100])
@pytest.mark.parametrize(("width", "lane"), [(1, 0), (3, 1)], ids=["chain", "tree"])
def test_a_head_sees_its_window_and_the_sink_tokens(
    target: Target, rows: list[Row], width: int, lane: int, window: int | None, num_extended: int
) -> None:
    """The window slides over the text and over the drafted levels, and is shorter than the tree, too."""
    head = make_head(target, {})
    head.limit_attention(window)
    lengths = [ANSWER + 5 * line for line in range(len(rows))]
    vocab = DraftVocab.from_counts(torch.ones(target.info.vocab_size), 96)
    with torch.no_grad():
        wanted = [
            windowed_logits(head, target, row, length, num_extended) for row, length in zip(rows, lengths, strict=True)
        ]
        drafter = make_drafter(target, Eagle3Spec(head.pack_projections(), vocab, TreeShape(STEPS, width, 2)), rows)
        read = [length - num_extended for length in lengths]
        commit(drafter, rows, read)
        drafter.read(range(len(rows)), read)
        if num_extended:
            extend(drafter, rows, read, [num_extended] * len(rows))
            commit(drafter, rows, lengths)
        texts = [row.ids_T[length + 1 :].tolist() for row, length in zip(rows, lengths, strict=True)]
        shape = TreeShape(STEPS, width, 2)
        grower = drafter.growers[shape] = TextGrower(width, lane, texts)
        roots_B = torch.tensor([int(row.ids_T[n]) for row, n in zip(rows, lengths, strict=True)])
        drafter.draft(torch.arange(len(rows)), torch.tensor(lengths), roots_B, shape)
    for line in range(len(rows)):
        for level, logits_BV in enumerate(grower.logits_BV):
            scale = max(1.0, float(wanted[line][level].abs().max()))
            torch.testing.assert_close(logits_BV[line], wanted[line][level], rtol=0, atol=1e-5 * scale)


def make_drafter(target: Target, draft: Eagle3Spec, rows: list[Row]) -> Eagle3Drafter:
    """A line for each text, its slots scattered over the memory; the features are those that are stored."""
    width = LENGTH + 20
    weight = draft.head.lm_head.weight
    pool = KVPool((1, 1, 1), len(rows) * width, (len(rows), width), weight, weight.dtype)
    order = torch.randperm(pool.num_slots, generator=torch.Generator().manual_seed(5)).int() + 1
    pool.req_to_token_RC.copy_(order.view(len(rows), width))
    future_map = FutureMap(len(rows), width, torch.device("cpu"))
    drafter = Eagle3Drafter(draft, EngineMemory(target, pool, future_map, prepare_dense))
    poison_map(drafter.future_map)
    assert pool.aux_ZL is not None
    pool.aux_ZL.fill_(100.0)
    return drafter


def commit(drafter: Eagle3Drafter, rows: list[Row], lengths: list[int]) -> None:
    """So many tokens of each text are in memory, and one more is known. What lies behind them nobody may read."""
    pool, future_map = drafter.pool, drafter.future_map
    assert pool.aux_ZL is not None
    for line, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        future_map.lengths_R[line] = length
        future_map.tokens_RC[line, : length + 1] = row.ids_T[: length + 1]
        pool.aux_ZL[pool.req_to_token_RC[line, :length].long()] = row.aux_TL[:length]


def extend(drafter: Eagle3Drafter, rows: list[Row], lengths: list[int], steps: list[int]) -> None:
    """An extend over the next tokens of each text; rows beyond a line's step hold what nobody may read."""
    num_slots = STEPS + 1
    tokens_BS = torch.full((len(rows), num_slots), 3)
    slots_BS = torch.zeros(len(rows), num_slots, dtype=torch.int64)
    aux_BSL = torch.full((len(rows), num_slots, rows[0].aux_TL.shape[1]), 100.0)
    for line, (row, length, step) in enumerate(zip(rows, lengths, steps, strict=True)):
        tokens_BS[line, :step] = row.ids_T[length + 1 : length + 1 + step]
        slots_BS[line, :step] = drafter.pool.req_to_token_RC[line, length : length + step]
        aux_BSL[line, :step] = row.aux_TL[length : length + step]
    fresh = AcceptedTokens(tokens_BS, slots_BS, aux_BSL)
    drafter.extend(torch.arange(len(rows)), torch.tensor(lengths), torch.tensor(steps), fresh)
