"""Requests in the engine: what waits, what runs, what is launched, and what was done so far. Plain data of the host."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from eyas.engine.detokenizer import TextStream
from eyas.engine.device_stream import WorkEvent
from eyas.engine.model_runner import RoundBatch, VerifiedTrees
from eyas.engine.request import MAIN, DraftTree, RequestOutput, TokenLogprob
from eyas.memory.kv_cache_manager import KVAllocation
from eyas.speculation.arms import SpeculationDecision
from eyas.tree.sampling import Logprobs


@dataclass(eq=False)
class RequestState:
    """A request on its way, whether it waits or runs. text: prompt and answer."""

    output: RequestOutput
    max_new_tokens: int
    added_s: float
    token_ids: list[int]
    text_stream: TextStream | None
    has_run: bool = False

    @property
    def is_new(self) -> bool:
        """Whether its first token is still to come: a preempted answer goes on where it was."""
        return not self.output.token_ids


@dataclass(eq=False)
class RunningRequest:
    """A job in the engine. Columns are positions of its text.

    goal: columns that prefill has to fill; filled: those whose prefill is launched. known: committed columns, as far as
    results are read; growths: what each launched and unread round adds at most. lag: how many committed columns at
    the end the head has not read. left: it runs no longer, what still comes for it means nothing.
    """

    state: RequestState
    kv: KVAllocation
    prefill_end: int
    num_prefilled: int
    is_started: bool = False
    num_committed: int = 0
    growth_in_flight: deque[int] = field(default_factory=deque)
    draft_lag_tokens: int = 0
    awaits_first_token: bool = False
    is_removed: bool = False

    @property
    def is_prefilled(self) -> bool:
        """Whether its text is in memory, or on its way there."""
        return self.is_started and self.num_prefilled == self.prefill_end

    @property
    def max_committed(self) -> int:
        """Committed columns once all that is launched is done, at most."""
        return self.num_committed + sum(self.growth_in_flight)

    @property
    def needs_round(self) -> bool:
        """Whether a token can be missing once all that is launched is read: every round gives at least one."""
        return (
            len(self.state.output.token_ids) + self.awaits_first_token + len(self.growth_in_flight)
            < self.state.max_new_tokens
        )


@dataclass(frozen=True, order=True)
class RoundKind:
    """A kind of round: those of one head, as the policy decides or with the largest tree at any price."""

    is_max: bool = False
    drafter: str = MAIN


@dataclass(frozen=True, eq=False)
class Step:
    """A launched piece of work: a prefill, after which some answers have their first token, or a round.

    batch, choice, contexts: of a round; the committed columns of each member as the host knew them. turn: whose it is.
    """

    members: tuple[RunningRequest, ...]
    event: WorkEvent
    batch: RoundBatch | None = None
    decision: SpeculationDecision | None = None
    contexts: tuple[int, ...] = ()
    kind: RoundKind = RoundKind()


@dataclass
class EngineCounters:
    """What the engine has done. Times in seconds: of the device by part, and of the host."""

    rounds: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    extend_s: float = 0.0
    prefill_s: float = 0.0
    device_s: float = 0.0
    host_s: float = 0.0
    arm: str = "off"  # of the last round that is read
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    drafts: int = 0  # trees: one a request and round
    draft_tokens: int = 0  # their nodes, the roots left out
    accepted_per_position: list[int] = field(default_factory=list)  # [i]: trees of which i + 1 nodes were accepted
    finished: dict[str, int] = field(default_factory=dict)


def next_kind(going: Sequence[RunningRequest], last: RoundKind) -> tuple[RoundKind, list[RunningRequest]]:
    """The kind that comes after the last one, of those that somebody waits for, and who they are.

    main | canary, the largest tree | main, the largest tree | canary | main ...
    """
    answers = [one.state.output for one in going]
    turns = [RoundKind(answer.request.speculation == "max", answer.head) for answer in answers]
    turn = min([turn for turn in turns if turn > last] or turns)
    return turn, [one for one, own in zip(going, turns, strict=True) if own == turn]


def max_logprobs(members: Sequence[RunningRequest]) -> int | None:
    """The most alternatives that anybody here wants to see with each token."""
    return max((n for one in members if (n := one.state.output.request.logprobs) is not None), default=None)


def wants_trees(members: Sequence[RunningRequest]) -> bool:
    """Whether anybody here wants to see its trees."""
    return any(one.state.output.request.wants_rounds for one in members)


def add_logprobs(answer: RequestOutput, told: Logprobs, begin: int, count: int) -> None:
    """The newest `count` tokens stand in rows begin.. of what was told."""
    wanted = answer.request.logprobs
    if wanted is None:
        return
    for row, token in enumerate(answer.token_ids[len(answer.token_ids) - count :], begin):
        ids, values = told.top_ids_TN[row, :wanted].tolist(), told.top_TN[row, :wanted].tolist()
        top = tuple(zip(ids, values, strict=True))
        answer.logprobs.append(TokenLogprob(token, float(told.token_logprobs_T[row]), top))


def set_draft_tree(answer: RequestOutput, trees: VerifiedTrees | None, row: int, count: int) -> None:
    """The tree of the round that gave the newest `count` tokens, without the nodes that got no row."""
    if not answer.request.wants_rounds:
        return
    answer.draft_tree = None
    nodes = [] if trees is None else trees.valid_BM[row].nonzero()[:, 0].tolist()
    if trees is None or len(nodes) == 1:
        return
    tokens, parents = trees.tokens_BM[row].tolist(), trees.parents_BM[row].tolist()
    place = {node: i for i, node in enumerate(nodes)}
    num_drafted = sum(answer.is_draft[-count:])  # an answer that ends inside the path has no more of it
    path = trees.nodes_BS[row, 1 : 1 + num_drafted].tolist()
    answer.draft_tree = DraftTree(
        tuple(tokens[node] for node in nodes),
        tuple(place[parents[node]] for node in nodes),
        tuple(place[node] for node in path),
    )
