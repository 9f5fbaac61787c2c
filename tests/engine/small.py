"""What the tests of this room share: reference answers, a drafter that knows them, a head that learns them.

B requests, T rows, M tree nodes, S path slots, K unrolled steps, Q chains, V draft vocabulary, R lines, C columns.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import torch
from engine_checks import awaits_result, check_engine, check_tree
from tests.engine.poison import poison_map
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AutoModelForCausalLM

from eyas.drafters.drafter import AcceptedTokens, EngineMemory
from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.device_stream import DeviceStream, WorkEvent, WorkResult
from eyas.engine.engine import Engine, OnTokens
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.features.layout import Row, teacher_positions
from eyas.kernels.paged_attention import AttentionMetadata, PackedAttentionFn, PrepareAttention
from eyas.model.attention import DenseAttention
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad, FixedArm, SpeculationDecision
from eyas.train.ttt import pack_rows, unroll
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree

Out = TypeVar("Out")

CONTEXT = 512
LAYERS = (1, 2, 4)  # captured, of four
LENGTHS = (5, 1, 40, 17, 380, 9, 62, 23, 130)
MAX_TOKENS = (24, 40, 1, 33, 20, 2, 30, 27, 12)


@dataclass(frozen=True)
class Spoken:
    """A target, requests, and the greedy answers that transformers gives to them, by request id."""

    target: Target
    path: Path
    requests: tuple[Request, ...]
    answers: dict[str, list[int]]

    @property
    def texts(self) -> list[list[int]]:
        """Prompt and answer of each request."""
        return [list(request.prompt_ids) + self.answers[request.id] for request in self.requests]


def speak(path: Path, count: int = len(LENGTHS)) -> Spoken:
    """The first `count` requests of many lengths and the answers of transformers' own generate."""
    target = Target.load(path, torch.float32, layers=LAYERS)
    generator = torch.Generator().manual_seed(7)
    requests = []
    for i, (length, max_tokens) in enumerate(zip(LENGTHS[:count], MAX_TOKENS[:count], strict=True)):
        ids = torch.randint(0, 256, (length,), generator=generator).tolist()
        requests.append(Request(f"r{i}", tuple(ids), max_tokens))
    return Spoken(target, path, tuple(requests), generate(path, requests, target.info.eos_ids))


def generate(path: Path, requests: Iterable[Request], eos_ids: Sequence[int]) -> dict[str, list[int]]:
    """The reference: transformers' generate, one prompt at a time. Not its SDPA, which drops caps and sinks."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    answers = {}
    for request in requests:
        ids_1T = torch.tensor([request.prompt_ids])
        out_1T = model.generate(
            ids_1T,
            attention_mask=torch.ones_like(ids_1T),
            do_sample=False,
            max_new_tokens=request.max_tokens,
            eos_token_id=list(eos_ids),
        )
        answers[request.id] = out_1T[0, ids_1T.shape[1] :].tolist()
    return answers


def poison(engine: Engine) -> Engine:
    """What is read on the device before it is written must show."""
    poison_map(engine.runner.future_map)
    return engine


def check(engine: Engine) -> None:
    """The engine's own invariants; and where nothing is in flight, that the device holds what the host believes."""
    check_engine(engine)
    future_map = engine.runner.future_map
    for one in engine.scheduler.running:
        if one.is_started and not awaits_result(one):
            text = one.state.token_ids
            assert int(future_map.lengths_R[one.kv.req_slot]) == one.num_committed
            assert future_map.tokens_RC[one.kv.req_slot, : len(text)].tolist() == text


def check_idle(engine: Engine) -> None:
    """Nobody holds anything: every slot is free or cached, every branch may be evicted."""
    check(engine)
    assert engine.is_idle
    memory = engine.kv_cache
    assert memory.pool.num_free + memory.prefix_cache.num_slots == memory.pool.num_slots
    assert memory.prefix_cache.num_evictable == memory.prefix_cache.num_slots


def drive(engine: Engine, requests: Iterable[Request], on_tokens: OnTokens | None = None) -> dict[str, RequestOutput]:
    """All answers, the invariants asserted after every step that gave tokens."""
    checked = on_tokens or (lambda *_: check(engine))
    answers = {}
    for answer in plain_loop(poison(engine), RequestList(requests), checked):
        check(engine)
        answers[answer.request.id] = answer
    check_idle(engine)
    return answers


def tokens(answers: dict[str, RequestOutput]) -> dict[str, list[int]]:
    return {name: answer.token_ids for name, answer in answers.items()}


