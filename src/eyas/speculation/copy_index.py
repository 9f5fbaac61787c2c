"""Finds earlier places of a text that end like the text does now, and proposes the tokens that follow there.

    text     Call ship_parcel for "id": "kakalo-69" ... {"name": "ship_parcel", "arguments": {"id": "kaka
    match    the longest earlier place with the same last tokens                             ^^^^^^^^^^^^
    copy     the tokens that followed that place: lo - 6 9 "

The scheduler searches on the host: before each round while copies are used, otherwise before one in four. A copy is a
draft like any other: the target verifies it. Edits, tool calls and answers that quote their prompt repeat long pieces
of text; there a copy costs no forward of a head.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eyas.speculation.arms import Arm
from eyas.tree.shape import chain_shape

GRAM = 2  # tokens: the shortest match
MAX_PLACES = 4  # earlier places with the same last tokens that are compared, the newest first
MAX_MATCH = 32  # tokens
MAX_COPY = 16  # tokens of one round
MIN_PROBABILITY = 0.2  # of all tokens of a copy together; a copy ends before it falls below
OUTPUT_TOKENS = 16  # the memory of an output beside its tokens, in tokens
SEPARATOR = -1  # no token: between the texts of a pool
MATCH_BOUNDS = (3, 4, 6, 8, 12, 16, 24, 32)  # tokens: the borders of the buckets of match lengths
PRIORS = (0.3, 0.4, 0.55, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95)
MAX_CURVE = 64  # tokens: a longer copy is never proposed
CURVE_ROUNDS = 16
PRIOR_WEIGHT, MAX_WEIGHT = 4.0, 500.0  # trials of one bucket; above MAX_WEIGHT they are halved

COPY = Arm("copy", chain_shape(MAX_COPY))
"""The arm of a round that drafts copies only: no forward of a head. The budget does not choose it by itself."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The proposed continuation of one text.

    Attributes:
        begin: The column of the text at which the first token would stand.
        tokens: The tokens.
        match: The number of tokens before them that are equal in both places.
        is_shared: True if the tokens come from another text of the same tenant.
        probabilities: For each token, the probability that the target accepts it and all before it.
        expected: The expected number of accepted tokens.
    """

    begin: int
    tokens: tuple[int, ...]
    match: int
    is_shared: bool
    probabilities: tuple[float, ...]
    expected: float


class CopyIndex:
    """A text, and the places of all its runs of GRAM tokens. A token takes 100 to 160 bytes."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}  # run -> the column of its last token, at its newest place
        self._before: list[int] = []  # column -> the column of the next older place of the run that ends there

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        text, last, before = self.tokens, self._last, self._before
        for token in tokens:
            text.append(token)
            run = tuple(text[-GRAM:])
            before.append(last.get(run, -1))
            last[run] = len(text) - 1

    def find(self, text: Sequence[int]) -> tuple[int, int]:
        """Returns the longest match of the end of a text, as (column after the match, length); (0, 0) without a match.

        Of equal lengths, the newest place is returned. If `text` is the indexed text, its own end is no match.
        """
        own, best = self.tokens, (0, 0)
        place = self._last.get(tuple(text[-GRAM:]), -1)
        if text is own and place >= 0:
            place = self._before[place]
        for _ in range(MAX_PLACES):
            if place < 0:
                break
            length, most = 0, min(MAX_MATCH, place + 1, len(text))
            while length < most and own[place - length] == text[-1 - length] != SEPARATOR:
                length += 1
            if length > best[1] and length >= GRAM:
                best = place + 1, length
            place = self._before[place]
        return best


