"""Measures the distance of prompts from production traffic, and selects prompts that resemble it.

    texts --hash--> word 1- and 2-grams, 2**14 features --TF-IDF, SVD 64, k-means 24--> topic  }
    length in characters --quantiles of production--> bin                                      }  cell = (topic, bin)

The production prompts and the pool (the candidates) are counted by cell. `TrafficModel.select` takes prompts from the
pool so that each cell has the same share as in production.

The fitted model stores three things from the production log: a weight for each hashed feature and topic, the number of
prompts in each cell, and a histogram of lengths. It stores no text and no word. All numbers are one feature. A feature
that fewer than MIN_PROMPTS prompts have gets weight 0, so the model does not reveal the words of a single prompt.

Selection by importance weights of tokens (DSIR) was measured, too. On samples of this size it was worse than random
selection, because it prefers short prompts.
"""

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, cast

import numpy as np

from eyas.base.environment import import_extra

NUM_FEATURES = 2**14
NUM_COMPONENTS = 64
NUM_TOPICS = 24
NUM_BINS = 8  # of length
MIN_PROMPTS = 3
MAX_FITTED = 5000  # prompts of production, and of the pool, that the topics are computed from
HEAD_CHARS, TAIL_CHARS = 300, 200  # of a text that are read: a prompt states its task at its beginning or its end
TOLERANCE = 0.05  # share of the prompts that may have another topic or length if no limit is set

_TOKEN = re.compile(r"\w+|[^\w\s]|\n+")
_NUMBER = re.compile(r"\d+")
# Lengths are counted in steps of 2%: the KS distance of two histograms is that of the lengths but for one step.
_LENGTH_STEPS = np.unique(np.round(1.02 ** np.arange(0, 900)).astype(np.int64))


@dataclass(frozen=True)
class TrafficDistance:
    """The distance of a set of prompts from production traffic. 0: equal; 1: nothing in common."""

    tv: float  # total variation distance of the topics: the share of prompts with a wrong topic
    ks: float  # Kolmogorov-Smirnov distance of the lengths in characters

    def to_json(self) -> dict[str, float]:
        """Returns both distances with four digits, for the ledger."""
        return {"tv": round(self.tv, 4), "ks": round(self.ks, 4)}


@dataclass(frozen=True)
class TrafficSelection:
    """The result of `TrafficModel.select`."""

    indices: np.ndarray  # int64, sorted, into the pool
    before: TrafficDistance  # of the whole pool
    after: TrafficDistance  # of the selected prompts
    shortfalls: list[dict[str, Any]]  # cells with too few prompts in the pool; nearest cells fill the gap


def sample_texts(texts: Iterable[tuple[str, str]], size: int, seed: int) -> list[str]:
    """Returns a sample of at most `size` texts of the pool. The sample does not depend on the order of the texts.

    Only the start and the end of each text are returned, which `TrafficModel` reads.

    Args:
        texts: Pairs of an id and a text. The texts whose ids have the smallest hashes are returned.
        size: The maximum number of texts.
        seed: The seed of the hashes.
    """

    def hash_id(pair: tuple[str, str]) -> bytes:
        return blake2b(pair[0].encode(), digest_size=8, key=str(seed).encode()).digest()

    truncated = ((record_id, _truncate(text)) for record_id, text in texts)
    return [text for _, text in heapq.nsmallest(size, truncated, key=hash_id)]