def random_draft(target: Target, shape: TreeShape, seed: int = 0) -> Eagle3Spec:
    """A head with random weights, wide enough that its logits differ; half the vocabulary."""
    config = HeadConfig.for_target(target.info, draft_vocab_size=144, aux_layer_ids=target.aux_layer_ids)
    head = Head.init(config, seed)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim == 2:
                weight.mul_(5)
    device, vocab = target.model.device, DraftVocab.from_counts(torch.arange(288).flip(0), 144)
    return Eagle3Spec(head.to(device).pack_projections(), vocab.to(device), shape)


class ReplayDrafter(Eagle3Drafter):
    """Drafts what the target will say, hidden in random trees: right down to a random depth, wrong below.

    The right nodes stand at random numbers, often behind wrong siblings; padding carries the right token too. The real
    drafter drafts as well, so that its scratch rows and `extend` are those of a real round.
    """

    def __init__(self, draft: Eagle3Spec, memory: EngineMemory) -> None:
        super().__init__(draft, memory)
        self.random = random.Random(3)
        self.texts: Sequence[Sequence[int]] = ()
        self.paths: dict[int, list[int]] = {}  # by line, the nodes that the target will accept
        self.seen: set[tuple[int, bool]] = set()  # accepted length, and whether the path was the first nodes in order

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        check_tree(super().draft(req_slots_B, lengths_B, roots_B, shape))
        rows = []
        for line, length, root in zip(req_slots_B.tolist(), lengths_B.tolist(), roots_B.tolist(), strict=True):
            known = self.future_map.tokens_RC[line, : length + 1].tolist()
            assert known[-1] == root, "the root is the token behind the committed ones"
            rows.append(self._plant(line, root, self._future(known), shape))
        tokens, parents, depths, scores, valid = (torch.tensor(column) for column in zip(*rows, strict=True))
        tree = Tree(tokens, parents, depths, scores.float(), valid, shape.depth)
        check_tree(tree)
        return tree

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, fresh: AcceptedTokens) -> None:
        for line, length in zip(req_slots_B.tolist(), accepted_B.tolist(), strict=True):
            nodes = self.paths[line][:length]
            self.seen.add((len(nodes), nodes == list(range(length))))
        super().extend(req_slots_B, lengths_B, accepted_B, fresh)

    def _future(self, known: list[int]) -> Sequence[int]:
        """How the text goes on; nothing is known where a round runs beyond the end of an answer."""
        for text in self.texts:
            if list(text[: len(known)]) == known:
                return text[len(known) :]
        assert any(known[: len(text)] == list(text) for text in self.texts), "the text is none of those asked for"
        return []

    def _plant(
        self, line: int, root: int, future: Sequence[int], shape: TreeShape
    ) -> tuple[list[int], list[int], list[int], list[float], list[bool]]:
        pick = self.random
        num_right = pick.randint(0, min(shape.depth, len(future)))
        tokens, parents, depths, valid = [root], [0], [0], [True]
        path = [0]
        for node in range(1, shape.nodes):
            left = num_right - (len(path) - 1)
            must = left >= shape.nodes - node or (shape.top_k == 1 and left > 0)
            if left > 0 and (must or pick.random() < 0.4):
                parent, token = path[-1], future[len(path) - 1]
                path.append(node)
            else:
                parents_allowed = [n for n in range(node) if valid[n] and depths[n] < shape.depth]
                parent = node - 1 if shape.top_k == 1 else pick.choice(parents_allowed)
                taken = {tokens[n] for n in range(1, node) if parents[n] == parent and valid[n]}
                if parent in path and path.index(parent) < len(future):
                    taken.add(future[path.index(parent)])
                token = pick.choice([t for t in range(288) if t not in taken])
                if shape.top_k > 1 and pick.random() < 0.1 and future:
                    parent, token = 0, future[0]
                    valid.append(False)
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
            if len(valid) == node:
                valid.append(True)
        self.paths[line] = path
        scores = [-float(depth) if ok else -float("inf") for depth, ok in zip(depths, valid, strict=True)]
        return tokens, parents, depths, scores, valid


def attention_aside(
    prepare: PrepareAttention, permit: Callable[[], AbstractContextManager[object]] = _disable_current_modes
) -> PrepareAttention:
    """Attention that modes do not see: that of a CPU reads lengths on the host, the kernels for GPUs do not."""

    def prepare_aside(kv: Tensor, req_to_token_RC: Tensor, metadata: AttentionMetadata) -> PackedAttentionFn:
        with permit():
            attend = prepare(kv, req_to_token_RC, metadata)

        def aside(*args: Any, **named: Any) -> Tensor:
            with permit():
                return attend(*args, **named)

        return aside

    return prepare_aside


