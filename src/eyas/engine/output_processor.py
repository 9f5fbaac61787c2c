"""Turns the results of launched work into tokens of the request outputs. Called by the engine, on the host."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from eyas.engine.counters import EngineCounters
from eyas.engine.request import DraftTree, FinishReason, RequestOutput, TokenLogprob
from eyas.engine.request_state import RequestState, RunningRequest
from eyas.engine.runner_data import PrefillOutput, RoundOutput, VerifiedTrees
from eyas.engine.scheduler import PrefillWork, RoundWork
from eyas.speculation.acceptance_trace import trace_from_row
from eyas.speculation.batch_load import RoundReport
from eyas.speculation.copy_index import CopyFinder
from eyas.tree.sampling import Logprobs


@dataclass(frozen=True, eq=False)
class NewTokens:
    """The newest tokens of one output: the last `count` of them."""

    request: RunningRequest
    count: int


class OutputProcessor:
    """The part of the engine that appends tokens, detects the end of outputs, and counts."""

    def __init__(self, eos_ids: Sequence[int], counters: EngineCounters, copies: CopyFinder | None = None) -> None:
        self._eos_ids = frozenset(eos_ids)
        self._counters = counters
        self._copies = copies

    def process_prefill(self, work: PrefillWork, out: PrefillOutput) -> list[NewTokens]:
        """Appends the first output token of each request whose prefill is complete."""
        self._counters.count_step(sum(chunk.end - chunk.begin for chunk in work.chunks))
        return self._append_runs(work.members, [[token] for token in out.tokens.tolist()], out.logprobs, True)

    def process_round(
        self, work: RoundWork, out: RoundOutput, seconds: float
    ) -> tuple[list[NewTokens], RoundReport | None]:
        """Appends the accepted tokens of a round to the outputs of its requests.

        Args:
            seconds: what the round took on the device.

        Returns:
            The new tokens, and the report for the policy; None if no policy decided for this round.
        """
        counters, phases = self._counters, out.times
        counters.rounds += 1
        counters.arm = work.decision.arm.name + "+copy" * (work.decision.copies == "beside")
        counters.rounds_by_arm[counters.arm] = counters.rounds_by_arm.get(counters.arm, 0) + 1
        counters.draft_s += phases.draft_s
        counters.verify_s += phases.verify_s
        counters.extend_s += phases.extend_s
        rows = out.read_BC.tolist()
        report = self._report(work, rows, out.num_slots, seconds)
        runs = [row[: row[out.num_slots]] for row in rows]
        copied = self._grade_copies(work, runs)
        new_tokens = self._append_runs(work.members, runs, out.logprobs, False, copied)
        counters.count_step(sum(new.count for new in new_tokens))
        count_by_request = {id(new.request): new.count for new in new_tokens}
        for b, request in enumerate(work.members):
            if id(request) not in count_by_request:
                continue
            output = request.state.output
            if output.request.wants_rounds:
                output.draft_tree = _draft_tree(output, out.trees, b, count_by_request[id(request)])
            if request.kv.req_slot in out.broken_req_slots and output.finish_reason is None:
                self.finish(request.state, "error")
        return new_tokens, report

    def finish(self, state: RequestState, reason: FinishReason) -> RequestOutput:
        """Ends an output and returns it."""
        output = state.output
        output.finish_reason = reason
        if state.text_stream is not None:
            state.text_stream.finish()
            output.text = state.text_stream.text
        self._counters.finished[reason] = self._counters.finished.get(reason, 0) + 1
        return output

    def _report(self, work: RoundWork, rows: Sequence[list[int]], num_slots: int, seconds: float) -> RoundReport | None:
        """Updates the lengths and the acceptance figures of the members of a round. rows: `RoundOutput.read_BC`."""
        traces, num_tokens, arm = [], 0, work.decision.arm
        for b, (request, row) in enumerate(zip(work.members, rows, strict=True)):
            length, was_refused, trace_row = row[num_slots], row[num_slots + 1], row[num_slots + 2 :]
            drafted, copies = bool(work.batch.drafts) and work.batch.drafts[b], work.batch.copies
            missing = work.growths[b] - length
            request.num_unread_rounds -= 1
            request.num_committed += length
            request.max_committed -= missing
            if not drafted and request.num_draft_reads == work.draft_reads[b]:
                request.draft_lag_tokens -= missing
            if request.is_removed:
                continue
            output = request.state.output
            trace = None
            if drafted and copies is None:
                trace = trace_from_row(arm, work.contexts[b], length, trace_row)
                traces.append(trace)
            proposed = max((arm.nodes - 1) * drafted, 0 if copies is None else copies.num_rows_of(b))
            output.accepted.append(length)
            output.offered.append(length - 1 + was_refused)
            output.proposed.append(proposed)
            output.traces.append(trace)
            num_tokens += length
            if proposed:
                self._counters.count_draft(proposed, work.growths[b] - 1, length - 1)
        if not work.decision.load.contexts:
            return None
        # The seconds of a round are not those of its arm if it also read prompts, or if requests asked for the largest
        # tree.
        has_own_seconds = not work.kind.is_max and work.prefill is None
        return RoundReport(work.decision, seconds if has_own_seconds else None, num_tokens, tuple(traces))

    def _grade_copies(self, work: RoundWork, runs: Sequence[list[int]]) -> list[int]:
        """Learns from the copies of a round. Returns, for each member, the number of draft tokens that were copied."""
        copied = [0] * len(runs)
        for b, (request, copy) in enumerate(zip(work.members, work.copies, strict=False)):
            if copy is not None and self._copies is not None and not request.is_removed:
                hits = self._copies.grade(copy, request.state.token_ids, runs[b])
                copied[b] = min(hits, len(runs[b]) - 1) if work.batch.copies is not None else 0
        return copied

    def _append_runs(
        self,
        members: Sequence[RunningRequest],
        runs: Sequence[list[int]],
        logprobs: Logprobs | None,
        is_first: bool,
        copied: Sequence[int] = (),
    ) -> list[NewTokens]:
        new_tokens = []
        width = 0 if logprobs is None else len(logprobs.token_logprobs_T) // len(members)
        for b, (request, run) in enumerate(zip(members, runs, strict=True)):
            if request.is_removed:
                continue
            count = self._append(request, run, is_first, copied[b] if copied else 0)
            self._counters.output_tokens += count
            self._counters.copied_tokens += min(count, copied[b]) if copied else 0
            new_tokens.append(NewTokens(request, count))
            if logprobs is not None:
                _add_logprobs(request.state.output, logprobs, b * width, count)
        return new_tokens

    def _append(self, request: RunningRequest, run: Sequence[int], is_first: bool, num_copied: int) -> int:
        """Appends tokens up to the end of the output. Returns the number of appended tokens.

        Args:
            request: the request.
            run: the tokens.
            is_first: True for the token of a prefill.
            num_copied: the number of first tokens that were copied.
        """
        state, output = request.state, request.state.output
        now_s = time.perf_counter() - state.added_s
        count = 0
        for index, token in enumerate(run):
            output.token_ids.append(token)
            output.is_draft.append(index < len(run) - 1)
            output.is_copy.append(index < num_copied)
            output.token_times_s.append(now_s)
            state.token_ids.append(token)
            count += 1
            reason = self._finish_reason(state, token)
            if state.text_stream is not None:
                output.text_ends.append(len(state.text_stream.text))
            if reason is not None:
                self.finish(state, reason)
                break
        request.max_missing -= count - 1
        if not is_first and count < len(run):  # the output ended inside the path: the target refused nothing there
            output.accepted[-1] = count
            output.offered[-1] = count - 1
        if state.text_stream is not None:
            output.text = state.text_stream.text
        return count

    def _finish_reason(self, state: RequestState, token: int) -> FinishReason | None:
        stop = state.output.request.stop
        if token in stop.ids or (token in self._eos_ids and not stop.ignore_eos):
            if state.text_stream is not None and token in state.text_stream.shown_ids:
                state.text_stream.push(token)  # the end of a tool call may end the output too
            return "stop"
        if state.text_stream is not None and state.text_stream.push(token):
            return "stop"
        return "length" if len(state.output.token_ids) >= state.max_new_tokens else None


def _add_logprobs(output: RequestOutput, logprobs: Logprobs, begin: int, count: int) -> None:
    """Appends the log-probabilities of the newest `count` tokens. begin: the row of the first of them in `logprobs`."""
    num_top = output.request.logprobs
    if num_top is None:
        return
    for row, token in enumerate(output.token_ids[len(output.token_ids) - count :], begin):
        ids, values = logprobs.top_ids_TN[row, :num_top].tolist(), logprobs.top_TN[row, :num_top].tolist()
        top = tuple(zip(ids, values, strict=True))
        output.logprobs.append(TokenLogprob(token, float(logprobs.token_logprobs_T[row]), top))


def _draft_tree(output: RequestOutput, trees: VerifiedTrees | None, row: int, count: int) -> DraftTree | None:
    """Returns the tree that gave the newest `count` tokens, without unverified nodes; None if nothing was drafted."""
    nodes = [] if trees is None else trees.valid_BM[row].nonzero()[:, 0].tolist()
    if trees is None or len(nodes) == 1:
        return None
    tokens, parents = trees.tokens_BM[row].tolist(), trees.parents_BM[row].tolist()
    index = {node: i for i, node in enumerate(nodes)}
    num_drafted = sum(output.is_draft[-count:])  # an output that ends inside the path has no more of it
    path = tuple(index[node] for node in trees.nodes_BS[row, 1 : 1 + num_drafted].tolist())
    return DraftTree(tuple(tokens[node] for node in nodes), tuple(index[parents[node]] for node in nodes), path)
