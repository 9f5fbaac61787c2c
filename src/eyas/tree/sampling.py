"""From logits to a token: one definition for plain and speculative generation.

Legend: R requests, T rows of logits (of any requests), W target vocabulary, C settings, N alternatives, K blocks of X
words, Y = K + X.

    raw logits -> grammar mask -> logit_bias -> penalties -> temperature -> min_p -> top_k -> top_p -> draw with a coin
                  engine/grammar  tree/penalties              `distribution` here

The order is vLLM's (v1/sample/sampler.py and v1/worker/gpu/sample/sampler.py agree). Transformers, SGLang and llama.cpp
put min_p last. That differs only where min_p and top_p are both set: top_p then cuts a share of what min_p has left.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from eyas.base.errors import InputError, UsageError

# SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of Java 8).
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def position_uniforms(seeds_R: Tensor, positions_R: Tensor) -> Tensor:
    """float64, uniform in (0, 1), never 0 or 1. Shapes broadcast; any integer dtype.

    The stream of a seed is SplitMix64, started at the finaliser of the seed so that neighbouring seeds are strangers,
    and jumped to the position. All arithmetic is modulo 2**64, in int64.
    """
    states_R = _mix(seeds_R.long() + _to_int64(_GOLDEN)) + (positions_R.long() + 1) * _to_int64(_GOLDEN)
    # 52 bits and a half: with 53 the largest sum would round up to 1.
    return (_shift_right(_mix(states_R), 12).double() + 0.5) * 2.0**-52


def _mix(z_R: Tensor) -> Tensor:
    z_R = (z_R ^ _shift_right(z_R, 30)) * _to_int64(_FIRST)
    z_R = (z_R ^ _shift_right(z_R, 27)) * _to_int64(_SECOND)
    return z_R ^ _shift_right(z_R, 31)


def _shift_right(z_R: Tensor, num_bits: int) -> Tensor:
    """Logical shift to the right; >> of a signed number fills with its sign."""
    return torch.bitwise_and(z_R >> num_bits, (1 << (64 - num_bits)) - 1)


def _to_int64(constant: int) -> int:
    """The int64 with these 64 bits."""
    return constant - (constant >> 63 << 64)


_LEAST_TEMPERATURE = 1e-5  # vLLM's; a division by less may overflow fp32
_MAX_BIAS = 100.0  # OpenAI's bounds
_MAX_PENALTY = 2.0
_BLOCK_TOKENS = 64


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a request are chosen.

    temperature         >= 0; below 1e-5 the answer is greedy: the likeliest token, and the filters change nothing
    top_k               >= 1: the k likeliest stay
    top_p               0 < top_p <= 1: the likeliest that hold this share stay
    min_p               0..1: what is at least this share of the likeliest stays
    repetition_penalty  > 0: logits of tokens that the prompt or the answer holds, divided if positive, else multiplied
    presence_penalty    -2..2: subtracted from the logits of tokens that the answer holds
    frequency_penalty   -2..2: the same, as often as the answer holds the token
    logit_bias          token id -> -100..100, added to its logit; kept as sorted pairs
    None leaves a filter out. Raises UsageError.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise _invalid("temperature", self.temperature, "a number of at least 0", "use 0 for greedy decoding")
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise _invalid("top_k", self.top_k, "an integer of at least 1", "leave top_k out to keep all tokens")
        if self.top_p is not None and (not _is_number(self.top_p) or not 0 < self.top_p <= 1):
            raise _invalid("top_p", self.top_p, "a number above 0 and up to 1", "leave top_p out to keep all tokens")
        if self.min_p is not None and (not _is_number(self.min_p) or not 0 <= self.min_p <= 1):
            raise _invalid("min_p", self.min_p, "a number from 0 to 1", "leave min_p out to keep all tokens")
        if not _is_number(self.repetition_penalty) or not 0 < self.repetition_penalty < math.inf:
            found = self.repetition_penalty
            raise _invalid("repetition_penalty", found, "a number above 0", "use 1 for no penalty")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not _is_number(value) or not -_MAX_PENALTY <= value <= _MAX_PENALTY:
                raise _invalid(name, value, "a number from -2 to 2", "use 0 for no penalty")
        if not isinstance(self.logit_bias, Mapping | tuple):
            raise _invalid("logit_bias", self.logit_bias, "a mapping of token ids to numbers", "leave logit_bias out")
        pairs = dict(self.logit_bias)
        for token, bias in pairs.items():
            if type(token) is not int or token < 0:
                raise _invalid("logit_bias", {token: bias}, "token ids as integers of at least 0", "use the token's id")
            if not _is_number(bias) or not -_MAX_BIAS <= bias <= _MAX_BIAS:
                raise _invalid("logit_bias", {token: bias}, "a number from -100 to 100", "use -100 to ban a token")
        object.__setattr__(self, "logit_bias", tuple(sorted(pairs.items())))

    @property
    def is_greedy(self) -> bool:
        return self.temperature < _LEAST_TEMPERATURE

    @property
    def adjusts_logits(self) -> bool:
        """Whether `tree.penalties` has something to do."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1, 0, 0) or bool(self.logit_bias)

    def check_vocab(self, vocab_size: int) -> None:
        """Raise InputError for a bias of a token that the target does not have."""
        for token in dict(self.logit_bias):
            if token >= vocab_size:
                raise InputError(
                    f"logit_bias for token {token}",
                    f"token ids below {vocab_size}, the size of the target's vocabulary",
                    "take the ids from this target's tokenizer",
                )


