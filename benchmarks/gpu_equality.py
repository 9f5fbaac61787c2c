"""Compares the engine's greedy answers with those of transformers on the same device, for every arm and both loops.

    python benchmarks/gpu_equality.py [--tiny] [--soak SECONDS]

The embedded pair in float32, with TF32 off. The reference is transformers' own `generate` with its own attention, left
padded, so it shares no kernel with the engine. The arms are those of `eyas serve`, then all arms in turn with drafts
for some requests only, then the budget. Where an answer differs, the note has the difference of the reference's logits
at the first wrong token: far below 0.001 it is a tie that rounding decides.

--soak sends greedy, sampled and cancelled requests for some time, and compares the greedy answers with the reference.
"""

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from engine_checks import check_engine
from equal_answers import LOOPS, ArmsInTurn, Comparison, generate_answers
from gpu_bandwidth import find_device
from result_rows import Row, print_rows

from eyas.bench.lossless_check import load_reference_model, read_references
from eyas.bench.workload import interleave_tasks, load_eval_prompts
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.engine.loops import overlap_loop
from eyas.engine.request import Request, RequestOutput
from eyas.formats.head_dir import read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.recipe import resolve_head
from eyas.speculation.arms import default_arms
from eyas.speculation.batch_load import FixedArm, Policy
from eyas.tree.sampling import SamplingParams

PER_FAMILY, PROMPTS, MAX_TOKENS = 30, 200, 48
TINY_PROMPTS, TINY_TOKENS = 3, 6
SLOTS = 32
SOAK_GROWTH = 0.01  # of the memory, from the first tenth of a soak to its end
FIRST_ARMS = ("off", "tree16", "chain5")  # compared first, in case the time ends


def load_comparison(device: torch.device, tiny: bool) -> Comparison:
    """Loads target, head and reference model in float32, and generates the reference answers."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    arms, max_tokens = default_arms(), TINY_TOKENS if tiny else MAX_TOKENS
    stored = read_head(resolve_head(EMBEDDED), torch.float32)
    target = Target.load(EMBEDDED, torch.float32, stored.config.aux_layer_ids, device)
    model = load_reference_model(resolve_target(EMBEDDED), torch.float32, device)
    found = interleave_tasks(load_eval_prompts(target.tokenizer, 1 if tiny else PER_FAMILY))
    # The shortest prompts are enough for a test of the script.
    prompts = sorted(found, key=lambda one: len(one.ids))[:TINY_PROMPTS] if tiny else found[:PROMPTS]
    expected = generate_answers(model, prompts, max_tokens)
    shape = max((arm.shape for arm in arms if arm.shape is not None), key=lambda shape: shape.nodes)
    draft = replace(Eagle3Spec.on(device, stored, shape), arms=arms)
    if device.type == "cuda":
        compile_pair(target, draft.head)
    context = max(len(prompt.ids) for prompt in prompts) + max_tokens
    engine = Engine(target, [draft], min(SLOTS, len(prompts)), context)
    return Comparison(engine, model, prompts, max_tokens, expected)


def list_policies(engine: Engine, tiny: bool) -> Iterator[tuple[str, Callable[[], Policy]]]:
    """Yields the name of each policy and a function that makes it. Every loop gets a new one."""
    arms = default_arms()
    for arm in sorted(arms, key=lambda arm: arm.name not in FIRST_ARMS):
        if arm.name in FIRST_ARMS or not tiny:
            yield arm.name, lambda arm=arm: FixedArm(arm)
    yield "arms in turn", lambda: ArmsInTurn(arms)
    if not tiny:  # the costs of all arms are measured first
        yield "auto", lambda: build_budget(engine, arms, None)


def measure_equality(device: torch.device, tiny: bool) -> Iterator[Row]:
    """Yields the number of equal answers of each arm and loop, and the CUDA graphs that ran."""
    comparison = load_comparison(device, tiny)
    yield compare_reference(comparison)
    for name, make_policy in list_policies(comparison.engine, tiny):
        for loop in LOOPS:
            yield comparison.compare(f"equal answers: {name}, {loop} loop", comparison.answer(loop, make_policy()))
    check_engine(comparison.engine)
    graphs = comparison.engine.runner.graphs
    if graphs is not None:
        reason = graphs.disabled_reason
        yield Row("CUDA graphs of rounds", len(graphs), "some, all captured", reason is None and len(graphs) > 0,
                  note=reason or "")  # fmt: skip


def compare_reference(comparison: Comparison) -> Row:
    """Returns the row of the reference answers against those that transformers gave on a CPU, one prompt at a time."""
    recorded = read_references(resolve_target(EMBEDDED).parent / "references.json").answers
    some = [prompt.id for prompt in comparison.prompts if prompt.id in recorded]
    equal = sum(list(recorded[name][: comparison.max_tokens]) == comparison.expected[name] for name in some)
    return Row(f"reference equal to that of a CPU, of {len(some)}", equal, "told", True)


class SoakTraffic:
    """A source of random requests for a loop, until the time ends."""

    def __init__(self, comparison: Comparison, seconds: float, seed: int) -> None:
        self.ends_s = time.perf_counter() + seconds
        self.sent = 0
        self._latest: deque[str] = deque(maxlen=comparison.engine.max_running)
        self._comparison = comparison
        self._random = random.Random(seed)

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Adds requests until the engine is full, and cancels one at times. `may_wait` has no effect."""
        if time.perf_counter() > self.ends_s:
            return False
        while engine.num_free > 0:
            prompt = self._random.choice(self._comparison.prompts)
            greedy = self._random.random() < 0.5
            sampling = SamplingParams() if greedy else SamplingParams(self._random.uniform(0.3, 1.2), top_p=0.95)
            name = f"{prompt.id} {'greedy' if greedy else 'sampled'} {self.sent}"
            engine.add(Request(name, prompt.ids, self._comparison.max_tokens, sampling, seed=self.sent))
            self._latest.append(name)
            self.sent += 1
        if self._random.random() < 0.01:
            engine.cancel(self._random.choice(self._latest))
        return True

    def is_wrong(self, output: RequestOutput) -> bool:
        """Returns True if a finished greedy answer is not the reference."""
        prompt, kind, _ = output.request.id.rsplit(" ", 2)
        return kind == "greedy" and output.token_ids != self._comparison.expected[prompt]


