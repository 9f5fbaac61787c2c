"""Figures computed by hand, and GET /metrics read by Prometheus' own parser."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.server import MODEL, serving, start_engine, wait_until

from eyas.engine.async_engine import EngineStats
from eyas.engine.counters import EngineCounters
from eyas.engine.request import Request, RequestOutput
from eyas.server.generation import Generation
from eyas.server.metrics import ServerMetrics
from eyas.server.response_builder import build_metrics, build_speculative_stats
from eyas.speculation.speedup import SpeedupEstimate

STATS = EngineStats(
    running=2,
    waiting=3,
    kv_used=30,
    kv_total=120,
    counters=EngineCounters(
        prompt_tokens=70,
        cached_tokens=20,
        output_tokens=90,
        finished={"stop": 4, "cancelled": 1},
        preemptions=6,
        device_syncs=7,
        drafts=10,
        draft_tokens=50,
        copied_tokens=7,
        accepted_per_position=[8, 4, 0],
        arm="tree8",
        step_tokens=600,
        steps=[0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
    ),
    speedup=SpeedupEstimate(1.5, 1.25, 1.75, 40.0),
    canary=None,
    forecast={"tokens": 0.75, "seconds": 1.25},
)


def read(text):
    """name -> {other labels: value}"""
    samples = {}
    for family in text_string_to_metric_families(text.decode() if isinstance(text, bytes) else text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine")}
            samples.setdefault(sample.name, {})[tuple(labels.values())] = sample.value
    return samples


def answer_of(accepted, proposed, **rest):
    return RequestOutput(
        Request("r", (1, 2, 3), 9, **rest), accepted=list(accepted), proposed=list(proposed), finish_reason="stop"
    )


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_the_page_has_vllms_names():
    samples = read(ServerMetrics('odd "name"\\', lambda: STATS).render())
    single = {name: values[()] for name, values in samples.items() if list(values) == [()]}
    single = {name: value for name, value in single.items() if not name.startswith(("process_", "python_"))}
    assert single == {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 3,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:gpu_cache_usage_perc": 0.25,
        "vllm:prompt_tokens_cached_total": 20,
        "sglang:num_running_reqs": 2,
        "sglang:num_queue_reqs": 3,
        "sglang:token_usage": 0.25,
        "sglang:num_used_tokens": 30,
        "sglang:kv_used_tokens": 30,
        "sglang:max_total_num_tokens": 120,
        "sglang:prompt_tokens_total": 70,
        "sglang:generation_tokens_total": 90,
        "sglang:cached_tokens_total": 20,
        "sglang:gen_throughput": 0,
        "sglang:cache_hit_rate": 20 / 70,
        "sglang:spec_accept_length": 2.2,
        "sglang:spec_accept_rate": 0.24,
        "vllm:iteration_tokens_total_count": 3,
        "vllm:iteration_tokens_total_sum": 600,
        "vllm:num_preemptions_total": 6,
        "eyas_device_syncs_total": 7,
        "vllm:prompt_tokens_total": 70,
        "vllm:generation_tokens_total": 90,
        "vllm:prefix_cache_queries_total": 70,
        "vllm:prefix_cache_hits_total": 20,
        "vllm:prefix_cache_queries": 70,
        "vllm:prefix_cache_hits": 20,
        "vllm:spec_decode_num_drafts_total": 10,
        "vllm:spec_decode_num_draft_tokens_total": 50,
        "vllm:spec_decode_num_accepted_tokens_total": 12,
        "eyas_copied_tokens_total": 7,
        "eyas_speedup_now": 1.5,
        "eyas_speedup_low": 1.25,
        "eyas_speedup_high": 1.75,
        **{f"vllm:{name}_{part}": 0 for name in HISTOGRAMS for part in ("sum", "count")},
        **{f"sglang:{name}_seconds_{part}": 0 for name in LATENCIES for part in ("sum", "count")},
    }
    assert samples["vllm:cache_config_info"] == {("1", "True", "120"): 1}
    steps = samples["vllm:iteration_tokens_total_bucket"]
    assert (steps["8.0",], steps["32.0",], steps["512.0",], steps["+Inf",]) == (1, 2, 3, 3)
    assert samples["eyas_aborted_requests_total"] == {("before_first_token",): 0, ("after_first_token",): 0}
    assert samples["vllm:request_success_total"] == {("stop",): 4, ("length",): 0, ("abort",): 1, ("error",): 0}
    assert samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"] == {("0",): 8, ("1",): 4, ("2",): 0}
    assert samples["eyas_arm_info"] == {("tree8",): 1}


def test_a_speed_up_that_is_not_measured_is_not_told():
    samples = read(ServerMetrics("m", lambda: replace(STATS, speedup=None)).render())
    assert not any(name.startswith("eyas_speedup") for name in samples)


LATENCIES = ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
TIMES = ("queue", "prefill", "decode", "inference")
HISTOGRAMS = (
    *(f"{name}_seconds" for name in (*LATENCIES, "time_per_output_token", "request_time_per_output_token")),
    *(f"request_{name}_time_seconds" for name in TIMES),
    *(f"request_{name}" for name in ("prompt_tokens", "generation_tokens", "max_num_generation_tokens")),
    *(f"request_{name}" for name in ("params_max_tokens", "params_n", "num_preemptions")),
)


def test_labels_survive_odd_names():
    page = ServerMetrics('odd "name"\\\n', lambda: STATS).render().decode()
    (family, *_) = text_string_to_metric_families(page)
    assert family.samples[0].labels["model_name"] == 'odd "name"\\\n'
    assert family.documentation


def histogram(samples, name):
    return {part: samples[f"vllm:{name}_{part}"] for part in ("bucket", "sum", "count")}


def test_times_of_tokens_are_observed_as_they_arrive():
    metrics = ServerMetrics("m", lambda: STATS)
    # The first token at 0.25 s, then a round after 0.375 s and one after 0.0625 s; a second request has only begun.
    for previous_s, now_s in ((None, 0.25), (0.25, 0.625), (0.625, 0.6875), (None, 3000.0)):
        metrics.requests.observe_tokens(previous_s, now_s)
    samples = read(metrics.render())
    ttft, itl = histogram(samples, "time_to_first_token_seconds"), histogram(samples, "inter_token_latency_seconds")
    assert ttft["sum"][()] == pytest.approx(3000.25)
    assert (ttft["bucket"]["0.1",], ttft["bucket"]["0.25",], ttft["bucket"]["+Inf",]) == (0, 1, 2)
    assert itl["sum"][()] == pytest.approx(0.4375)
    assert (itl["bucket"]["0.05",], itl["bucket"]["0.075",], itl["bucket"]["0.4",]) == (0, 1, 2)
    assert samples["vllm:time_per_output_token_seconds_bucket"] == itl["bucket"]
    assert samples["sglang:time_to_first_token_seconds_sum"] == ttft["sum"]


def test_figures_of_a_finished_call():
    metrics = ServerMetrics("m", lambda: STATS, max_context=64)
    request = Request("r", (1,) * 7, 30)
    times_s = [0.75, 1.0, 1.0, 1.25]
    long = RequestOutput(request, token_ids=[1] * 4, token_times_s=times_s, queue_s=0.5, num_preemptions=1)
    short = RequestOutput(request, token_ids=[1], token_times_s=[0.75], queue_s=0.25)
    metrics.requests.observe_call([long, short], 2)
    metrics.requests.observe_call([RequestOutput(request, finish_reason="error")], 1)
    samples = read(metrics.render())
    sums = {name: samples[f"vllm:{name}_sum"][()] for name in HISTOGRAMS}
    assert sums == {
        "time_to_first_token_seconds": 0,
        "inter_token_latency_seconds": 0,
        "time_per_output_token_seconds": 0,
        "request_time_per_output_token_seconds": pytest.approx(0.5 / 3),
        "e2e_request_latency_seconds": 2.0,
        "request_queue_time_seconds": 0.75,
        "request_prefill_time_seconds": 0.75,
        "request_decode_time_seconds": 0.5,
        "request_inference_time_seconds": 1.25,
        "request_prompt_tokens": 14,
        "request_generation_tokens": 5,
        "request_max_num_generation_tokens": 4,
        "request_params_max_tokens": 60,
        "request_params_n": 2,
        "request_num_preemptions": 1,
    }
    bounds = [bound for (bound,) in samples["vllm:request_prompt_tokens_bucket"]]
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "+Inf"]


def test_the_warm_up_is_left_out():
    stats = replace(STATS)
    metrics = ServerMetrics("m", lambda: stats)
    metrics.forget_warm_up()
    stats = replace(STATS, counters=replace(STATS.counters, output_tokens=97, finished={"stop": 5, "cancelled": 1}))
    samples = read(metrics.render())
    assert samples["vllm:generation_tokens_total"][()] == 7
    assert samples["vllm:prompt_tokens_total"][()] == 0
    assert samples["vllm:request_success_total"] == {("stop",): 1, ("length",): 0, ("abort",): 0, ("error",): 0}
    assert samples["vllm:iteration_tokens_total_count"][()] == 0


def test_speculative_decoding_of_an_answer():
    # Rounds: 2 of 2 draft tokens accepted, 1 of 2, none of 1, and one without drafting.
    found = build_speculative_stats(answer_of((3, 2, 1, 1), (2, 2, 1, 0)), max_draft_tokens=4)
    assert found.model_dump() == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.6,
        "acceptance_histogram": [1, 1, 1, 0, 0],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 5,
        "num_spec_tokens": 4,
        "per_step_accepted": [2, 1, 0],
        "per_step_drafted": [2, 2, 1],
    }


def test_an_answer_without_rounds_has_finite_figures():
    found = build_speculative_stats(answer_of((), ()), max_draft_tokens=2)
    assert (found.mean_acceptance_length, found.draft_acceptance_rate) == (1.0, 0.0)
    assert found.acceptance_histogram == [0, 0, 0]


def test_where_there_is_nothing_to_report():
    one = answer_of((2,), (1,))
    assert build_metrics([one], 3) is not None
    assert build_metrics([one], 0) is None
    assert build_metrics([one, one], 3) is None
    assert build_metrics([answer_of((2,), (1,), speculation="off")], 3) is None


def test_a_prompt_counts_once():
    requests = [Request(str(i), (1,) * length, 9) for i, length in enumerate((3, 3, 5, 5))]

    class Engine:
        """Answers each request in two rounds."""

        engine, max_waiting = SimpleNamespace(max_running=4), 0

        def submit(self, request, on_tokens):
            output = RequestOutput(request, [7, 8], num_cached_tokens=(1, 2, 0, 4)[int(request.id)])
            on_tokens(output, 2)
            output.token_ids += [9] * (request.id == "0")
            output.finish_reason = "stop"
            on_tokens(output, 1)

    async def count(engine: Any):
        generation = Generation(engine, requests, 2)
        generation.submit()
        await generation.collect()
        return generation.usage

    usage = asyncio.run(count(Engine()))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (8, 9, 17)
    assert usage.prompt_tokens_details.cached_tokens == 1


# --- of a server -----------------------------------------------------------------------------------------------------


def test_the_counters_add_up_to_what_clients_saw(shallow_target):
    async_engine = start_engine(shallow_target, drafts=True)
    with serving(async_engine) as server, server.client() as client:
        replies = [
            client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 30}).json()
            for prompt in ("one", "one", "two of them")
        ]
        page = client.get("/metrics")
    async_engine.drain(1)
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = read(page.text)

    def total(*path):
        values = replies
        for key in path:
            values = [value[key] for value in values]
        return sum(values)

    assert samples["vllm:prompt_tokens_total"][()] == total("usage", "prompt_tokens")
    assert samples["vllm:generation_tokens_total"][()] == total("usage", "completion_tokens")
    hits = total("usage", "prompt_tokens_details", "cached_tokens")
    assert samples["vllm:prefix_cache_hits_total"][()] == hits > 0
    accepted = total("metrics", "speculative_decoding", "num_accepted_draft_tokens")
    assert samples["vllm:spec_decode_num_accepted_tokens_total"][()] == pytest.approx(accepted, abs=3)
    assert sum(samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"].values()) == pytest.approx(accepted, abs=3)
    assert samples["vllm:time_to_first_token_seconds_count"][()] == 3
    assert sum(samples["vllm:request_success_total"].values()) == 3
    assert samples["vllm:request_queue_time_seconds_count"][()] == 3
    assert samples["vllm:iteration_tokens_total_sum"][()] > total("usage", "completion_tokens")
    assert samples["http_requests_total"] == {("/v1/completions", "POST", "2xx"): 3}
    assert samples["http_request_duration_seconds_count"] == {("/v1/completions", "POST"): 3}


def test_a_client_that_leaves_the_queue_and_one_that_is_refused(shallow_target):
    async_engine = start_engine(shallow_target, slots=1, max_waiting=1)
    body = {"model": MODEL, "prompt": "one", "max_tokens": 400, "ignore_eos": True}
    with serving(async_engine) as server, server.client() as client:
        running = threading.Thread(target=lambda: client.post("/v1/completions", json=body))
        running.start()
        wait_until(lambda: async_engine.stats().running == 1)
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}):
            wait_until(lambda: async_engine.stats().waiting == 1)
            assert client.post("/v1/completions", json=body).status_code == 429
        wait_until(lambda: async_engine.stats().waiting == 0)
        running.join()
        samples = read(client.get("/metrics").text)
    async_engine.drain(1)
    assert samples["vllm:admission_rejections_total"] == {("queue_full",): 1}
    assert samples["eyas_aborted_requests_total"] == {("before_first_token",): 1, ("after_first_token",): 0}
    assert samples["vllm:request_success_total"] == {("stop",): 0, ("length",): 1, ("abort",): 1, ("error",): 0}
    assert samples["vllm:time_to_first_token_seconds_count"][()] == 1
    assert samples["http_requests_total"]["/v1/completions", "POST", "4xx"] == 1


def test_a_client_that_leaves_is_counted_with_its_first_token(shallow_target):
    async_engine = start_engine(shallow_target)
    with serving(async_engine) as server, server.client() as client:
        body = {"model": MODEL, "prompt": "one", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())
        wait_until(lambda: not async_engine.stats().running)
        client.get("/nothing")
        samples = read(client.get("/metrics").text)
    async_engine.drain(1)
    assert samples["eyas_aborted_requests_total"] == {("before_first_token",): 0, ("after_first_token",): 1}
    assert samples["vllm:time_to_first_token_seconds_count"][()] == 1
    assert samples["vllm:e2e_request_latency_seconds_count"][()] == 0
    assert samples["vllm:request_success_total"]["abort",] == 1
    assert samples["vllm:generation_tokens_total"][()] > 0
    assert samples["http_requests_total"]["none", "GET", "4xx"] == 1
