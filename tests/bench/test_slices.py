"""Figures by turn, context and phase, on answers whose rounds are counted by hand."""

import pytest
from transformers import AutoTokenizer

from eyas.bench.request_metrics import RequestSample, SpecDecodeStats
from eyas.bench.slices import Slices
from eyas.bench.turns import ChatPrompt
from eyas.bench.workload import Prompt
from eyas.chat.conversation import Message
from eyas.chat.tool_format import ToolFormat
from eyas.engine.request import Request, RequestOutput
from eyas.model.target_dir import EMBEDDED, resolve_target


def output(prompt: Prompt, ids: list[int], accepted: list[int], step_s: float) -> RequestOutput:
    """Returns an answer whose rounds take `step_s` each, after a prefill of 1 s."""
    rounds = [0, *(number for number, count in enumerate(accepted, 1) for _ in range(count))]
    times_s = [1.0 + step_s * number for number in rounds]
    offered = [count - 1 for count in accepted]
    return RequestOutput(
        Request(prompt.id, prompt.ids, len(ids)), ids, accepted=accepted, offered=offered, token_times_s=times_s
    )


@pytest.fixture(scope="module")
def tool_format() -> ToolFormat:
    return ToolFormat(AutoTokenizer.from_pretrained(resolve_target(EMBEDDED)))


def test_by_hand(tool_format: ToolFormat) -> None:
    """Two conversations; one has a second turn, which begins beyond position 256."""
    first, other = Prompt("a", (9,) * 250), Prompt("b", (9,) * 300)
    second = Prompt("a/7", (9,) * 255, 7)
    ids = [70, 71, 72, 73, 74, 75, 76]
    slices = Slices(tool_format)
    for prompt in (first, other, second):
        slices.add_outputs("baseline", prompt, [output(prompt, ids, [1] * 6, 0.4)] * 2)
        slices.add_outputs("speculative", prompt, [output(prompt, ids, [3, 2, 1], 0.5)] * 2)
    found = slices.metrics(0, {"baseline": 10, "speculative": 11})
    assert {axis: list(some) for axis, some in found.items()} == {
        "turn": ["1", "6+"],
        "context": ["<=256", "<=512"],
        "phase": ["content"],
    }
    turn = found["turn"]["1"]
    assert (turn["conversations"], turn["tokens"], turn["acceptance_length"]) == (2, 24, 2.0)
    assert list(turn["output_tps"]) == ["baseline", "speculative"]
    assert turn["output_tps"] == pytest.approx({"baseline": 2.5, "speculative": 12 / 3.0})
    assert turn["speedup"] == pytest.approx(1.6)
    assert turn["ci95"] == [2.0, 2.0]  # both conversations are alike
    # "a": roots at 250, 253, 255. "a/7": at 255, then 258 and 260. Each twice.
    near = found["context"]["<=256"]
    assert (near["conversations"], near["tokens"], near["acceptance_length"]) == (1, 18, 18 / 8)
    assert near["kv_bytes"] == {"baseline": 2560, "speculative": 2816}
    far = found["context"]["<=512"]
    assert (far["conversations"], far["tokens"], far["acceptance_length"]) == (2, 18, 18 / 10)
    assert far["ci95"] == [1.5, 2.0]  # all "a", all "b"
    assert far["speedup"] == pytest.approx(far["output_tps"]["speculative"] / 2.5)


def test_phases_of_a_tool_call(tool_format: ToolFormat) -> None:
    tokenizer = tool_format.tokenizer
    ids = tokenizer.encode('Look:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    prompt = Prompt("a", (9,))
    num_calls = tool_format.phases(prompt.ids, ids).count("tool_call")
    assert 5 < num_calls < len(ids)
    slices = Slices(tool_format)
    slices.add_outputs("speculative", prompt, [output(prompt, ids, [1] * (len(ids) - 1), 0.1)])
    found = slices.metrics(0)["phase"]
    assert list(found) == ["content", "tool_call"]
    assert found["tool_call"]["tokens"] == num_calls
    assert found["content"]["tokens"] == len(ids) - 1 - num_calls
    assert "speedup" not in found["content"]


def test_a_slice_of_one_arm_is_left_out(tool_format: ToolFormat) -> None:
    prompt = Prompt("a", (9,) * 250)
    slices = Slices(tool_format)
    slices.add_outputs("baseline", prompt, [output(prompt, [70] * 9, [1] * 8, 0.1)])
    slices.add_outputs("speculative", prompt, [output(prompt, [70] * 9, [6, 2], 0.1)])
    assert list(slices.metrics(0)["context"]) == ["<=256"]


def test_answers_of_a_server() -> None:
    """Whole answers, by turn and prompt length; without reported rounds there is no acceptance length."""
    slices, prompt = (
        Slices(),
        ChatPrompt("a/2", (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))),
    )
    times_s = (1.0, 1.5, 2.0)
    sample = RequestSample("0", 0.0, 2.0, times_s, prompt_tokens=700, output_tokens=11)
    slices.add_sample("baseline", prompt, sample)
    drafted = RequestSample("0", 0.0, 1.5, times_s[:2], 700, 11, spec_decode=SpecDecodeStats(4, 6))
    slices.add_sample("speculative", prompt, drafted)
    slices.add_sample("speculative", prompt, RequestSample("1", 0.0, 1.0, (1.0,), 700, 1))
    found = slices.metrics(0)
    assert found["phase"] == {}
    assert found["turn"]["2"] == found["context"]["<=1024"]
    assert found["turn"]["2"]["acceptance_length"] == 2.5
    assert found["turn"]["2"]["output_tps"] == pytest.approx({"baseline": 10.0, "speculative": 20.0})
    only = Slices()
    only.add_sample("server", prompt, sample)
    assert "acceptance_length" not in only.metrics(0)["turn"]["2"]