def sampling_probs(logits_RW: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities of one request's rows, fp32, same shape as the logits (any leading dimensions).

    The logits have passed mask, bias and penalties. Each filter works on what the one before has left, renormalised:
    min_p drops what is below min_p times the likeliest; top_k what is below the k-th; top_p the longest unlikely tail
    that holds at most 1 - top_p. Equals share their fate, whatever order a sort gives them: all that tie with the last
    token kept stay. The likeliest token always stays. These are transformers' filters (its top_p splits ties).
    Greedy: all on the argmax, the first one on ties. `SamplingBatch.weights` is the same for many requests.
    """
    logits_RW = logits_RW.float()
    if params.is_greedy:
        return torch.zeros_like(logits_RW).scatter_(-1, logits_RW.argmax(dim=-1, keepdim=True), 1.0)
    logits_RW = logits_RW / params.temperature
    if params.min_p:
        floor_R1 = logits_RW.amax(dim=-1, keepdim=True) + math.log(params.min_p)
        logits_RW = logits_RW.masked_fill(logits_RW < floor_R1, -torch.inf)
    if params.top_k is not None:
        kth_R1 = logits_RW.topk(min(params.top_k, logits_RW.shape[-1]), dim=-1).values[..., -1:]
        logits_RW = logits_RW.masked_fill(logits_RW < kth_R1, -torch.inf)
    if params.top_p is not None and params.top_p < 1:
        ascending_RW = logits_RW.sort(dim=-1).values
        sums_RW = ascending_RW.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
        num_dropped_R1 = (sums_RW[..., :-1] <= 1 - params.top_p).sum(dim=-1, keepdim=True)
        logits_RW = logits_RW.masked_fill(logits_RW < ascending_RW.gather(-1, num_dropped_R1), -torch.inf)
    return logits_RW.softmax(dim=-1)


def sample_tokens(weights_RW: Tensor, uniforms_R: Tensor) -> Tensor:
    """int64 [R]: one token a row, in proportion to non-negative weights that need not sum to 1. One coin a row.

    A race, as in vLLM: each runner takes an exponential time over its weight, from a hash of the coin and its number;
    the first one wins. Blocks of 64 words race by their sums, then the words of the block, so that hashes are few:

        blocks            |  .31  |  .52  |  .17  |       words of the block   | .02  .40  .07  .03 |
        time / weight        2.1     0.4     5.0                                 3.3  0.9  7.1  1.2
                                     ^ first                                          ^ first

    The law is that of a cumulative sum cut where the coin falls. But there all borders behind a changed weight move:
    with the embedded target in float32, one token in 2,000 differed between a forward of one row and one of many. In a
    race only the two best can change places: none of 76,800 differed. Words of weight 0, and padding, never win.
    """
    num_rows, num_words = weights_RW.shape
    size = min(_BLOCK_TOKENS, num_words)
    num_blocks = -(-num_words // size)
    weights_RKX = pad(weights_RW, (0, num_blocks * size - num_words)).view(num_rows, num_blocks, size)
    keys_R1 = uniforms_R.double().view(torch.int64)[:, None]
    times_RY = -position_uniforms(keys_R1, torch.arange(num_blocks + size, device=weights_RW.device)).log()
    block_R1 = (weights_RKX.sum(dim=-1, dtype=torch.float64) / times_RY[:, :num_blocks]).argmax(dim=-1, keepdim=True)
    weights_RX = weights_RKX.gather(1, block_R1[:, :, None].expand(-1, -1, size))[:, 0]
    word_R1 = (weights_RX / times_RY[:, num_blocks:]).argmax(dim=-1, keepdim=True)
    return (block_R1 * size + word_R1)[:, 0]


@dataclass(frozen=True, eq=False)
class SamplingBatch:
    """The settings of R requests as one tensor, and what the host knows of them all.

    settings_RC   f64, columns: temperature (0 = greedy), log min_p (-inf = off), top_k (inf = off), 1 - top_p (0 = off)
    all_greedy    one argmax serves every row, and no coin is read
    adjusts       some request wants penalties or a bias
    any_min_p, any_top_k, any_top_p: False leaves the filter out of the work. A request that wants one costs all rows
    its time; it changes no other request's probabilities.
    """

    settings_RC: Tensor
    all_greedy: bool
    any_greedy: bool
    any_min_p: bool
    any_top_k: bool
    any_top_p: bool
    adjusts: bool

    @classmethod
    def from_params(cls, samplings: Sequence[SamplingParams], device: torch.device) -> Self:
        """Line r is samplings[r]. One copy to the device; made when the set of running requests changes."""
        drawn = [sampling for sampling in samplings if not sampling.is_greedy]
        settings = [
            (
                s.temperature,
                math.log(s.min_p) if s.min_p else -math.inf,
                math.inf if s.top_k is None else s.top_k,
                0.0 if s.top_p is None else 1 - s.top_p,
            )
            for s in (SamplingParams() if sampling.is_greedy else sampling for sampling in samplings)
        ]
        return cls(
            settings_RC=torch.tensor(settings, dtype=torch.float64, device=device).reshape(-1, 4),
            all_greedy=not drawn,
            any_greedy=len(drawn) < len(samplings),
            any_min_p=any(sampling.min_p for sampling in drawn),
            any_top_k=any(sampling.top_k is not None for sampling in drawn),
            any_top_p=any(sampling.top_p is not None and sampling.top_p < 1 for sampling in drawn),
            adjusts=any(sampling.adjusts_logits for sampling in samplings),
        )

    @property
    def ops_key(self) -> tuple[bool, ...]:
        """What decides which operations a choice takes: batches of one kind differ in numbers alone."""
        return self.all_greedy, self.any_greedy, self.any_min_p, self.any_top_k, self.any_top_p, self.adjusts

    def filtered_weights(self, logits_TW: Tensor, rows_T: Tensor) -> Tensor:
        """`distribution` for the rows of many requests, fp32, not renormalised; greedy rows are as at temperature 1.

        lines_T: the line of the settings that each row belongs to. Every filter is a floor under the logits of its row:

            logits of a row, ascending     -4  -3  -1   0   1   3
            min_p, top_k, top_p                 ^       ^   ^        the highest floor decides
            kept                                            x   x
        """
        temperature_T1, log_min_p_T1, top_k_T1, tail_T1 = self.settings_RC[rows_T][:, :, None].unbind(dim=1)
        if self.any_greedy:
            temperature_T1 = temperature_T1.masked_fill(temperature_T1 == 0, 1.0)
        logits_TW = logits_TW.float() / temperature_T1.float()
        floors = []
        if self.any_min_p:
            floors.append(logits_TW.amax(dim=-1, keepdim=True) + log_min_p_T1.float())
        if self.any_top_k or self.any_top_p:
            ascending_TW = _sort_ascending(logits_TW)
            num_words = logits_TW.shape[-1]
            floors.append(ascending_TW.gather(-1, num_words - top_k_T1.clamp(max=num_words).long()))
            if self.any_top_p:
                weights_TW = ascending_TW.softmax(dim=-1) * (ascending_TW >= _highest_floor(floors))
                sums_TW = weights_TW.cumsum(dim=-1, dtype=torch.float64)
                num_dropped_T1 = (sums_TW[:, :-1] <= tail_T1 * sums_TW[:, -1:]).sum(dim=-1, keepdim=True)
                floors.append(ascending_TW.gather(-1, num_dropped_T1))
        weights_TW = logits_TW.softmax(dim=-1)
        if not floors:
            return weights_TW
        return weights_TW * (logits_TW >= _highest_floor(floors))


def choose_tokens(logits_TW: Tensor, batch: SamplingBatch, rows_T: Tensor, uniforms_T: Tensor | None) -> Tensor:
    """int64 [T]: the next token after each row, from logits that have passed mask, bias and penalties.

    lines_T: the line of the batch that each row belongs to. coins_T: `coins` of the request's seed and the position
    that the token will take in the text; None only for an all-greedy batch. A token depends on the logits, settings and
    coin of its own row. No loop over requests and no host synchronisation.
    """
    logits_TW = logits_TW.float()  # that changes no order, and CPUs reduce bfloat16 several times slower
    if batch.all_greedy:
        return logits_TW.argmax(dim=-1)
    assert uniforms_T is not None, "tokens that are drawn need coins"
    drawn_T = sample_tokens(batch.filtered_weights(logits_TW, rows_T), uniforms_T)
    if not batch.any_greedy:
        return drawn_T
    return torch.where(batch.settings_RC[rows_T, 0] == 0, logits_TW.argmax(dim=-1), drawn_T)


@dataclass(frozen=True, eq=False)
class Logprobs:
    """chosen_T f32 of the tokens asked for; top_TN f32 and top_ids_TN int64 of the likeliest, best first."""

    token_logprobs_T: Tensor
    top_TN: Tensor
    top_ids_TN: Tensor


def compute_logprobs(logits_TW: Tensor, ids_T: Tensor, num_top: int) -> Logprobs:
    """Log-probabilities of the raw logits, before penalties, temperature and filters: vLLM's default."""
    all_TW = logits_TW.log_softmax(dim=-1, dtype=torch.float32)
    top = all_TW.topk(num_top, dim=-1)
    return Logprobs(all_TW.gather(-1, ids_T[:, None])[:, 0], top.values, top.indices)


def _highest_floor(floors_T1: list[Tensor]) -> Tensor:
    return torch.cat(floors_T1, dim=-1).amax(dim=-1, keepdim=True)


def _sort_ascending(values_TW: Tensor) -> Tensor:
    """Each row sorted. torch moves indices along, which on a CPU takes 35 times as long as NumPy's sort of values."""
    if values_TW.device.type == "cpu":
        return torch.from_numpy(np.sort(values_TW.numpy(), axis=-1))
    return values_TW.sort(dim=-1).values


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _invalid(name: str, value: object, expected: str, do: str) -> UsageError:
    return UsageError(f"{name} = {value!r}", expected, do)
