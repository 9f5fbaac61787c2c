"""Measurements in this process and results.json, on a random target and head."""

import dataclasses
import json

import pytest
import torch
from tests.bench.results_schema import check_results
from tests.bench.tiny_pair import TinyPair
from transformers import AutoModelForCausalLM

from eyas.base.config import build
from eyas.base.errors import InputError, StageError, UsageError
from eyas.bench.config import BenchConfig, Slo
from eyas.bench.engine_load import measure_load, require_tpot
from eyas.bench.engine_request_loops import run_closed_loop, run_open_loop, to_sample
from eyas.bench.load_test import build_point, poisson_arrivals
from eyas.bench.report import render_report
from eyas.bench.request_metrics import BlockResult, SpecDecodeStats, summarize_acceptance
from eyas.bench.results import assemble_results, public_target_name
from eyas.bench.single_stream import (
    PairedAnswers,
    SingleStreamResults,
    _build_results,
    _pair_answers,
    _task_metrics,
    count_uncertain,
    measure_draft_baselines,
    measure_tasks,
)
from eyas.bench.workload import Prompt, interleave_tasks
from eyas.engine.counters import EngineCounters
from eyas.engine.engine import Engine
from eyas.engine.request import Request, RequestOutput
from eyas.evaluation.reference_drafters import NgramTable
from eyas.model.target import Target
from eyas.tree.acceptance_length import acceptance_length

CONFIG = BenchConfig(max_tokens=20, repeats=2, concurrency=(1, 3), requests_per_stream=2, arms=("chain2",))


@pytest.fixture(scope="module")
def stream(pair: TinyPair) -> SingleStreamResults:
    return measure_tasks(pair.target, pair.draft, pair.prompts, CONFIG, progress=False)


def plain_greedy(target: Target, ids: tuple[int, ...], count: int) -> tuple[list[int], list[float]]:
    """Returns tokens and their probabilities, by one full forward of transformers' model per token."""
    model = AutoModelForCausalLM.from_pretrained(target.directory, dtype=torch.float32)
    text, shares = list(ids), []
    with torch.inference_mode():
        for _ in range(count):
            shares.append(float(model(torch.tensor([text])).logits[0, -1].softmax(-1).max()))
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
            if text[-1] in target.info.eos_ids:
                break
    return text[len(ids) :], shares


def test_metrics_by_task(pair: TinyPair, stream: SingleStreamResults) -> None:
    assert set(stream.tasks) == {"birds", "sums"}
    for task, prompts in pair.prompts.items():
        entry, pairs = stream.tasks[task], stream.pairs[task]
        assert [one.prompt for one in pairs] == prompts
        assert entry["prompts"] + entry["too_short"] == len(prompts)
        # Acceptance counted by hand: what came after the first token, over rounds.
        timed = [one.speculative for one in pairs if one.is_timed]
        tokens = sum(len(answer.token_ids) - 1 for answer in timed)
        assert entry["acceptance_length"] == pytest.approx(tokens / sum(len(answer.accepted) for answer in timed))
        low, high = sorted(entry["tpot_ms"].values())
        assert 0 < low < high < 10_000
        assert entry["identical"] == entry["prompts"]  # float32
    assert all(value >= 0 for value in stream.rounds.values())
    assert stream.rounds["verify_ms"] > 0
    assert stream.rounds["draft_ms"] > 0


def test_times_are_medians_over_the_repeats(pair: TinyPair) -> None:
    prompt = pair.prompts["birds"][0]

    def answers(*steps_s: float) -> list[RequestOutput]:
        return [RequestOutput(Request("x", (1,), 2), [1, 2, 3], token_times_s=[9.0, 9 + s, 9 + 2 * s]) for s in steps_s]

    one = _pair_answers(prompt, answers(0.1, 0.3, 0.2), answers(0.4, 0.1, 0.1))
    assert (one.baseline_tpot_ms, one.speculative_tpot_ms) == pytest.approx((200, 100))
    assert not _pair_answers(
        prompt, [RequestOutput(Request("x", (1,), 1), [1], token_times_s=[1.0])], answers(0.1)
    ).is_timed


def test_uncertain_positions_match_a_slow_count(pair: TinyPair) -> None:
    prompt = pair.prompts["birds"][1]
    tokens, shares = plain_greedy(pair.target, prompt.ids, 12)
    wanted = sum(share < 0.9 for share in shares)
    assert count_uncertain(pair.target, prompt, tokens) == wanted
    assert wanted > 0, "a random target is uncertain somewhere"


