"""The prefix cache in the engine: what is found again gives the numbers that reading it anew gives.

B requests, D hidden, V draft vocabulary, W target vocabulary.
"""

import dataclasses
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from tests.engine.small import CONTEXT, Spoken, drive, optional, poison, put_drafter, random_draft, replay_engine
from torch import Tensor

from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.request import Request, RequestOutput, Speculation
from eyas.model.target import Target
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad, FixedArm, SpeculationDecision
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Tree

TREE = TreeShape(4, 3, 12)


@dataclass
class Numbers:
    """What was said for one request, in order: logits of the target; logits and hidden state of the head; rows read."""

    target: list[Tensor]
    head: list[Tensor]
    lags: list[int]


class Telling(Eagle3Drafter):
    """Keeps what each tree grows from, and how many rows of text were read before it."""

    told: list[Tensor]
    lags: list[int]

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        self.lags += draft_lags
        super().read(req_slots, draft_lags)

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        self.told += [self.state.logits_RV[req_slots_B].clone(), self.state.hidden_RD[req_slots_B].clone()]
        return super().draft(req_slots_B, lengths_B, roots_B, shape)


@dataclass
class Server:
    """An engine with one line, and what it has answered so far."""

    engine: Engine
    monkeypatch: pytest.MonkeyPatch
    texts: list[list[int]] = field(default_factory=list)

    @staticmethod
    def start(target: Target, draft: Eagle3Spec | None, monkeypatch: pytest.MonkeyPatch) -> "Server":
        engine = poison(Engine(target, optional(draft), 1, 200))
        if draft is not None:
            drafter = put_drafter(engine, draft, Telling)
            assert isinstance(drafter, Telling)
            drafter.told, drafter.lags = [], []
        return Server(engine, monkeypatch)

    def ask(self, prompt: Sequence[int], max_tokens: int = 6, speculation: Speculation = "auto") -> RequestOutput:
        request = Request("x", tuple(prompt), max_tokens, speculation=speculation)
        answer = drive(self.engine, [request])["x"]
        self.texts.append([*prompt, *answer.token_ids])
        return answer

    def hear(self, prompt: Sequence[int]) -> tuple[Numbers, RequestOutput]:
        """Ask, and keep the numbers."""
        numbers, target, drafter = Numbers([], [], []), self.engine.target, self.engine.runner.drafters[0]
        assert isinstance(drafter, Telling)
        drafter.told, drafter.lags = numbers.head, numbers.lags
        logits = target.logits

        def told(hidden: Tensor) -> Tensor:
            numbers.target.append(logits(hidden))
            return numbers.target[-1]

        with self.monkeypatch.context() as patch:
            patch.setattr(target, "logits", told)
            return numbers, self.ask(prompt)

    def expected_hit(self, prompt: Sequence[int]) -> int:
        """Of the text that has most in common with the prompt: all common tokens but the last."""
        common = [
            next((i for i, (a, b) in enumerate(zip(t, prompt, strict=False)) if a != b), None) for t in self.texts
        ]
        lengths = [min(len(t), len(prompt)) if i is None else i for i, t in zip(common, self.texts, strict=True)]
        return max([length - 1 for length in lengths if length] or [0])


BASE = [7, 99, 12, 12, 31, 5, 240, 18, 77, 3, 64, 12, 12, 31, 9]
PROMPT = [*BASE, 50, 51, 52, 53, 54]
WARM = {
    "the same prompt": [PROMPT],
    "the same prompt twice": [PROMPT, PROMPT],
    "a shorter prompt": [PROMPT[:9]],
    "a longer prompt": [[*PROMPT, 1, 2, 3]],
    "another token right after the base": [[*BASE, 60, 51, 52]],
    "three branches": [[*BASE, 60, 51], [*BASE, 50, 61], [*BASE[:6], 1, 2], [*BASE, 50, 51, 62]],
    "nothing in common": [[8, 99, 12]],
    "the turn before": [BASE],
}
# How many tokens were asked for before, whether with drafts, and in how many rounds there were some.
BEFORE: dict[str, tuple[int, Speculation, int]] = {
    "read": (6, "auto", 99),
    "prefill alone": (1, "auto", 0),
    "speculation off": (6, "off", 99),
    "rounds without drafting": (6, "auto", 0),
    "one round with drafts": (6, "auto", 1),
}
NOT_READ = [before for before in BEFORE if before != "read"]


class Ending(FixedArm):
    """An arm for the first rounds, then none."""

    def __init__(self, arm: Arm, num_rounds: int) -> None:
        self.arms, self._left = (arm,), num_rounds

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        self._left -= 1
        return super().decide(load) if self._left >= 0 else FixedArm(Arm("off", None)).decide(load)


