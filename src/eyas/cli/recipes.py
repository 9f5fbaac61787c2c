"""The verbs that take a recipe, and the quickstart, which is a recipe that ships with the package."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas import export
from eyas.base.errors import InputError, UsageError
from eyas.bench import tune
from eyas.bench.report_tables import describe_load
from eyas.chat.conversation import Conversation, parse_messages, read_conversation_dir
from eyas.chat.render import highlight_supervised, render
from eyas.cli.deploy import build_jobs, write_configured_manifests
from eyas.cli.setup import open_run, silence_transformers
from eyas.evalsets import FAMILIES, example
from eyas.model.devices import check_one_device
from eyas.recipe import STAGES, Run, load_quickstart_recipe
from eyas.train.distributed import join_process_group, local_device, require_single_process

MULTI_PROCESS_VERBS = ("prompts", "capture", "train")
"""The verbs that several processes may share, the first two by `prompts.world` and `capture.world`."""
OUTPUT_FILES = {
    "run": ("bench", "results.json"),
    "bench": ("bench", "results.json"),
    "eval": ("eval", "acceptance.json"),
}
OUTPUT_FILES |= {"export": ("export", export.PARITY_FILE), "tune": ("tune", tune.FILE)}


def quickstart(out: str, as_json: bool) -> int:
    """Every stage of the shipped recipe on the embedded target, then the table."""
    require_single_process("quickstart")
    return _run_all_stages(Run(load_quickstart_recipe(), Path(out)), as_json)


def run(verb: str, work: Run, as_json: bool, acknowledge: str | None) -> int:
    """One stage, or all of them. acknowledge: who accepts the terms that the licence gate asks about."""
    if verb not in MULTI_PROCESS_VERBS:
        require_single_process(verb)
    if verb not in ("capture", "eval"):
        check_one_device(work.device)
    if acknowledge is not None:
        for name in work.acknowledge_terms(acknowledge):
            print(
                f"{acknowledge} acknowledges the terms of {name}; put down in {work.acknowledgements_file}",
                file=sys.stderr,
            )
    if verb == "run":
        return _run_all_stages(work, as_json)
    silence_transformers()
    if verb == "train":
        with join_process_group() as ranks:
            replace(work, ranks=ranks, device=local_device()).run_stage(verb)
        if not ranks.is_main:
            return 0
    else:
        work.run_stage(verb)
    if as_json:
        print(json.dumps(_read_output(work, verb), indent=2))
    else:
        print(f"{work.directory(verb)} is finished", file=sys.stderr)
        if verb == "bench":
            print(format_results(_read_output(work, verb)))
        if verb == "tune":
            print(tune.format_table(_read_output(work, verb)))
    return 0


def trace_record(
    recipe: str, overrides: Sequence[str], out: str | None, explain: str | None, forget: str | None
) -> int:
    """What became of a record, and before that, if asked, its removal from all that was made from it."""
    from eyas import record_lineage as lineage

    if explain is not None and forget is not None:
        raise UsageError("--explain and --forget", "one of the two", "leave one out")
    work = open_run(recipe, overrides, out)
    lines = lineage.forget_record(work, forget or "") if explain is None else lineage.explain_record(work, explain)
    for line in lines:
        print(line)
    return 0


def plan(work: Run, price: float | None, as_json: bool) -> int:
    """What would run and what it would take."""
    from eyas.plan.plan import build_plan
    from eyas.plan.plan_text import format_plan

    silence_transformers()
    planned = build_plan(work, price)
    print(json.dumps(planned.to_json(), indent=2) if as_json else format_plan(planned))
    return 0


def show_conversation(recipe: str, overrides: Sequence[str], out: str | None, index: int) -> int:
    """A conversation as it is trained on: of the run, if it has answers already, else of the grammar."""
    silence_transformers()
    work = open_run(recipe, overrides, out)
    conversation = _conversation(work, index)
    tokenizer = work.target.tokenizer
    for row in render(conversation, tokenizer):
        turn = "every answer" if row.turn is None else f"answer {row.turn + 1}"
        print(f"{conversation.id}: {len(row.ids)} tokens, {sum(row.loss_mask)} supervised ({turn})", file=sys.stderr)
        print(highlight_supervised(row, tokenizer, color=None if sys.stdout.isatty() else False))
    return 0


def format_results(results: dict[str, Any]) -> str:
    """results.json in a few lines for the terminal."""
    lines = [f"{'task':<14}{'baseline':>12}{'speculative':>13}{'faster':>9}{'accepted':>10}"]
    for name, task in results["tasks"].items():
        tpot = task["tpot_ms"]
        lines.append(
            f"{name:<14}{tpot['baseline']:>9.2f} ms{tpot['speculative']:>10.2f} ms"
            f"{task['speedup']:>8.2f}x{task['acceptance_length']:>10.2f}"
        )
    for point in results["concurrency"]:
        lines.append(
            f"{point['n']:>3} streams    {point['baseline']['output_tps']:>8.0f} tok/s"
            f"{point['speculative']['output_tps']:>8.0f} tok/s{point['speedup_tps']:>8.2f}x"
        )
    # At a rate what comes out is what was sent: the time between tokens tells.
    for point in [*results.get("rates", []), *results.get("ramp", [])]:
        before, after = (point[name]["tpot_ms"]["p50"] for name in ("baseline", "speculative"))
        lines.append(f"{describe_load(point):<16}{before:>7.2f} ms{after:>10.2f} ms{before / after:>8.2f}x")
    lossless = results["lossless"]
    lines.append(
        f"{lossless['identical']} of {lossless['prompts']} answers are the very words of {lossless['reference']} "
        f"({lossless['dtype']})"
    )
    return "\n".join(lines)


def _run_all_stages(work: Run, as_json: bool) -> int:
    build_jobs(work.recipe)  # what no pod could do is said now, not after hours
    silence_transformers()
    started_s = time.monotonic()
    for number, stage in enumerate(STAGES, 1):
        print(f"[{number}/{len(STAGES)}] {stage}", file=sys.stderr)
        work.run_stage(stage)
    results = _read_output(work, "run")
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        print(format_results(results))
        print(f"report: {work.directory('bench') / 'report.html'}")
    for directory in write_configured_manifests(work):
        print(f"deployment: {directory}", file=sys.stderr)
    print(f"done in {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    return 0


def _read_output(work: Run, verb: str) -> dict[str, Any]:
    stage, name = OUTPUT_FILES[verb]
    return json.loads((work.directory(stage) / name).read_bytes())


def _conversation(work: Run, index: int) -> Conversation:
    directory, source = work.directory("respond"), work.recipe.prompts.source or ""
    if index < 0:
        raise InputError(f"--index {index}", "a number from 0 on", "count from 0")
    if any(directory.glob("*.jsonl")):
        for place, conversation in enumerate(read_conversation_dir(directory)):
            if place == index:
                return conversation
        raise InputError(f"no conversation {index} in {directory}", "a smaller number", "lower --index")
    if source.startswith("builtin:"):
        family = list(FAMILIES)[index % len(FAMILIES)]
        one = example(family, source.removeprefix("builtin:"), index // len(FAMILIES))
        return Conversation(one.id, source, parse_messages(one.messages, one.id), {"task": family})
    raise InputError(f"no answered conversation in {directory}", "a finished `eyas respond`", "run it first")
