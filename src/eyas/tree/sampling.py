"""Sampling: chooses a token from logits. Plain and speculative generation call the same functions.

Legend: R requests or any rows, T rows of logits (of any requests), W target vocabulary, C settings, K blocks of X
tokens, Y = K + X.

    raw logits -> grammar mask -> logit_bias -> penalties -> temperature -> min_p -> top_k -> top_p -> one random draw
                  engine/grammar  tree/penalties             `SamplingBatch.filtered_weights`          `sample_tokens`

The order is vLLM's (v1/sample/sampler.py and v1/worker/gpu/sample/sampler.py). Transformers, SGLang and llama.cpp apply
min_p after top_p. The result differs only if a request sets both min_p and top_p.

Each position of a text has one uniform random number. It is a hash of the seed and the position:

    seed 7   ->  .31  .88  .02  .57  ...      the uniforms of positions 0, 1, 2, 3, ...
    seed 8   ->  .74  .10  .66  .93  ...

A random generator would make a token depend on the count of numbers drawn before it, so on the draft tree and on the
other requests of the batch. The hash depends on neither. It has no state and gives the same number on every device.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from eyas.base.errors import InputError, UsageError

# SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of Java 8).
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MIN_TEMPERATURE = 1e-5  # vLLM's; a division by less may overflow fp32
_BLOCK_TOKENS = 64
MANY_LOGITS = 1 << 17  # from here on, comparing bfloat16 as integers is faster than converting it
GREEDY = (0.0, -math.inf, math.inf, 0.0)  # the settings of a greedy request in `SamplingBatch.settings_RC`
_NO_PENALTY = "Use 0 for no penalty"
# Allowed values of the settings that are numbers; the bounds of penalties are OpenAI's.
_BOUNDS: dict[str, tuple[Callable[[float], bool], str, str]] = {
    "temperature": (lambda x: 0 <= x < math.inf, "a number of at least 0", "Use 0 for greedy decoding"),
    "top_p": (lambda x: 0 < x <= 1, "a number above 0 and at most 1", "Omit top_p to keep all tokens"),
    "min_p": (lambda x: 0 <= x <= 1, "a number from 0 to 1", "Omit min_p to keep all tokens"),
    "repetition_penalty": (lambda x: 0 < x < math.inf, "a number above 0", "Use 1 for no penalty"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "a number from -2 to 2", _NO_PENALTY),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "a number from -2 to 2", _NO_PENALTY),
}


def position_uniforms(seeds_R: Tensor, positions_R: Tensor) -> Tensor:
    """Returns a float64 number above 0 and below 1 for each seed and position, by hashing the two.

    The hash is number `position` of the SplitMix64 generator that starts at the hashed seed. So neighboring seeds give
    unrelated numbers. All arithmetic is modulo 2**64, in int64.

    Args:
        seeds_R: Seeds, of any integer dtype.
        positions_R: Positions, of any integer dtype and of a shape that broadcasts with the seeds.
    """
    states_R = _mix(seeds_R.long() + _to_int64(_GOLDEN)) + (positions_R.long() + 1) * _to_int64(_GOLDEN)
    # 52 bits and a half: with 53 the largest sum would round up to 1.
    return (_shift_right(_mix(states_R), 12).double() + 0.5) * 2.0**-52


def _mix(z_R: Tensor) -> Tensor:
    z_R = (z_R ^ _shift_right(z_R, 30)) * _to_int64(_FIRST)
    z_R = (z_R ^ _shift_right(z_R, 27)) * _to_int64(_SECOND)
    return z_R ^ _shift_right(z_R, 31)


def _shift_right(z_R: Tensor, num_bits: int) -> Tensor:
    """Shifts right and fills with zeros. The operator >> would fill negative numbers with ones."""
    return torch.bitwise_and(z_R >> num_bits, (1 << (64 - num_bits)) - 1)


def _to_int64(constant: int) -> int:
    """Returns the signed int64 with the same 64 bits as an unsigned constant."""
    return constant - (constant >> 63 << 64)


@dataclass(frozen=True)
class SamplingParams:
    """The sampling settings of a request; None disables a filter. Raises UsageError for a value out of bounds.

    temperature         >= 0; below 1e-5 decoding is greedy: it takes the most likely token and applies no filter
    top_k               >= 1: keeps the k most likely tokens
    top_p               0 < top_p <= 1: keeps the most likely tokens that together hold this share
    min_p               0..1: keeps tokens with at least this share of the most likely token's probability
    repetition_penalty  > 0: divides positive logits, and multiplies negative logits, of tokens in prompt or answer
    presence_penalty    -2..2: is subtracted from the logit of each token that the answer contains
    frequency_penalty   -2..2: is multiplied by the token's count in the answer and subtracted from its logit
    logit_bias          token id -> -100..100 (OpenAI's bounds), added to its logit; stored as sorted pairs
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
        for name, (is_allowed, expected, fix) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in ("top_p", "min_p"):
                continue
            if not _is_number(value) or not is_allowed(value):
                raise UsageError(f"{name} = {value!r} is not {expected}", fix)
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            problem = f"top_k = {self.top_k!r} is not a whole number of at least 1"
            raise UsageError(problem, "Omit top_k to keep all tokens")
        if not isinstance(self.logit_bias, Mapping | tuple):
            problem = f"logit_bias = {self.logit_bias!r} is not a mapping of token ids to numbers"
            raise UsageError(problem, 'Write for example {"50256": -100}')
        pairs = dict(self.logit_bias)
        for token, bias in pairs.items():
            if type(token) is not int or token < 0:
                raise UsageError(f"logit_bias = {token!r} is not a token id", "Use whole numbers of at least 0 as keys")
            if not _is_number(bias) or not -100 <= bias <= 100:
                problem = f"logit_bias = {bias!r} for token {token} is not a number from -100 to 100"
                raise UsageError(problem, "Use -100 to ban a token")
        object.__setattr__(self, "logit_bias", tuple(sorted(pairs.items())))

    @cached_property
    def is_greedy(self) -> bool:
        """True if the temperature is too low to divide by, so that the most likely token is taken."""
        return self.temperature < _MIN_TEMPERATURE

    @cached_property
    def adjusts_logits(self) -> bool:
        """True if `tree.penalties` changes logits."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1, 0, 0) or bool(self.logit_bias)

    def check_vocab(self, vocab_size: int) -> None:
        """Raises InputError for a bias of a token that the target does not have."""
        for token in dict(self.logit_bias):
            if token >= vocab_size:
                problem = f"logit_bias names token {token}, but the target's token ids are below {vocab_size}"
                raise InputError(problem, "Take the ids from this target's tokenizer")


def sample_tokens(weights_RW: Tensor, uniforms_R: Tensor) -> Tensor:
    """Draws one token for each row with a probability in proportion to its weight. Returns int64 [R].

    Weights are at least 0 and need not sum to 1. As in vLLM, each token gets an exponentially distributed random time,
    divided by its weight, and the token with the smallest time is drawn. The time is a hash of the row's uniform and
    the token's number. To compute few hashes, the function first draws a block of 64 tokens by the sums of their
    weights. Then it draws a token of this block:

        blocks            |  .31  |  .52  |  .17  |       tokens of the block  | .02  .40  .07  .03 |
        time / weight        2.1     0.4     5.0                                 3.3  0.9  7.1  1.2
                                     ^ drawn                                          ^ drawn

    Inverting the cumulative sum of the weights would give the same distribution. But then a rounding difference in one
    weight moves the borders of all later tokens. Measured with the small target that ships with eyas, in float32: one
    token in 2,000 differed between a forward of one row and a forward of many rows. Here a rounding difference matters
    only if the two smallest times are almost equal: none of 76,800 tokens differed. A token of weight 0 is never drawn.
    """
    num_rows, num_tokens = weights_RW.shape
    size = min(_BLOCK_TOKENS, num_tokens)
    num_blocks = -(-num_tokens // size)
    weights_RKX = pad(weights_RW, (0, num_blocks * size - num_tokens)).view(num_rows, num_blocks, size)
    keys_R1 = uniforms_R.double().view(torch.int64)[:, None]
    times_RY = -position_uniforms(keys_R1, torch.arange(num_blocks + size, device=weights_RW.device)).log()
    block_R1 = (weights_RKX.sum(dim=-1, dtype=torch.float64) / times_RY[:, :num_blocks]).argmax(dim=-1, keepdim=True)
    weights_RX = weights_RKX.gather(1, block_R1[:, :, None].expand(-1, -1, size))[:, 0]
    token_R1 = (weights_RX / times_RY[:, num_blocks:]).argmax(dim=-1, keepdim=True)
    return (block_R1 * size + token_R1)[:, 0]


@dataclass(frozen=True, eq=False)
class SamplingBatch:
    """The sampling settings of R requests as one tensor. It is built again when the set of running requests changes.

    A filter runs over the rows of all requests if one request uses it. It changes no row of the other requests.

    Attributes:
        settings_RC: float64, columns temperature (0 is greedy), log min_p (-inf disables it), top_k (inf disables it)
            and 1 - top_p (0 disables it).
        all_greedy: True if every request is greedy: one argmax chooses all tokens.
        any_greedy: True if at least one request is greedy.
        any_min_p: True if a request uses min_p.
        any_top_k: True if a request uses top_k.
        any_top_p: True if a request uses top_p.
        adjusts: True if a request uses a penalty or a logit bias.
    """

    settings_RC: Tensor
    all_greedy: bool
    any_greedy: bool
    any_min_p: bool
    any_top_k: bool
    any_top_p: bool
    adjusts: bool

    @classmethod
    def from_params(cls, params: Sequence[SamplingParams], device: torch.device) -> Self:
        """Copies the settings to the device and waits for it. Row r has the settings params[r]."""
        host_RC, adjusts = settings_array(params), any(request.adjusts_logits for request in params)
        return cls.from_settings(host_RC, torch.from_numpy(host_RC).to(device), adjusts)

    @classmethod
    def from_settings(cls, host_RC: NDArray[np.float64], settings_RC: Tensor, adjusts: bool) -> Self:
        """Builds the batch from the result of `settings_array`, on the host and on the device."""
        any_drawn, any_min_p, any_top_k, any_top_p = (host_RC != GREEDY).any(axis=0).tolist()
        any_greedy = bool((host_RC[:, 0] == 0).any())
        return cls(settings_RC, not any_drawn, any_greedy, any_min_p, any_top_k, any_top_p, adjusts)

    @property
    def ops_key(self) -> tuple[bool, ...]:
        """The flags that decide which operations `choose_tokens` runs; equal keys mean equal operations."""
        return self.all_greedy, self.any_greedy, self.any_min_p, self.any_top_k, self.any_top_p, self.adjusts

    def filtered_weights(self, logits_TW: Tensor, rows_T: Tensor) -> Tensor:
        """Applies temperature and filters; returns fp32 probabilities of the kept tokens, not renormalized.

        The filters run in the order min_p, top_k, top_p, each on the tokens that the filter before it kept. min_p drops
        tokens below min_p times the highest probability. top_k drops the tokens below the k-th. top_p drops the longest
        tail of unlikely tokens that holds at most 1 - top_p of the probability. The most likely token is always kept.
        Tokens with equal logits are kept or dropped together; transformers' top_p may keep only some of them. So each
        filter is a lower bound for the logits of its row, and the highest bound decides:

            logits of a row, ascending     -4  -3  -1   0   1   3
            bounds of the three filters         ^       ^   ^
            kept                                            x   x

        Args:
            logits_TW: Logits after mask, bias and penalties.
            rows_T: The row of `settings_RC` that each row of logits belongs to. Greedy rows use temperature 1.
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
            num_tokens = logits_TW.shape[-1]
            floors.append(ascending_TW.gather(-1, num_tokens - top_k_T1.clamp(max=num_tokens).long()))
            if self.any_top_p:
                weights_TW = ascending_TW.softmax(dim=-1) * (ascending_TW >= _highest_floor(floors))
                sums_TW = weights_TW.cumsum(dim=-1, dtype=torch.float64)
                num_dropped_T1 = (sums_TW[:, :-1] <= tail_T1 * sums_TW[:, -1:]).sum(dim=-1, keepdim=True)
                floors.append(ascending_TW.gather(-1, num_dropped_T1))
        weights_TW = logits_TW.softmax(dim=-1)
        if not floors:
            return weights_TW
        return weights_TW * (logits_TW >= _highest_floor(floors))


def settings_array(params: Sequence[SamplingParams]) -> NDArray[np.float64]:
    """Returns the values of `SamplingBatch.settings_RC` on the host."""
    settings = []
    for request in params:
        log_min_p = math.log(request.min_p) if request.min_p else -math.inf
        top_k = math.inf if request.top_k is None else request.top_k
        tail = 0.0 if request.top_p is None else 1 - request.top_p
        settings.append(GREEDY if request.is_greedy else (request.temperature, log_min_p, top_k, tail))
    return np.array(settings, np.float64).reshape(-1, 4)


def most_likely(logits_TW: Tensor) -> Tensor:
    """Returns the id of the largest logit of each row, int64 [T]; of equal logits the smallest id.

    On a CPU it calls NumPy, which takes 1/12 of the time of torch and has no bfloat16. The bits of positive bfloat16
    numbers, read as integers, have the order of the numbers, and negative numbers are negative integers.
    """
    if not logits_TW.is_cpu:
        return logits_TW.float().argmax(dim=-1)
    if logits_TW.dtype == torch.bfloat16 and logits_TW.numel() >= MANY_LOGITS:
        bits_TW = logits_TW.view(torch.int16).numpy()
        if bits_TW.max(axis=-1).min() > 0:
            return torch.from_numpy(bits_TW.argmax(axis=-1))
    return torch.from_numpy(logits_TW.float().numpy().argmax(axis=-1))


def choose_tokens(logits_TW: Tensor, batch: SamplingBatch, rows_T: Tensor, uniforms_T: Tensor | None) -> Tensor:
    """Returns the next token after each row of logits, int64 [T].

    A token depends only on the logits, the settings and the uniform of its row. There is no host synchronization.

    Args:
        logits_TW: Logits after mask, bias and penalties.
        batch: The settings of the requests.
        rows_T: The row of the batch that each row of logits belongs to.
        uniforms_T: For each row `position_uniforms` of the request's seed and of the position of the chosen token in
            the text. May be None if all requests are greedy.
    """
    if batch.all_greedy:
        return most_likely(logits_TW)
    assert uniforms_T is not None, "sampled tokens need uniforms"
    logits_TW = logits_TW.float()
    drawn_T = sample_tokens(batch.filtered_weights(logits_TW, rows_T), uniforms_T)
    if not batch.any_greedy:
        return drawn_T
    return torch.where(batch.settings_RC[rows_T, 0] == 0, most_likely(logits_TW), drawn_T)


@dataclass(frozen=True, eq=False)
class Logprobs:
    """Log-probabilities of T rows.

    Attributes:
        token_logprobs_T: float32, the log-probability of the chosen token.
        top_TN: float32, the log-probabilities of the N most likely tokens, in descending order.
        top_ids_TN: int64, the ids of these N tokens.
    """

    token_logprobs_T: Tensor
    top_TN: Tensor
    top_ids_TN: Tensor


def compute_logprobs(logits_TW: Tensor, ids_T: Tensor, num_top: int) -> Logprobs:
    """Computes log-probabilities of the raw logits, before penalties, temperature and filters (vLLM's default).

    Args:
        logits_TW: The raw logits.
        ids_T: The chosen token of each row.
        num_top: The number of most likely tokens to return.
    """
    all_TW = logits_TW.log_softmax(dim=-1, dtype=torch.float32)
    top = all_TW.topk(num_top, dim=-1)
    return Logprobs(all_TW.gather(-1, ids_T[:, None])[:, 0], top.values, top.indices)


def _highest_floor(floors_T1: list[Tensor]) -> Tensor:
    return torch.cat(floors_T1, dim=-1).amax(dim=-1, keepdim=True)


def _sort_ascending(values_TW: Tensor) -> Tensor:
    """Sorts each row in ascending order. On a CPU it calls NumPy, whose sort takes 1/35 of the time of torch's."""
    if values_TW.device.type == "cpu":
        return torch.from_numpy(np.sort(values_TW.numpy(), axis=-1))
    return values_TW.sort(dim=-1).values


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