def test_looping_and_one_token_answers_are_counted_apart(pair: TinyPair) -> None:
    prompt = pair.prompts["birds"][0]

    def answer(token_ids: list[int], accepted: list[int]) -> RequestOutput:
        offered = [count - 1 for count in accepted]
        return RequestOutput(
            Request("x", prompt.ids, 64),
            token_ids,
            accepted=accepted,
            offered=offered,
            token_times_s=[0.1] * len(token_ids),
        )

    good = answer([5, 6, 7], [2])
    loop = answer([5, 6] * 30, [59])
    lone = answer([5], [])
    pairs = [PairedAnswers(prompt, one, one, 3.0, 2.0) for one in (good, loop)] + [
        PairedAnswers(prompt, lone, lone, None, None)
    ]
    found = _build_results(pair.target, {"t": pairs, "only loops": [pairs[1]]}, EngineCounters(), 0)
    assert set(found.tasks) == {"t"}
    entry = found.tasks["t"]
    assert (entry["prompts"], entry["looping"], entry["too_short"]) == (1, 1, 1)
    assert (entry["acceptance_length"], entry["speedup"], entry["speedup_ci95"]) == (2.0, 1.5, [1.5, 1.5])
    assert found.looping is not None
    assert (found.looping["prompts"], found.looping["acceptance_length"]) == (2, 59.0)
    assert set(found.pairs) == {"t", "only loops"}


def test_speedup_is_the_median_of_ratios_not_the_ratio_of_medians(pair: TinyPair, stream: SingleStreamResults) -> None:
    one = stream.pairs["birds"][0]
    times = ((10.0, 10.0), (20.0, 5.0), (30.0, 10.0))
    pairs = [PairedAnswers(one.prompt, one.baseline, one.speculative, a, b) for a, b in times]
    entry = _task_metrics(pairs, 0)
    assert entry["speedup"] == 3.0  # of 1, 4 and 3
    assert entry["tpot_ms"] == {"baseline": 20.0, "speculative": 10.0}


# --- under load ------------------------------------------------------------------------------------------------------


def test_closed_loop_answers_every_request(pair: TinyPair) -> None:
    """Every answer equals the one at one stream. The wait for a slot is part of the TTFT."""
    prompts = interleave_tasks(pair.prompts)
    engine = Engine(pair.target, [pair.draft], 2, 200)
    block = run_closed_loop(engine, prompts, 10)
    alone = Engine(pair.target, (), 1, 200)
    assert [int(answer.request.id) for answer in block.answers] == list(range(len(prompts)))
    for answer, prompt in zip(block.answers, prompts, strict=True):
        assert answer.token_ids == run_closed_loop(alone, [prompt], 10).answers[0].token_ids
    acceptance = summarize_acceptance([block.result], seed=0)
    assert acceptance["acceptance_length"] == pytest.approx(
        acceptance_length(answer.rounds for answer in block.answers)
    )
    assert sum(acceptance["acceptance_histogram"]) == sum(len(answer.accepted) for answer in block.answers)
    assert summarize_acceptance([run_closed_loop(alone, prompts[:1], 10).result], seed=0) == {}
    waits = [(one.ttft_s or 0) - answer.ttft_s for one, answer in zip(block.result.samples, block.answers, strict=True)]
    assert min(waits) >= 0
    assert sum(waits) < block.result.seconds * 2
    num_tokens = sum(len(answer.token_ids) for answer in block.answers)
    assert block.result.output_tps == pytest.approx(num_tokens / block.result.seconds)


def test_open_loop_keeps_the_arrival_times(pair: TinyPair) -> None:
    """Requests are sent at their arrival times. The wait for a free slot is part of the TTFT."""
    prompts = interleave_tasks(pair.prompts)[:4]
    engine = Engine(pair.target, [pair.draft], 1, 200)
    run_closed_loop(engine, prompts[:1], 4)
    arrivals_s = [0.0, 0.0, 0.0, 3.0]
    block = run_open_loop(engine, prompts, arrivals_s, 10)
    samples = block.result.samples
    assert [int(sample.id) for sample in samples] == [0, 1, 2, 3]
    assert [sample.sent_s for sample in samples] == arrivals_s
    added_s = [
        sample.chunk_times_s[0] - answer.token_times_s[0] for sample, answer in zip(samples, block.answers, strict=True)
    ]
    assert added_s[1] >= samples[0].end_s
    assert added_s[2] >= samples[1].end_s
    assert (samples[2].ttft_s or 0) > (samples[1].ttft_s or 0) > (samples[0].ttft_s or 0) > 0
    assert added_s[3] >= 3.0
    assert block.result.seconds >= samples[-1].end_s
    alone = Engine(pair.target, (), 1, 200)
    for prompt, answer in zip(prompts, block.answers, strict=True):
        assert answer.token_ids == run_closed_loop(alone, [prompt], 10).answers[0].token_ids