def measure_soak(device: torch.device, tiny: bool, seconds: float, seed: int = 0) -> Iterator[Row]:
    """Yields the rows of a soak: requests, wrong greedy answers, and growth of the memory. `seed` is the traffic's."""
    comparison = load_comparison(device, tiny)
    engine = comparison.engine
    engine.policies[0] = ArmsInTurn(default_arms())
    traffic, wrong, finished = SoakTraffic(comparison, seconds, seed), 0, 0
    began_s, first_bytes = time.perf_counter(), 0
    for output in overlap_loop(engine, traffic):
        wrong, finished = wrong + traffic.is_wrong(output), finished + 1
        if time.perf_counter() < began_s + seconds / 10 and device.type == "cuda":
            first_bytes = torch.cuda.memory_reserved(device)
    check_engine(engine)
    name = f"soak of {seconds:.0f} s"
    yield Row(f"{name}: finished requests of {traffic.sent}", finished, "some", finished > 0)
    yield Row(f"{name}: wrong greedy answers", wrong, "0", wrong == 0)
    yield Row(f"{name}: running and waiting requests at its end", 0 if engine.is_idle else 1, "0", engine.is_idle)
    if first_bytes:
        grown = torch.cuda.memory_reserved(device) / first_bytes - 1
        yield Row(f"{name}: growth of GPU memory", round(grown, 4), f"below {SOAK_GROWTH:g}", grown < SOAK_GROWTH)


def main() -> int:
    """Prints the rows. Returns 1 if an answer differs, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--soak", type=float, metavar="SECONDS")
    parsed = parser.parse_args()
    if parsed.soak is not None:
        return print_rows(measure_soak(find_device(), parsed.tiny, parsed.soak))
    return print_rows(measure_equality(find_device(), parsed.tiny))


if __name__ == "__main__":
    sys.exit(main())
