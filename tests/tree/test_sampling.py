"""The distribution against transformers' own warpers, the batched form against the single one, drawing against the law.

Legend: R, T rows, W vocabulary.
"""

import math
from typing import Any

import pytest
import torch
from tests.tree.reference import sampling_probs, warpers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import LogitsProcessorList, TemperatureLogitsWarper

from eyas.base.errors import InputError, UsageError
from eyas.tree.sampling import (
    MANY_LOGITS,
    SamplingBatch,
    SamplingParams,
    choose_tokens,
    compute_logprobs,
    most_likely,
    position_uniforms,
    sample_tokens,
)

CPU = torch.device("cpu")
SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7, top_k=5),
    SamplingParams(temperature=0.9, top_p=0.8),
    SamplingParams(temperature=1.3, min_p=0.1),
    SamplingParams(temperature=1.2, top_k=12, top_p=0.9),
    SamplingParams(temperature=1.2, top_k=12, min_p=0.08),
    SamplingParams(temperature=1.2, top_k=100, top_p=1.0, min_p=0.0),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_p=0.01),
    SamplingParams(temperature=1.0, top_p=1e-9),
]
BOTH = [
    SamplingParams(1.2, top_p=0.9, min_p=0.08),
    SamplingParams(1.2, 12, 0.9, 0.08),
    SamplingParams(2.0, 30, 0.7, 0.02),
]


def generate_processors(sampling: SamplingParams) -> LogitsProcessorList:
    """What transformers' `generate` builds from these settings, in the order in which it builds it."""
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    generation = GenerationConfig(
        do_sample=True,
        temperature=float(sampling.temperature),
        top_k=sampling.top_k or 0,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        min_p=sampling.min_p,
    )
    model: Any = LlamaForCausalLM(config)
    processors = model._get_logits_processor(generation, input_ids_seq_length=1)
    assert processors or sampling == SamplingParams(temperature=1.0)
    return processors


def probs_of(processors: LogitsProcessorList, logits_RW: Tensor) -> Tensor:
    """What the processors leave, and whatever ties with it: transformers' top_p splits ties as its sort happens to."""
    no_ids: Any = torch.zeros(len(logits_RW), 1, dtype=torch.int64)
    logits: Any = logits_RW.float()
    kept_RW = processors(no_ids, logits) > -torch.inf
    least_R1 = logits_RW.masked_fill(~kept_RW, torch.inf).amin(dim=-1, keepdim=True)
    temperature_only = LogitsProcessorList(p for p in processors if isinstance(p, TemperatureLogitsWarper))
    return temperature_only(no_ids, logits).masked_fill(logits_RW < least_R1, -torch.inf).softmax(dim=-1)


def random_logits(num_rows: int, dtype: torch.dtype) -> Tensor:
    """In bfloat16 nearly every row holds ties."""
    return (torch.randn(num_rows, 40, generator=torch.Generator().manual_seed(1)) * 2).to(dtype)


