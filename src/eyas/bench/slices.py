"""Measures speed and acceptance by turn, by context and by phase, from the answers at one stream.

    turn       the number of the answer in its conversation: "1", "2", "3-5" or "6+"
    context    the position at which a round begins: "<=256", "<=512", "<=1024", ...
    phase      the part of the answer that a round drafts: thoughts, content or tool_call

Every figure is a ratio of sums over rounds, so long answers have more weight. The intervals are bootstraps over
conversations, because the answers of a conversation are not independent. Over HTTP only whole answers are known: their
context is the prompt's length, and there are no phases.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from eyas.bench.request_metrics import BASELINE, SPECULATIVE, RequestSample
from eyas.bench.turns import ChatPrompt, conversation_id
from eyas.bench.workload import Prompt
from eyas.chat.tool_format import ToolFormat
from eyas.engine.request import RequestOutput
from eyas.tree.acceptance_length import context_label, turn_label
from eyas.tree.intervals import ratio_interval

TOKENS, ROUNDS, SECONDS = range(3)
AXES = ("turn", "context", "phase")
Asked = Prompt | ChatPrompt
PHASES = ("thoughts", "content", "tool_call")


class Slices:
    """The tokens, rounds and seconds of each arm, by axis and label, summed over each conversation."""

    def __init__(self, tool_format: ToolFormat | None = None) -> None:
        """Sets the format of the target's answers, which `add_outputs` needs."""
        self._sums: dict[tuple[str, str], dict[str, dict[str, np.ndarray]]] = {}
        self._tool_format = tool_format

    def add(self, arm: str, prompt: Asked, labels: Mapping[str, str], counts: tuple[int, int, float]) -> None:
        """Adds tokens, rounds and seconds of an answer. labels: the further axes -> label."""
        for label in [("turn", turn_label(prompt.turn)), *labels.items()]:
            arms = self._sums.setdefault(label, {}).setdefault(conversation_id(prompt.id, prompt.turn), {})
            arms[arm] = arms.get(arm, 0.0) + np.array(counts)

    def add_outputs(self, arm: str, prompt: Prompt, outputs: Sequence[RequestOutput]) -> None:
        """Adds each round of the answers to a prompt. The prefill with the first token is not a round."""
        assert self._tool_format is not None
        for output in outputs:
            phases, times_s = self._tool_format.phases(prompt.ids, output.token_ids), output.token_times_s
            for begin, end in pairwise(accumulate(output.accepted, initial=1)):
                labels = {"context": context_label(len(prompt.ids) + begin - 1), "phase": phases[begin]}
                self.add(arm, prompt, labels, (end - begin, 1, times_s[end - 1] - times_s[begin - 1]))

    def add_sample(self, arm: str, prompt: ChatPrompt, sample: RequestSample) -> None:
        """Adds an answer of a server. Without acceptance in the answer, its rounds are not counted."""
        if sample.tpot_s and sample.output_tokens:  # 0 s: all tokens came at once
            tokens = sample.output_tokens - 1
            labels = {} if sample.prompt_tokens is None else {"context": context_label(sample.prompt_tokens)}
            rounds = 0 if sample.spec_decode is None else sample.spec_decode.num_steps
            self.add(arm, prompt, labels, (tokens, rounds, tokens * sample.tpot_s))

    def metrics(self, seed: int, bytes_per_token: Mapping[str, int] | None = None) -> dict[str, dict[str, Any]]:
        """Returns the key `slices` of results.json: axis -> label -> figures, in the order of the labels.

        Args:
            seed: The seed of the bootstrap.
            bytes_per_token: Arm -> bytes of a token in memory; None if they are unknown.
        """
        arms = {arm for table in self._sums.values() for one in table.values() for arm in one}
        found: dict[str, dict[str, Any]] = {axis: {} for axis in AXES}
        for (axis, label), table in sorted(self._sums.items(), key=lambda entry: _order(entry[0][1])):
            # A slice that only one arm reached says nothing about the other.
            if complete := [one for one in table.values() if one.keys() == arms]:
                sums = {arm: np.array([one[arm] for one in complete]) for arm in sorted(arms)}
                found[axis][label] = _figures(sums, seed)
                if axis == "context" and bytes_per_token is not None:
                    last = int(label.removeprefix("<="))
                    found[axis][label]["kv_bytes"] = {arm: last * count for arm, count in bytes_per_token.items()}
        return found


def _figures(sums: Mapping[str, np.ndarray], seed: int) -> dict[str, Any]:
    """Returns the figures of one slice. sums: arm -> tokens, rounds and seconds of each conversation [N, 3]."""
    with_head = sums.get(SPECULATIVE, next(iter(sums.values()))).T
    rates = {arm: float(table[:, TOKENS].sum() / table[:, SECONDS].sum()) for arm, table in sums.items()}
    figures: dict[str, Any] = {
        "conversations": with_head.shape[1],
        "tokens": int(with_head[TOKENS].sum()),
        "output_tps": rates,
    }
    if with_head[ROUNDS].all():
        interval = ratio_interval(with_head[TOKENS], with_head[ROUNDS], seed)
        length = float(with_head[TOKENS].sum() / with_head[ROUNDS].sum())
        figures |= {"acceptance_length": length, "ci95": [interval.low, interval.high]}
    if BASELINE in sums:
        before = sums[BASELINE].T
        interval = ratio_interval(with_head[TOKENS], with_head[SECONDS], seed, (before[TOKENS], before[SECONDS]))
        figures["speedup"] = rates[SPECULATIVE] / rates[BASELINE]
        figures["speedup_ci95"] = [interval.low, interval.high]
    return figures


def _order(label: str) -> int:
    return PHASES.index(label) if label in PHASES else int(label.strip("<=+").split("-")[0])