def test_an_answer_becomes_a_sample() -> None:
    """The tokens of a round are one chunk."""
    request = Request("0", (1, 2), 4)
    answer = RequestOutput(request, [1, 2, 3, 4], token_times_s=[1.0, 2.0, 2.0, 3.0], accepted=[2, 1], offered=[1, 1])
    sample = to_sample(answer, 0.5, 1.0, with_spec_decode=True)
    assert (sample.chunk_times_s, sample.sent_s, sample.end_s) == ((2.0, 3.0, 4.0), 0.5, 4.0)
    assert (sample.id, sample.prompt_tokens, sample.output_tokens) == ("0", 2, 4)
    assert (sample.ttft_s, sample.e2e_s) == (1.5, 3.5)
    assert sample.tpot_s == pytest.approx(answer.tpot_s)
    assert sample.spec_decode == SpecDecodeStats(2, 1, (1, 1))
    assert to_sample(answer, 0.5, 1.0, with_spec_decode=False).spec_decode is None
    lone = RequestOutput(Request("1", (1,), 4), [1], token_times_s=[0.5], accepted=[], offered=[])
    assert to_sample(lone, 2.0, 3.0, with_spec_decode=True).spec_decode is None
    assert to_sample(lone, 2.0, 3.0, with_spec_decode=True).ttft_s == 1.5


def test_point_on_known_times() -> None:
    def block(step_s: float, seconds: float, drafts: bool = False) -> BlockResult:
        times_s = [1.0, 1.0 + step_s, 1.0 + 2 * step_s]
        answers = [
            RequestOutput(Request(name, (1,), 3), [1, 2, 3], token_times_s=times_s, accepted=[2], offered=[1])
            for name in "01"
        ]
        samples = [
            to_sample(answer, sent_s, 0.5 - sent_s, drafts) for answer, sent_s in zip(answers, (0.0, 0.5), strict=True)
        ]
        return BlockResult(tuple(samples), seconds)

    before, after = [block(0.2, 6.0), block(0.4, 12.0), block(0.3, 6.0)], [block(0.1, 3.0, drafts=True)] * 3
    arms = {"baseline": before, "speculative": after, "chain3": [block(0.05, 3.0, drafts=True)] * 3}
    point = build_point(arms, Slo(tpot_ms=310), seed=0)
    assert point["arms"]["chain3"]["tpot_ms"]["p50"] == pytest.approx(50)
    assert point["arms"]["chain3"]["acceptance_length"] == 2.0
    assert point["arms"]["chain3"]["acceptance_histogram"] == [0, 6]
    assert point["baseline"]["tpot_ms"]["p50"] == pytest.approx(300)
    assert point["speculative"]["tpot_ms"]["p50"] == pytest.approx(100)
    assert point["speculative"]["step_ms"]["p50"] == pytest.approx(100)
    assert point["baseline"]["ttft_ms"]["p50"] == pytest.approx(1000)  # 500 and 1500
    assert point["baseline"]["e2e_ms"]["p50"] == pytest.approx(1600)
    assert (point["baseline"]["output_tps"], point["speculative"]["output_tps"]) == (1.0, 2.0)
    assert point["baseline"]["goodput"] == pytest.approx(4 / 24)
    assert point["speedup_tpot"] == pytest.approx(3.0)
    assert point["speedup_tps"] == 2.0  # of 2, 4 and 2
    assert point["speedup_tps_ci95"] == [2.0, 4.0]
    assert "acceptance_length" not in point["baseline"]
    lone = RequestOutput(Request("0", (1,), 1), [1], token_times_s=[1.0])
    with pytest.raises(StageError, match="one token"):
        require_tpot([BlockResult((to_sample(lone, 0.5, 0.5, False),), 1.0)])


def test_rates_and_a_ramp(pair: TinyPair) -> None:
    """Both arms get the same requests at the same times, and a ramp has a point for each quarter."""
    config = dataclasses.replace(
        CONFIG, arms=(), concurrency=(), repeats=1, rates=(6.0,), ramp=(4.0, 24.0), block_s=1.0
    )
    found = measure_load(pair.target, pair.draft, pair.prompts, config, progress=False)
    ((point_),) = found["rates"]
    arrivals_s = poisson_arrivals(6.0, 6.0, 1.0, config.seed)
    assert point_["rate"] == 6.0
    assert point_["baseline"]["requests"] == point_["speculative"]["requests"] == len(arrivals_s)
    assert point_["baseline"]["duration"] >= max(arrivals_s)
    ramp_s = poisson_arrivals(4.0, 24.0, 1.0, config.seed)
    quarters = [sum(quarter == min(int(arrival_s / 0.25), 3) for arrival_s in ramp_s) for quarter in range(4)]
    told = {one["rate"]: one["speculative"]["requests"] for one in found["ramp"]}
    assert told == {rate: count for rate, count in zip((6.5, 11.5, 16.5, 21.5), quarters, strict=True) if count}