@dataclass(frozen=True)
class TrafficModel:
    """Topics, length bins, and the number of production prompts in each cell. Immutable; it needs about 1 MB."""

    weights: np.ndarray  # float32 [features, topics]: the topic of a text is the largest of log(1 + counts) @ weights
    nearness: np.ndarray  # float32 [topics, topics]: the cosine between topics
    edges: np.ndarray  # int64 [bins - 1], characters: a length is in bin i if i edges are not above it
    production: np.ndarray  # int64 [topics * bins]: prompts of production by cell
    lengths: np.ndarray  # int64 [length steps]: prompts of production by length

    @classmethod
    def fit(cls, production: Sequence[str], pool_sample: Sequence[str], seed: int) -> "TrafficModel":
        """Fits the topics to production and pool together. Both have the same total weight. Deterministic.

        Args:
            production: The prompts of the production log, at least one.
            pool_sample: A sample of the pool, from `sample_texts`.
            seed: The seed of the random choices.

        Raises:
            InputError: The extra `data` is not installed.
        """
        weights, nearness = _fit_topics(_subsample(production), _subsample(pool_sample), seed)
        sizes = np.array([len(text) for text in production])
        # Inner quantiles; equal ones become one where many prompts have the same length.
        edges = np.unique(np.quantile(sizes, np.arange(1, NUM_BINS) / NUM_BINS, method="lower").astype(np.int64)) + 1
        num_cells = weights.shape[1] * (len(edges) + 1)
        empty = cls(weights, nearness, edges, np.zeros(num_cells, np.int64), np.zeros(len(_LENGTH_STEPS) + 1, np.int64))
        counts = np.bincount(empty.assign_cells(production), minlength=num_cells)
        return cls(weights, nearness, edges, counts, _length_histogram(sizes))

    def assign_cells(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the cell of each text, uint16 [n]: topic * number of bins + bin. Requirement: n is not 0."""
        topics = (_features(texts) @ self.weights).argmax(axis=1)
        bins = np.searchsorted(self.edges, [len(text) for text in texts], side="right")
        return (topics * self._num_bins + bins).astype(np.uint16)

    def measure_distance(self, cells: np.ndarray, lengths: np.ndarray) -> TrafficDistance:
        """Returns the distance of n prompts from production; 1 if n is 0.

        Args:
            cells: The cell of each prompt, [n].
            lengths: The number of characters of each prompt, [n].
        """
        if len(cells) == 0:
            return TrafficDistance(1.0, 1.0)
        pool = self._topic_shares(np.bincount(cells, minlength=len(self.production)))
        production = self._topic_shares(self.production)
        histogram = _length_histogram(lengths)
        gap = histogram.cumsum() / histogram.sum() - self.lengths.cumsum() / self.lengths.sum()
        return TrafficDistance(float(np.abs(pool - production).sum() / 2), float(np.abs(gap).max()))

    def select(self, cells: np.ndarray, lengths: np.ndarray, limit: int | None, seed: int) -> TrafficSelection:
        """Selects prompts from the pool so that each cell has the same share as in production.

        The quota of a cell is a whole number, by the largest remainder method: first for topics, then for the bins of
        each topic. Inside a cell, prompts are sampled at random. If a cell has too few prompts, it is reported, and
        prompts of the nearest cells are taken instead: the same topic with the next length, then the next topic.

        Args:
            cells: The cell of each prompt of the pool, [n].
            lengths: The number of characters of each prompt, [n].
            limit: The number of prompts. None selects the largest number for which at most the share TOLERANCE of the
                prompts has another topic or length than in production. Topics and bins that the pool lacks are ignored
                for this, but reported.
            seed: The seed of the random choice.
        """
        available = np.bincount(cells, minlength=len(self.production))
        wanted = self._quotas(min(len(cells), self._largest_number(available) if limit is None else limit))
        taken = np.minimum(wanted, available)
        short = np.flatnonzero(wanted > available)
        for cell in short:
            self._fill_from_nearest(int(cell), int(wanted[cell] - available[cell]), taken, available)
        order = np.random.default_rng(seed).permutation(len(cells))
        order = order[np.argsort(cells[order], kind="stable")]  # cell by cell, shuffled inside
        rank = np.arange(len(cells)) - np.repeat(np.cumsum(available) - available, available)
        indices = np.sort(order[rank < np.repeat(taken, available)])
        before = self.measure_distance(cells, lengths)
        after = self.measure_distance(cells[indices], lengths[indices])
        shortfalls = [self._shortfall(int(cell), wanted, available) for cell in short]
        return TrafficSelection(indices, before, after, shortfalls)

    @property
    def _num_bins(self) -> int:
        return len(self.edges) + 1

    def _topic_shares(self, counts: np.ndarray) -> np.ndarray:
        return counts.reshape(-1, self._num_bins).sum(axis=1) / counts.sum()

    def _quotas(self, number: int) -> np.ndarray:
        """Returns the quota of each cell if `number` prompts are selected, int64 [cells]."""
        exact = (self.production * (number / self.production.sum())).reshape(-1, self._num_bins)
        topics = _apportion(exact.sum(axis=1), number)
        quotas = np.zeros(exact.shape, dtype=np.int64)
        owed = np.zeros(self._num_bins)  # share of the bins that earlier topics left open
        for topic, row in enumerate(exact):
            owed += row
            quotas[topic] = _apportion(row, int(topics[topic]), owed)
            owed -= quotas[topic]
        return quotas.ravel()

    def _largest_number(self, available: np.ndarray) -> int:
        """Returns the largest number of prompts that the pool can supply with the shares of production.

        At most the share TOLERANCE may be missing. Topics and length bins without any prompt are ignored.

        available: The number of prompts of the pool in each cell.
        """
        shares = (self.production / self.production.sum()).reshape(-1, self._num_bins)
        there = available.reshape(shares.shape)
        low, high = 0, int(available.sum())
        while low < high:
            number = (low + high + 1) // 2
            missing = max(
                np.maximum(number * shares.sum(axis=axis) - there.sum(axis=axis), 0)[there.sum(axis=axis) > 0].sum()
                for axis in (0, 1)
            )
            low, high = (number, high) if missing <= TOLERANCE * number else (low, number - 1)
        return max(low, min(1, int(available.sum())))

    def _fill_from_nearest(self, cell: int, number: int, taken: np.ndarray, available: np.ndarray) -> None:
        """Takes `number` prompts from the cells nearest to `cell`: increases their counts in `taken`.

        Args:
            cell: The cell with too few prompts.
            number: The number of missing prompts.
            taken: The number of prompts taken from each cell; changed in place.
            available: The number of prompts of the pool in each cell.
        """
        topic, own_bin = divmod(cell, self._num_bins)
        distance = np.abs(np.arange(self._num_bins) - own_bin)
        others, bins = np.divmod(np.arange(len(taken)), self._num_bins)
        nearness = np.where(np.arange(len(self.nearness)) == topic, 2.0, self.nearness[topic])
        for other in np.lexsort((distance[bins], -nearness[others])):
            more = min(number, int(available[other] - taken[other]))
            taken[other] += more
            number -= more
            if number == 0:
                return

    def _shortfall(self, cell: int, wanted: np.ndarray, available: np.ndarray) -> dict[str, Any]:
        """Returns the name of a cell, its quota (`wanted`), and the number of its prompts in the pool (`got`)."""
        topic, own_bin = divmod(cell, self._num_bins)
        low = int(self.edges[own_bin - 1]) if own_bin else 0
        high = int(self.edges[own_bin]) - 1 if own_bin < len(self.edges) else "any number of"
        name = f"topic {topic + 1}, {low} to {high} characters"
        return {"cell": name, "wanted": int(wanted[cell]), "got": int(available[cell])}


def _apportion(exact: np.ndarray, total: int, first: np.ndarray | None = None) -> np.ndarray:
    """Rounds numbers to whole numbers that sum to `total`: rounds all down, then the largest remainders up.

    Of equal remainders, the earlier one is rounded up.

    Args:
        exact: The numbers.
        total: The sum of the result.
        first: Ranks instead of remainders: entries with the largest rank are rounded up first. None: remainders.
    """
    whole = np.floor(exact + 1e-9).astype(np.int64)
    while whole.sum() > total:
        whole[np.argmax(np.where(whole > 0, whole - exact, -np.inf))] -= 1
    rank = exact - whole if first is None else first - whole
    while whole.sum() < total:
        best = int(np.argmax(np.where(exact > 0, rank, -np.inf)))
        whole[best] += 1
        rank[best] -= 1
    return whole


def _length_histogram(lengths: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(_LENGTH_STEPS, lengths, side="right"), minlength=len(_LENGTH_STEPS) + 1)


def _truncate(text: str) -> str:
    return text if len(text) <= HEAD_CHARS + TAIL_CHARS else text[:HEAD_CHARS] + "\n" + text[-TAIL_CHARS:]


def _tokens(text: str) -> list[str]:
    words = _TOKEN.findall(_NUMBER.sub("0", _truncate(text).lower()))
    return words + [f"{one} {two}" for one, two in pairwise(words)]


def _features(texts: Sequence[str]) -> Any:
    """Returns log(1 + counts) of the hashed 1- and 2-grams, with punctuation: scipy CSR, float32 [n, features]."""
    hashing = import_extra("sklearn.feature_extraction.text", "data").HashingVectorizer(
        analyzer=_tokens, n_features=NUM_FEATURES, alternate_sign=False, norm=None, dtype=np.float32
    )
    return hashing.transform(texts).log1p()


def _subsample(texts: Sequence[str]) -> list[str]:
    """Returns at most MAX_FITTED of the texts, evenly spaced."""
    count = min(len(texts), MAX_FITTED)
    return [texts[index * len(texts) // count] for index in range(count)]


def _fit_topics(production: list[str], pool: list[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns `TrafficModel.weights` and `TrafficModel.nearness`.

    The topic of a text is the center with the largest cosine. Reducing the features to components is linear, and the
    length of the text's vector is the same for all centers. Therefore one matrix from features to topics is enough.
    """
    features = _features([*production, *pool])
    from sklearn.cluster import KMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import normalize
    from threadpoolctl import threadpool_limits

    unit, cluster, reduce = (cast(Any, tool) for tool in (normalize, KMeans, TruncatedSVD))
    num_texts = features.shape[0]
    num_with = np.bincount(features.indices, minlength=NUM_FEATURES)
    idf = np.where(num_with >= min(MIN_PROMPTS, num_texts), np.log((1 + num_texts) / (1 + num_with)) + 1, 0.0)
    vectors = unit(features.multiply(idf).tocsr())
    share = np.r_[np.full(len(production), 0.5 / len(production)), np.full(len(pool), 0.5 / max(len(pool), 1))]
    with threadpool_limits(limits=1):
        if num_texts > 2:
            # If all texts are equal, it divides by their variance for a figure that is not used.
            with np.errstate(invalid="ignore", divide="ignore"):
                reduced = reduce(min(NUM_COMPONENTS, num_texts - 1), random_state=seed).fit(vectors)
            components = reduced.components_
        else:
            components = vectors.toarray()
        points = unit(vectors @ components.T)
        num_topics = min(NUM_TOPICS, len(np.unique(points.round(6), axis=0)))
        means = cluster(num_topics, n_init=4, random_state=seed).fit(points, sample_weight=share * num_texts)
        centers = unit(means.cluster_centers_)
        weights = idf[:, None] * (components.T @ centers.T)
    return weights.astype(np.float32), (centers @ centers.T).astype(np.float32)