@pytest.mark.parametrize(
    ("shape", "before"),
    [
        *(pytest.param(TREE, before, id=f"tree-{before}") for before in BEFORE),
        pytest.param(chain_shape(3), "read", id="chain-read"),
        *(pytest.param(chain_shape(3), before, id=f"chain-{before}", marks=pytest.mark.full) for before in NOT_READ),
    ],
)
@pytest.mark.parametrize("warm", WARM)
def test_a_hit_gives_the_numbers_of_a_miss(
    shallow_target: Target, shape: TreeShape, warm: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Target and head, from the first row behind the hit on; whether or not the head had read what was cached."""
    draft = random_draft(shallow_target, shape)
    max_tokens, speculation, num_rounds = BEFORE[before]
    server = Server.start(shallow_target, draft, monkeypatch)
    policy = server.engine.policies[0]
    for prompt in WARM[warm]:
        server.engine.policies[0] = Ending(Arm("on", shape), num_rounds)
        server.ask(prompt, max_tokens, speculation)
    server.engine.policies[0] = policy
    prompt = [*server.texts[0], 50, 51] if warm == "the turn before" else PROMPT
    expected = server.expected_hit(prompt)
    assert (expected == 0) == (warm == "nothing in common")
    found, answer = server.hear(prompt)
    wanted, cold = Server.start(shallow_target, draft, monkeypatch).hear(prompt)
    assert (answer.num_cached_tokens, cold.num_cached_tokens) == (expected, 0)
    # One round reads the prompt; the answer that follows it without drafts is only hit by the turn after it.
    has_read = before == "read" or (before == "one round with drafts" and warm != "the turn before")
    has_read |= warm == "nothing in common"
    num_read = found.lags[0] - (len(prompt) - expected)
    assert (num_read == 0) == has_read, "what the head has read it does not read again"
    assert set(found.lags[1:]) == {0}
    assert answer.token_ids == cold.token_ids
    assert len(found.head) == len(wanted.head) > 2
    for one, other in ((found.target, wanted.target), (found.head, wanted.head)):
        for mine, cold_one in zip(one, other, strict=True):
            torch.testing.assert_close(mine, cold_one, rtol=0, atol=1e-5 * float(cold_one.abs().max()))


def conversations(seed: int) -> Generator[list[int], list[int], None]:
    """Prompts of a few conversations in turn; what was answered is sent back: the next prompt begins with it."""
    pick = random.Random(seed)
    system = [pick.randrange(256) for _ in range(9)]
    histories = [[*system, 10 + n] for n in range(3)]
    for _ in range(12):
        history = pick.choice(histories)
        history += [pick.randrange(256) for _ in range(pick.randint(1, 8))]
        answer = yield list(history)
        history += answer


@pytest.mark.parametrize("shape", [None, TREE], ids=["baseline", "tree"])
def test_what_was_said_before_is_not_computed_again(
    shallow_target: Target, shape: TreeShape | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every turn finds all turns before it; and a head costs no hit: both engines find the same."""
    draft = None if shape is None else random_draft(shallow_target, shape)
    server = Server.start(shallow_target, draft, monkeypatch)
    talk = conversations(3)
    prompt, hits = next(talk), []
    try:
        while True:
            expected = server.expected_hit(prompt)
            answer = server.ask(prompt)
            assert answer.num_cached_tokens == expected
            hits.append(answer.num_cached_tokens)
            prompt = talk.send(answer.token_ids)
    except StopIteration:
        pass
    assert sum(hit > 8 for hit in hits) >= 9, "but for the first of each conversation"
    counters = server.engine.counters
    assert counters.cached_tokens == sum(hits)
    assert counters.prompt_tokens == sum(len(text) for text in server.texts) - counters.output_tokens


def test_requests_alike_at_the_same_time(llama: Spoken) -> None:
    """Six copies of a prompt over three lines: those that come later find what the first ones brought."""
    request = llama.requests[6]
    copies = [dataclasses.replace(request, id=f"copy{n}") for n in range(6)]
    for engine in (Engine(llama.target, (), 3, CONTEXT), replay_engine(llama, TREE, 3)):
        answers = drive(engine, copies)
        assert all(answer.token_ids == llama.answers[request.id] for answer in answers.values())
        assert [answers[f"copy{n}"].num_cached_tokens for n in range(6)] == [0] * 3 + [len(request.prompt_ids) - 1] * 3
        text = len(request.prompt_ids) + len(llama.answers[request.id])
        assert engine.kv_cache.prefix_cache.num_slots == text - 1, "the text is kept once"