@pytest.mark.parametrize("sampling", SETTINGS + BOTH, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distribution_is_that_of_generate(sampling: SamplingParams, dtype: torch.dtype) -> None:
    """With min_p and top_p both, `generate` has another order; otherwise the order changes nothing."""
    logits_RW = random_logits(256, dtype)
    processors = warpers(sampling) if sampling in BOTH else generate_processors(sampling)
    ours_RW, theirs_RW = sampling_probs(logits_RW, sampling), probs_of(processors, logits_RW)
    assert ours_RW.dtype == torch.float32
    assert torch.equal(ours_RW > 0, theirs_RW > 0)
    torch.testing.assert_close(ours_RW, theirs_RW, rtol=1e-6, atol=1e-7)
    assert torch.equal(sampling_probs(logits_RW.reshape(16, 16, 40), sampling), ours_RW.reshape(16, 16, 40))


def test_top_k_comes_before_top_p() -> None:
    """p = .4 .3 .2 .1: top_k=2 leaves .57 .43, of which top_p=.5 keeps one. top_p first would keep two."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert sampling_probs(logits, SamplingParams(temperature=1.0, top_k=2, top_p=0.5)).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_min_p_comes_before_top_p() -> None:
    """p = .4 .3 .2 .1: min_p=.6 leaves .57 .43, of which top_p=.5 keeps one. top_p first would keep two."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert sampling_probs(logits, SamplingParams(temperature=1.0, min_p=0.6, top_p=0.5)).tolist() == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]


@pytest.mark.parametrize(
    "sampling", [SamplingParams(1.0, top_k=2), SamplingParams(1.0, top_p=0.6), SamplingParams(1.0, min_p=0.5)]
)
def test_equals_share_their_fate(sampling: SamplingParams) -> None:
    """p = .4 .2 .2 .2 in any order: a filter that keeps one of the three keeps all three."""
    for place in range(4):
        logits = torch.full((1, 4), 0.2)
        logits[0, place] = 0.4
        expected = logits.clone()
        torch.testing.assert_close(sampling_probs(logits.log(), sampling), expected)
        batch = SamplingBatch.from_params([sampling], CPU)
        torch.testing.assert_close(batch.filtered_weights(logits.log(), torch.tensor([0])), expected)


def test_temperature_zero_is_the_first_argmax() -> None:
    logits_RW = torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    expected = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert sampling_probs(logits_RW, SamplingParams()).tolist() == expected
    assert sampling_probs(logits_RW, SamplingParams(top_k=2, top_p=0.5, min_p=0.5)).tolist() == expected


@pytest.mark.parametrize("shift", [0.0, 20.0, -20.0], ids=["both signs", "positive", "negative"])
def test_many_bfloat16_logits_have_the_same_first_maximum(shift: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_RW = (torch.randn(4, MANY_LOGITS // 4, generator=generator) + shift).bfloat16()
    logits_RW[1] = -torch.inf
    logits_RW[1, 7:9] = 0.0  # no row has a larger one than this
    best_R = logits_RW.float().amax(dim=1, keepdim=True)
    assert most_likely(logits_RW).tolist() == [
        (row == best).nonzero()[0, 0] for row, best in zip(logits_RW, best_R, strict=True)
    ]
    assert most_likely(logits_RW[[0, 2, 3, 0]]).tolist() == [most_likely(logits_RW[[i]])[0] for i in (0, 2, 3, 0)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"top_k": 0},
        {"top_k": 2.5},
        {"top_k": True},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": math.inf},
        {"repetition_penalty": None},
        {"presence_penalty": 2.1},
        {"presence_penalty": math.nan},
        {"frequency_penalty": -2.1},
        {"frequency_penalty": True},
        {"logit_bias": {3: 100.5}},
        {"logit_bias": {3: math.nan}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"3": 1.0}},
        {"logit_bias": {3: None}},
        {"logit_bias": 5},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(wrong))} = .* is not "):
        SamplingParams(**wrong)


def test_settings_are_values() -> None:
    """Equal however the bias was written, hashable, and kept as given."""
    one, two = SamplingParams(0.5, logit_bias={7: -1.0, 2: 5}), SamplingParams(0.5, logit_bias=((2, 5), (7, -1.0)))
    assert one == two
    assert hash(one) == hash(two)
    assert one.logit_bias == ((2, 5), (7, -1.0))
    assert one != SamplingParams(0.5)


def test_what_the_settings_ask_for() -> None:
    assert not SamplingParams(0.7, 3, 0.5, 0.1).adjusts_logits
    assert SamplingParams(repetition_penalty=0.9).adjusts_logits
    assert SamplingParams(presence_penalty=-1).adjusts_logits
    assert SamplingParams(frequency_penalty=1).adjusts_logits
    assert SamplingParams(logit_bias={0: 0.0}).adjusts_logits
    assert [SamplingParams(t).is_greedy for t in (0.0, 0.9e-5, 1e-5, 1.0)] == [True, True, False, False]
    SamplingParams(logit_bias={9: 1.0}).check_vocab(10)
    with pytest.raises(InputError, match="names token 10, but the target's token ids are below 10"):
        SamplingParams(logit_bias={9: 1.0, 10: 1.0}).check_vocab(10)


def misfit(ids: Tensor, probs_W: Tensor) -> float:
    """The chi-square statistic over a bound that it exceeds once in a million (Laurent and Massart 2000, lemma 1)."""
    counts = torch.bincount(ids, minlength=len(probs_W)).double()
    assert not counts[probs_W == 0].any(), "a word of weight 0 was drawn"
    expected, some = probs_W.double() * len(ids), probs_W > 0
    statistic = float(((counts - expected)[some] ** 2 / expected[some]).sum())
    degrees, x = int(some.sum()) - 1, math.log(1e6)
    return statistic / (degrees + 2 * math.sqrt(degrees * x) + 2 * x)


NUM_DRAWS = 30_000
COINS = position_uniforms(torch.arange(NUM_DRAWS), torch.tensor(3))


@pytest.mark.parametrize("num_words", [1, 4, 10, 64, 65, 200])
def test_draw_is_in_proportion_to_the_weights(num_words: int) -> None:
    """In one block of words, in several, and in one that is not full; a third of the words weigh nothing."""
    weights_W = torch.randn(num_words, generator=torch.Generator().manual_seed(num_words)).exp()
    weights_W[1::3] = 0
    ids = sample_tokens(weights_W.expand(NUM_DRAWS, -1), COINS)
    assert misfit(ids, weights_W / weights_W.sum()) < 1
    assert torch.equal(sample_tokens(weights_W.expand(NUM_DRAWS, -1) * 16, COINS), ids), "weights need not sum to 1"


@pytest.mark.parametrize("next_seed", [True, False], ids=["next seed", "next position"])
def test_draws_are_independent(next_seed: bool) -> None:
    weights_W = torch.rand(12, generator=torch.Generator().manual_seed(1))
    seeds, positions = torch.arange(NUM_DRAWS), torch.zeros(NUM_DRAWS, dtype=torch.int64)
    weights_RW, first = weights_W.expand(NUM_DRAWS, -1), position_uniforms(seeds, positions)
    second = position_uniforms(seeds + 1, positions) if next_seed else position_uniforms(seeds, positions + 1)
    pairs = sample_tokens(weights_RW, first) * 12 + sample_tokens(weights_RW, second)
    probs_W = weights_W / weights_W.sum()
    assert misfit(pairs, torch.outer(probs_W, probs_W).flatten()) < 1


def test_draw_reaches_a_tail_that_fp32_sums_blur() -> None:
    """100,000 words that weigh 1e-6 each behind one that weighs 0.9: fp32 sums there grow in steps of 6e-8."""
    weights = torch.full((1, 100_001), 1e-6)
    weights[0, 0] = 0.9
    ids = torch.cat([sample_tokens(weights.expand(100, -1), some) for some in COINS[:2000].split(100)])
    hundredths = torch.where(ids == 0, 0, (ids + 999) // 1000)
    expected = torch.full((101,), 0.001)
    expected[0] = 0.9
    assert misfit(hundredths, expected) < 1
    assert len(ids.unique()) > 150, "nearly all different"


def test_a_changed_weight_moves_no_border() -> None:
    """Word 70 gets a little more. Its block wins some races that it had lost; all others keep their winner."""
    generator = torch.Generator().manual_seed(3)
    weights_RW = (torch.randn(5000, 1000, generator=generator) * 2).softmax(dim=-1)
    more_RW = weights_RW.clone()
    more_RW[:, 70] += 0.02
    before, after = sample_tokens(weights_RW, COINS[:5000]), sample_tokens(more_RW, COINS[:5000])
    changed = before != after
    assert 50 < int(changed.sum()) < 200
    assert (after[changed] // 64 == 1).all()
    assert int((after[changed] == 70).sum()) > 50

    def cut(weights_RW: Tensor) -> Tensor:
        """The other way to draw: where the coin falls in the cumulative sum."""
        sums_RW = weights_RW.double().cumsum(dim=-1)
        return torch.searchsorted(sums_RW, COINS[:5000, None] * sums_RW[:, -1:])

    assert int((cut(weights_RW) != cut(more_RW)).sum()) > 1000


@pytest.mark.parametrize("num_words", [2, 65, 130])
def test_draw_never_leaves_the_vocabulary(num_words: int) -> None:
    """Not even where a broken model gives no numbers: an id outside would stop a device."""
    nothing = torch.zeros(4, num_words)
    nothing[0, 0] = nothing[1, -1] = nothing[2] = math.nan
    nothing[3, -1] = 1e-45
    ids = sample_tokens(nothing.repeat(300, 1), COINS[:1200])
    assert ids.min() >= 0
    assert ids.max() < num_words
    assert (ids[3::4] == num_words - 1).all()


def mixed_batch(
    settings: list[SamplingParams], generator: torch.Generator
) -> tuple[SamplingBatch, list[SamplingParams], Tensor]:
    """Rows of the requests in random order, some often and some never."""
    lines_T = torch.randint(len(settings), (600,), generator=generator)
    return SamplingBatch.from_params(settings, CPU), [settings[line] for line in lines_T.tolist()], lines_T


GREEDY = [SamplingParams(), SamplingParams(0.0, 3, 0.5, 0.5)]
BATCHES = {
    "all": [*SETTINGS, *BOTH, *GREEDY],
    "no filter": [*SETTINGS[:2], *GREEDY],
    "top-k": [SETTINGS[2], SETTINGS[0], SamplingParams(1.0, top_k=100)],
    "top-p": [SETTINGS[3], SETTINGS[0], GREEDY[0]],
    "min-p": [SETTINGS[4], SETTINGS[0]],
    "drawn": [*SETTINGS, *BOTH],
}


@pytest.mark.parametrize("settings", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_is_its_requests_one_by_one(settings: list[SamplingParams], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    batch, samplings, lines_T = mixed_batch(settings, generator)
    logits_TW = random_logits(600, dtype)
    logits_TW[::7, ::3] = -torch.inf  # as a grammar leaves them
    weights_TW = batch.filtered_weights(logits_TW, lines_T)
    coins_T = position_uniforms(lines_T, torch.arange(600))
    ids_T = choose_tokens(logits_TW, batch, lines_T, coins_T)
    for row, sampling in enumerate(samplings):
        expected_1W = sampling_probs(logits_TW[row : row + 1], sampling)
        assert int(ids_T[row]) == int(sample_tokens(expected_1W, coins_T[row : row + 1])), sampling
        if not sampling.is_greedy:
            assert torch.equal(weights_TW[row] > 0, expected_1W[0] > 0), sampling
            torch.testing.assert_close(weights_TW[row] / weights_TW[row].sum(), expected_1W[0], rtol=1e-6, atol=1e-6)


def test_batch_mates_change_no_bit() -> None:
    """Every request among all others, and alone in a batch that knows no filter but its own."""
    logits_TW, lines_T = random_logits(50, torch.float32), torch.zeros(50, dtype=torch.int64)
    settings = BATCHES["all"]
    together = SamplingBatch.from_params(settings, CPU)
    for line, sampling in enumerate(settings):
        alone = SamplingBatch.from_params([sampling], CPU)
        assert torch.equal(
            alone.filtered_weights(logits_TW, lines_T), together.filtered_weights(logits_TW, lines_T + line)
        ), sampling
        assert torch.equal(
            alone.filtered_weights(logits_TW[3:4], lines_T[:1]), alone.filtered_weights(logits_TW, lines_T)[3:4]
        )


def test_an_all_greedy_batch_needs_no_coin() -> None:
    logits_TW = torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]], dtype=torch.bfloat16)
    batch = SamplingBatch.from_params(GREEDY, CPU)
    assert batch.all_greedy
    assert choose_tokens(logits_TW, batch, torch.tensor([1, 0]), None).tolist() == [1, 0]
    with pytest.raises(AssertionError, match="need uniforms"):
        choose_tokens(logits_TW, SamplingBatch.from_params([*GREEDY, SETTINGS[0]], CPU), torch.tensor([1, 2]), None)


def test_the_host_knows_what_a_batch_needs() -> None:
    def flags(*settings: SamplingParams) -> tuple[bool, bool, bool, bool, bool, bool]:
        b = SamplingBatch.from_params(settings, CPU)
        return b.all_greedy, b.any_greedy, b.any_min_p, b.any_top_k, b.any_top_p, b.adjusts

    assert flags(SamplingParams(0.0, 5, 0.5, 0.5)) == (True, True, False, False, False, False)
    assert flags(SamplingParams(1.0, 5), SamplingParams(1.0, 9), SamplingParams()) == (
        False,
        True,
        False,
        True,
        False,
        False,
    )
    assert flags(SamplingParams(1.0, top_p=1.0, min_p=0.0)) == (False, False, False, False, False, False)
    assert flags(SamplingParams(1.0, top_p=0.9, min_p=0.1)) == (False, False, True, False, True, False)
    assert flags(SamplingParams(logit_bias={1: 1.0})) == (True, True, False, False, False, True)


@pytest.mark.parametrize("settings", BATCHES.values(), ids=BATCHES)
def test_nothing_is_read_on_the_host(settings: list[SamplingParams]) -> None:
    """Meta tensors hold no data: what reads or branches on it fails."""
    meta = torch.device("meta")
    lines_T = torch.zeros(6, dtype=torch.int64, device=meta)
    logits_TW = torch.zeros(6, 40, device=meta)
    ids_T = choose_tokens(
        logits_TW, SamplingBatch.from_params(settings, meta), lines_T, position_uniforms(lines_T, lines_T)
    )
    assert ids_T.shape == (6,)
    assert compute_logprobs(logits_TW, ids_T, 3).top_ids_TN.shape == (6, 3)


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits_TW = random_logits(30, torch.float32)
    ids_T = torch.arange(30)
    out = compute_logprobs(logits_TW, ids_T, 4)
    for row in range(30):
        weights = [math.exp(logit) for logit in logits_TW[row].tolist()]
        expected = [math.log(weight / math.fsum(weights)) for weight in weights]
        best = sorted(range(40), key=lambda w: -expected[w])[:4]
        assert float(out.token_logprobs_T[row]) == pytest.approx(expected[row], abs=1e-5)
        assert out.top_ids_TN[row].tolist() == best
        assert out.top_TN[row].tolist() == pytest.approx([expected[w] for w in best], abs=1e-5)
    assert compute_logprobs(logits_TW, ids_T, 0).top_TN.shape == (30, 0)
    assert compute_logprobs(logits_TW.bfloat16(), ids_T, 1).token_logprobs_T.dtype == torch.float32
