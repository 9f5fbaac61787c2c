"""Requests in the engine: what waits, what runs, what is launched, and what was done so far. Plain data of the host."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from eyas.engine.detokenizer import TextOut
from eyas.engine.device_stream import Event
from eyas.engine.model_runner import Batch, Verified
from eyas.engine.request import MAIN, Answer, DraftTree, TokenLogprob
from eyas.memory.kv_cache_manager import Holding
from eyas.speculation.arms import Choice
from eyas.tree.sampling import Logprobs


@dataclass(eq=False)
class Job:
    """A request on its way, whether it waits or runs. text: prompt and answer."""

    answer: Answer
    limit: int
    added_s: float
    text: list[int]
    out: TextOut | None
    has_run: bool = False

    @property
    def is_new(self) -> bool:
        """Whether its first token is still to come: a preempted answer goes on where it was."""
        return not self.answer.token_ids


@dataclass(eq=False)
class Running:
    """A job in the engine. Columns are positions of its text.

    goal: columns that prefill has to fill; filled: those whose prefill is launched. known: committed columns, as far as
    results are read; growths: what each launched and unread round adds at most. lag: how many committed columns at
    the end the head has not read. left: it runs no longer, what still comes for it means nothing.
    """

    job: Job
    holding: Holding
    goal: int
    filled: int
    begun: bool = False
    known: int = 0
    growths: deque[int] = field(default_factory=deque)
    lag: int = 0
    awaits_first: bool = False
    left: bool = False

    @property
    def is_filled(self) -> bool:
        """Whether its text is in memory, or on its way there."""
        return self.begun and self.filled == self.goal

    @property
    def bound(self) -> int:
        """Committed columns once all that is launched is done, at most."""
        return self.known + sum(self.growths)

    @property
    def may_go_on(self) -> bool:
        """Whether a token can be missing once all that is launched is read: every round gives at least one."""
        return len(self.job.answer.token_ids) + self.awaits_first + len(self.growths) < self.job.limit


@dataclass(frozen=True, order=True)
class Turn:
    """A kind of round: those of one head, as the policy decides or with the largest tree at any price."""

    is_max: bool = False
    head: str = MAIN


@dataclass(frozen=True, eq=False)
class Step:
    """A launched piece of work: a prefill, after which some answers have their first token, or a round.

    batch, choice, contexts: of a round; the committed columns of each member as the host knew them. turn: whose it is.
    """

    members: tuple[Running, ...]
    event: Event
    batch: Batch | None = None
    choice: Choice | None = None
    contexts: tuple[int, ...] = ()
    turn: Turn = Turn()


@dataclass
class Counters:
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


def next_turn(going: Sequence[Running], last: Turn) -> tuple[Turn, list[Running]]:
    """The kind that comes after the last one, of those that somebody waits for, and who they are.

    main | canary, the largest tree | main, the largest tree | canary | main ...
    """
    answers = [one.job.answer for one in going]
    turns = [Turn(answer.request.speculation == "max", answer.head) for answer in answers]
    turn = min([turn for turn in turns if turn > last] or turns)
    return turn, [one for one, own in zip(going, turns, strict=True) if own == turn]


def num_logprobs(members: Sequence[Running]) -> int | None:
    """The most alternatives that anybody here wants to see with each token."""
    return max((n for one in members if (n := one.job.answer.request.logprobs) is not None), default=None)


def wants_trees(members: Sequence[Running]) -> bool:
    """Whether anybody here wants to see its trees."""
    return any(one.job.answer.request.wants_rounds for one in members)


def tell_logprobs(answer: Answer, told: Logprobs, begin: int, count: int) -> None:
    """The newest `count` tokens stand in rows begin.. of what was told."""
    wanted = answer.request.logprobs
    if wanted is None:
        return
    for row, token in enumerate(answer.token_ids[len(answer.token_ids) - count :], begin):
        ids, values = told.top_ids_TN[row, :wanted].tolist(), told.top_TN[row, :wanted].tolist()
        top = tuple(zip(ids, values, strict=True))
        answer.logprobs.append(TokenLogprob(token, float(told.token_logprobs_T[row]), top))


def tell_tree(answer: Answer, trees: Verified | None, row: int, count: int) -> None:
    """The tree of the round that gave the newest `count` tokens, without the nodes that got no row."""
    if not answer.request.wants_rounds:
        return
    answer.tree = None
    nodes = [] if trees is None else trees.valid_BM[row].nonzero()[:, 0].tolist()
    if trees is None or len(nodes) == 1:
        return
    tokens, parents = trees.tokens_BM[row].tolist(), trees.parents_BM[row].tolist()
    place = {node: i for i, node in enumerate(nodes)}
    num_drafted = sum(answer.drafted[-count:])  # an answer that ends inside the path has no more of it
    path = trees.nodes_BS[row, 1 : 1 + num_drafted].tolist()
    answer.tree = DraftTree(
        tuple(tokens[node] for node in nodes),
        tuple(place[parents[node]] for node in nodes),
        tuple(place[node] for node in path),
    )