class Recorded:
    """A stream that keeps what came of the work, and the order in which the host launched it and waited for it."""

    def __init__(self, stream: DeviceStream) -> None:
        self._stream = stream
        self.outs: list[Any] = []
        self.order: list[tuple[str, int]] = []

    def launch(self, work: Callable[[], Out]) -> WorkEvent[Out]:
        number = sum(kind == "launch" for kind, _ in self.order)
        self.order.append(("launch", number))
        event = self._stream.launch(work)

        def wait() -> WorkResult[Out]:
            self.order.append(("wait", number))
            done = event.wait()
            self.outs.append(done.out)
            return done

        return WorkEvent(wait)

    def close(self) -> None:
        self._stream.close()


def optional(draft: Eagle3Spec | None) -> list[Eagle3Spec]:
    """The drafters of an engine that may have none."""
    return [] if draft is None else [draft]


def put_drafter(engine: Engine, draft: Eagle3Spec, drafter_class: type[Eagle3Drafter]) -> Eagle3Drafter:
    """Give the engine another drafter."""
    drafter = drafter_class(draft, engine.runner.memory)
    engine.runner.drafters[0] = drafter
    return drafter


def replay_engine(
    spoken: Spoken, shape: TreeShape, slots: int, context: int = CONTEXT, stream: DeviceStream | None = None
) -> Engine:
    """An engine whose drafter knows the answers."""
    draft = random_draft(spoken.target, shape)
    engine = Engine(spoken.target, [draft], slots, context, stream=stream)
    drafter = put_drafter(engine, draft, ReplayDrafter)
    assert isinstance(drafter, ReplayDrafter)
    drafter.texts = spoken.texts
    return engine


class Turns(FixedArm):
    """One arm after another, and of several requests only some draft."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms = tuple(arms)
        self._next, self._pick = cycle(arms), random.Random(0)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        arm = next(self._next)
        drafts = tuple(arm.shape is not None and self._pick.random() < 0.7 for _ in load.contexts)
        return SpeculationDecision(arm if any(drafts) else Arm("off", None), drafts, arm, load)


class All(Turns):
    """One arm after another, for all requests."""

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        arm = super().decide(load).best_arm
        return SpeculationDecision(arm, (arm.shape is not None,) * len(load.contexts), arm, load)


def row_of(target: Target, text: Sequence[int], prompt_length: int) -> Row:
    """A stored example of a text, features by a plain forward."""
    ids_1T = torch.tensor([text])
    with torch.no_grad():
        out = target.forward(ids_1T, torch.arange(len(text))[None], DenseAttention(), want_aux=True)
    assert out.aux_BTL is not None
    mask_T = torch.arange(len(text)) >= prompt_length
    return Row("row", "test", ids_1T[0], mask_T, out.aux_BTL[0], out.hidden_BTD[0, teacher_positions(mask_T)])


def learn(spoken: Spoken, updates: int = 150, steps: int = 4) -> tuple[Head, DraftVocab]:
    """A head trained on the answers themselves with the unrolled steps of training and plain cross-entropy."""
    target = spoken.target
    prompts = [len(request.prompt_ids) for request in spoken.requests]
    rows = [row_of(target, t, n) for t, n in zip(spoken.texts, prompts, strict=True) if len(t) - n > 2 and n < 200]
    counts_W = torch.zeros(target.info.vocab_size)
    for row in rows:
        counts_W += torch.bincount(row.ids_T[row.loss_mask_T], minlength=counts_W.shape[0])
    vocab = DraftVocab.from_counts(counts_W, int((counts_W > 0).sum()))
    config = HeadConfig.for_target(target.info, vocab.size, intermediate_size=96, aux_layer_ids=target.aux_layer_ids)
    head = Head.init(config, 0)
    packed = pack_rows(rows, steps, torch.float32)
    texts_P = packed.ids_P
    goals_KQ = torch.stack([texts_P[(packed.chains_Q + 2 + k).clamp(max=len(texts_P) - 1)] for k in range(steps)])
    goals_KQ = vocab.to_draft(goals_KQ)[0]
    with torch.no_grad():
        embed_rows, embed_chains = target.embed(packed.next_ids_P), target.embed(packed.tokens_KQ)
    optimizer = torch.optim.AdamW(head.parameters(), lr=4e-3)
    for _ in range(updates):
        logits_KQV = head.logits(unroll(head, packed, embed_rows, embed_chains))
        loss = torch.nn.functional.cross_entropy(logits_KQV[packed.supervised_KQ], goals_KQ[packed.supervised_KQ])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.pack_projections(), vocab