class CopyPools:
    """The recent outputs of each tenant, of at most `max_tokens` tokens in all. Texts of other tenants are never read.

    When the limit is reached, the oldest outputs are dropped until half of it is free, and the indexes are built anew.

    Attributes:
        indexes: Tenant -> its outputs.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._outputs: dict[str, tuple[str, list[int]]] = {}  # request id -> tenant, tokens; the oldest is the first
        self.indexes: dict[str, CopyIndex] = {}

    def add(self, tenant: str, request_id: str, tokens: Sequence[int]) -> None:
        """Stores the output of a request."""
        text = [*tokens[-(self.max_tokens // 2 - OUTPUT_TOKENS) :], SEPARATOR]
        self._outputs[request_id] = tenant, text
        self.indexes.setdefault(tenant, CopyIndex()).extend(text)
        self.num_tokens += len(text) + OUTPUT_TOKENS
        if self.num_tokens > self.max_tokens:
            while self.num_tokens > self.max_tokens // 2:
                self.num_tokens -= len(self._outputs.pop(next(iter(self._outputs)))[1]) + OUTPUT_TOKENS
            self.indexes = {tenant: CopyIndex() for tenant, _ in self._outputs.values()}
            for owner, kept in self._outputs.values():
                self.indexes[owner].extend(kept)


class CopyModel:
    """The estimated acceptance of copied tokens, by the length of the match. It learns from all rounds.

    Each accepted token of a copy makes the match longer. So token k of a copy after a match of m tokens is like the
    first token after a match of m + k tokens, and one table has the probabilities of all of them.
    """

    def __init__(self) -> None:
        self._trials = [[PRIOR_WEIGHT] * len(PRIORS) for _ in range(2)]  # own text, pool
        self._hits = [[PRIOR_WEIGHT * share for share in PRIORS] for _ in range(2)]
        self._curves: dict[tuple[bool, int], list[float]] = {}
        self._num_observed = 0

    def curve(self, match: int, is_shared: bool) -> list[float]:
        """Returns, for each token after a match, the probability that the target accepts it and all before it.

        The list ends before it falls below MIN_PROBABILITY. It always has one token, because only a proposed token can
        be graded. It is computed again after CURVE_ROUNDS observations.
        """
        found = self._curves.get((is_shared, match))
        if found is None:
            shares = [hit / trial for hit, trial in zip(self._hits[is_shared], self._trials[is_shared], strict=True)]
            found, probability = [], shares[bisect_right(MATCH_BOUNDS, match)]
            while (probability >= MIN_PROBABILITY or not found) and len(found) < MAX_CURVE:
                found.append(probability)
                probability *= shares[bisect_right(MATCH_BOUNDS, match + len(found))]
            self._curves[is_shared, match] = found
        return found

    def propose(self, index: CopyIndex, text: Sequence[int], is_shared: bool, num_more: int) -> Copy | None:
        """Returns the copy that the index offers after a text; None without a match.

        Args:
            index: The text to copy from.
            text: The text to continue.
            is_shared: True if the index holds other texts of the tenant.
            num_more: The number of tokens beyond MAX_COPY to return at most; launched rounds may already give them.
        """
        place, match = index.find(text)
        if not match:
            return None
        curve = self.curve(match, is_shared)
        tokens = index.tokens[place : place + min(len(curve), MAX_COPY + num_more)]
        if is_shared and SEPARATOR in tokens:
            tokens = tokens[: tokens.index(SEPARATOR)]
        if not tokens:
            return None
        expected = sum(curve[: min(len(tokens), MAX_COPY)])
        return Copy(len(text), tuple(tokens), match, is_shared, tuple(curve[: len(tokens)]), expected)

    def observe(self, copy: Copy, first: int, num_accepted: int, was_refused: bool) -> None:
        """Learns from a round, whether it used the copy or not.

        Args:
            copy: The copy that was proposed before the round.
            first: The number of its tokens that the text had before the round.
            num_accepted: The number of the next tokens that the round added to the text.
            was_refused: True if the text has another token after them; False if the round ended there.
        """
        hits, trials = self._hits[copy.is_shared], self._trials[copy.is_shared]
        self._num_observed += 1
        if self._num_observed % CURVE_ROUNDS == 0:
            self._curves.clear()
        for step in range(num_accepted + was_refused):
            bucket = bisect_right(MATCH_BOUNDS, copy.match + first + step)
            trials[bucket] += 1
            hits[bucket] += step < num_accepted
            if trials[bucket] > MAX_WEIGHT:
                trials[bucket] /= 2
                hits[bucket] /= 2


class CopyFinder:
    """The copies of an engine: one index for each running request, the pools of the tenants, and the acceptance."""

    def __init__(self, pool_tokens: int) -> None:
        """Initializes the finder. pool_tokens: the tokens of all pools; 0 to copy from the request's own text only."""
        self.model = CopyModel()
        self.pools = CopyPools(pool_tokens)

    def propose(self, index: CopyIndex, text: Sequence[int], tenant: str, num_unread: int) -> Copy | None:
        """Returns the copy with the most expected tokens; None without a match.

        Args:
            index: The index of the request. This method appends the new tokens of the text.
            text: The prompt and the output so far.
            tenant: The owner of the request; "" to copy from its own text only.
            num_unread: The number of tokens that launched rounds may have added to the text, at most.
        """
        index.extend(text[len(index.tokens) :])
        found = [self.model.propose(index, index.tokens, False, num_unread)]
        if tenant and (pool := self.pools.indexes.get(tenant)) is not None:
            found.append(self.model.propose(pool, index.tokens, True, num_unread))
        return max((copy for copy in found if copy is not None), key=lambda copy: copy.expected, default=None)

    def grade(self, copy: Copy, text: Sequence[int], run: Sequence[int]) -> int:
        """Learns from a round, and returns the number of its first tokens that the copy has too.

        Args:
            copy: The copy that was proposed before the round.
            text: The prompt and the output before the round.
            run: The tokens that the round accepted.
        """
        known = len(text) - copy.begin  # tokens of rounds that were not read when the copy was proposed
        if tuple(text[copy.begin :]) != copy.tokens[:known]:
            return 0
        rest = copy.tokens[known : known + MAX_COPY]
        most = min(len(rest), len(run))
        hits = next((i for i in range(most) if rest[i] != run[i]), most)
        self.model.observe(copy, known, hits, hits < most)
        return hits

    def store(self, tenant: str, request_id: str, tokens: Sequence[int]) -> None:
        """Stores the output of a request for later requests of its tenant."""
        if tenant and tokens and self.pools.max_tokens:
            self.pools.add(tenant, request_id, tokens)