@pytest.mark.parametrize("arm", ["chain4", "lookup0", "model3", "tree", "lookup33"])
def test_unknown_arms_are_rejected(arm: str) -> None:
    with pytest.raises(
        UsageError,
        match=rf"bench\.arms contains the unknown arm {arm}|The arm {arm} in bench\.arms needs a small model",
    ):
        BenchConfig(arms=("chain3", arm))


# --- the whole -------------------------------------------------------------------------------------------------------


def test_results_have_the_schema(pair: TinyPair, stream: SingleStreamResults) -> None:
    config = dataclasses.replace(CONFIG, arms=("chain2", "copies", "model2"), draft_model=str(pair.target.directory))
    under = measure_load(pair.target, pair.draft, pair.prompts, config, progress=False)
    assert [one["n"] for one in under["concurrency"]] == [1, 3]
    rows = [(torch.tensor([5, 6, 7, 8, 9]), torch.ones(5, dtype=torch.bool))]
    assert set(under["concurrency"][0]["arms"]) == {"chain2", "copies", "model2"}
    assert under["concurrency"][0]["arms"]["model2"]["acceptance_length"] > 2  # the target drafts for itself
    free = measure_draft_baselines(stream.pairs, NgramTable(rows), depth=3)
    tasks = {task: metrics | {"references": free[task]} for task, metrics in stream.tasks.items()}
    same = {"prompts": 5, "identical": 5, "dtype": "float32", "reference": "transformers 5 generate"}
    found = assemble_results(
        pair.target,
        pair.draft.head,
        dataclasses.replace(stream, tasks=tasks),
        under,
        same,
        ["/bin/eyas", "bench", "tiny.toml"],
    )
    check_results(json.loads(json.dumps(found, allow_nan=False)), ["birds", "sums"], references=True)
    assert found["command"] == "eyas bench tiny.toml"
    assert str(pair.directory.parent) not in json.dumps(found)
    assert found["head"]["parameters"] == sum(weight.numel() for weight in pair.draft.head.parameters())
    assert "5 of 5" in render_report(found, None).replace("</data>", "").replace('<data value="5">', "")
    bare = assemble_results(
        pair.target, pair.draft.head, stream, {"concurrency": [], "rates": [], "ramp": []}, None, []
    )
    assert bare["lossless"]["prompts"] == 0
    assert "references" not in bare["tasks"]["birds"]


def test_draft_baselines_count_what_lookup_finds(pair: TinyPair) -> None:
    """The prompt contains 1 2 3 4: after 2 3, lookup proposes 4 5 6, of which two are right."""
    prompt = Prompt("p", (1, 2, 3, 4, 5, 6, 2))
    token_ids = [3, 4, 5, 9]
    answer = RequestOutput(
        Request("p", prompt.ids, 4), token_ids, accepted=[1, 1, 1], offered=[0, 0, 0], token_times_s=[0, 1, 2, 3]
    )
    rows = [(torch.tensor([2, 3, 4, 7]), torch.ones(4, dtype=torch.bool))]
    found = measure_draft_baselines({"t": [PairedAnswers(prompt, answer, answer, 1.0, 1.0)]}, NgramTable(rows), depth=3)
    # One round takes 4, 5 and the bonus 9; the table knows only what never comes: three rounds.
    assert found["t"]["prompt_lookup"]["acceptance_length"] == 3.0
    assert found["t"]["ngram4"]["acceptance_length"] == 1.0


def test_public_target_name_is_not_a_path(pair: TinyPair) -> None:
    assert public_target_name(pair.target) == pair.directory.name


def test_a_prompt_too_long_for_the_target_is_rejected(pair: TinyPair) -> None:
    with pytest.raises(InputError, match="prompt of request long has 600 tokens"):
        measure_tasks(pair.target, pair.draft, {"t": [Prompt("long", (5,) * 600)]}, CONFIG, progress=False)


@pytest.mark.parametrize(
    "wrong", [{"repeats": 0}, {"max_tokens": 1}, {"concurrency": (1, 0)}, {"nodes": 1}, {"lossless_prompts": -1}]
)
def test_config_rejects(wrong: dict) -> None:
    with pytest.raises(UsageError):
        build(BenchConfig, wrong, "bench")
