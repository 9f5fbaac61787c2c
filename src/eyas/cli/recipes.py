"""The verbs that run the stages of a recipe, and `eyas quickstart`, `eyas plan`, `eyas show` and `eyas doctor`."""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas import export
from eyas.base.errors import InputError
from eyas.base.terminal import has_colors
from eyas.bench import tune
from eyas.bench.report_tables import MISSING, describe_load
from eyas.bench.results import RESULTS_FILE, read_number
from eyas.chat.conversation import Conversation, parse_messages, read_conversation_dir
from eyas.chat.render import highlight_supervised, render
from eyas.cli.deploy import build_jobs, render_template, write_configured_manifests
from eyas.data.prompts import LEDGER_FILE
from eyas.evalsets import FAMILIES, example
from eyas.formats.head_dir import ACCEPTANCE_FILE
from eyas.formats.sglang_vllm import sglang_flags, vllm_flags
from eyas.model.devices import check_one_device
from eyas.plan.placement import choose_device
from eyas.recipe import STAGES, Run, load_quickstart_recipe, open_run
from eyas.train.distributed import join_process_group, local_device, require_single_process

MULTI_PROCESS_VERBS = ("prompts", "capture", "train")
"""The verbs that several processes can run together. prompts.world and capture.world set their number."""
OUTPUT_FILES = {"bench": RESULTS_FILE, "eval": ACCEPTANCE_FILE, "prompts": LEDGER_FILE}
OUTPUT_FILES |= {"export": export.PARITY_FILE, "tune": tune.FILE}
TABLES = {"bench": "results.txt.jinja", "tune": "tune.txt.jinja"}
"""The templates of the tables that some verbs print."""


def quickstart(parsed: argparse.Namespace) -> int:
    """Runs `eyas quickstart`: all stages of the recipe that ships with eyas."""
    require_single_process("quickstart")
    return _run_all_stages(Run(load_quickstart_recipe(), Path(parsed.out)), parsed.json)


def run_verb(parsed: argparse.Namespace) -> int:
    """Runs the stage of the verb, or all stages for `eyas run`."""
    verb = parsed.verb
    run = open_run(parsed.recipe, parsed.overrides, parsed.out, parsed.device)
    if verb not in MULTI_PROCESS_VERBS:
        require_single_process(verb)
    if verb not in ("capture", "eval"):
        check_one_device(run.device)
    if parsed.acknowledge is not None:
        for name in run.acknowledge_terms(parsed.acknowledge):
            recorded = f"recorded in {run.acknowledgements_file}"
            print(f"{parsed.acknowledge} acknowledges the terms of {name}; {recorded}", file=sys.stderr)
    if verb == "capture":
        run = replace(run, device=choose_device(run.recipe, run.device))
    if verb == "run":
        return _run_all_stages(run, parsed.json)
    if verb == "train":
        with join_process_group() as ranks:
            replace(run, ranks=ranks, device=local_device()).run_stage(verb)
        if not ranks.is_main:
            return 0
    else:
        run.run_stage(verb)
    if parsed.json:
        print(json.dumps(_read_output(run, verb), indent=2))
        return 0
    print(f"{run.directory(verb)} is finished", file=sys.stderr)
    if verb in TABLES:
        print(format_results(_read_output(run, verb), verb))
    return 0


def plan(parsed: argparse.Namespace) -> int:
    """Runs `eyas plan`: prints the stages that would run, and their cost."""
    from eyas.plan.plan import build_plan
    from eyas.plan.plan_text import format_plan

    built = build_plan(open_run(parsed.recipe, parsed.overrides, parsed.out), parsed.price)
    print(json.dumps(built.to_json(), indent=2) if parsed.json else format_plan(built))
    return 0


def show(parsed: argparse.Namespace) -> int:
    """Runs `eyas show`: prints the training rows of a conversation."""
    run = open_run(parsed.recipe, parsed.overrides, parsed.out)
    conversation = _find_conversation(run, parsed.index)
    tokenizer = run.target.tokenizer
    for row in render(conversation, tokenizer):
        turn = "all answers" if row.turn is None else f"answer {row.turn + 1}"
        counts = f"{len(row.ids)} tokens, {sum(row.loss_mask)} supervised"
        print(f"{conversation.id}: {counts} ({turn})", file=sys.stderr)
        print(highlight_supervised(row, tokenizer, has_colors(sys.stdout)))
    return 0


def doctor(parsed: argparse.Namespace) -> int:
    """Runs `eyas doctor`: prints the findings, misfits on stderr. Returns 2 if there is a misfit, else 0."""
    from eyas.doctor import examine, examine_machine

    findings = [*examine(parsed.path, parsed.target), examine_machine()]
    misfits = [finding for finding in findings if finding.weight == "misfit"]
    for finding in findings:
        if finding not in misfits:
            print(finding)
    for finding in misfits:
        print(f"eyas: {finding}", file=sys.stderr)
    return 2 if misfits else 0


def format_results(results: dict[str, Any], verb: str = "bench") -> str:
    """Returns results.json as a table for a terminal; with the verb "tune" tune.json, with flags of other engines."""
    return render_table(TABLES[verb], results=results)


def render_table(template: str, **values: Any) -> str:
    """Returns a text template of this package, filled with values. It can use the functions that read results."""
    functions = {"describe_load": describe_load, "read_number": read_number, "MISSING": MISSING}
    return render_template(template, sglang_flags=sglang_flags, vllm_flags=vllm_flags, **functions, **values)


def _run_all_stages(run: Run, as_json: bool) -> int:
    build_jobs(run.recipe)  # so that deploy keys that no pod can run with are reported now, not after hours
    started_s = time.monotonic()
    for number, stage in enumerate(STAGES, 1):
        print(f"[{number}/{len(STAGES)}] {stage}", file=sys.stderr)
        run.run_stage(stage)
    results = _read_output(run, "bench")
    report = f"report: {run.directory('bench') / 'report.html'}"
    print(json.dumps(results, indent=2) if as_json else f"{format_results(results)}\n{report}")
    for directory in write_configured_manifests(run):
        print(f"deployment: {directory}", file=sys.stderr)
    print(f"done in {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    return 0


def _read_output(run: Run, verb: str) -> dict[str, Any]:
    return json.loads((run.directory(verb) / OUTPUT_FILES[verb]).read_bytes())


def _find_conversation(run: Run, index: int) -> Conversation:
    """Returns conversation `index` of a run, from 0. Before `eyas respond` it takes an example of a builtin: source."""
    directory, source = run.directory("respond"), run.recipe.prompts.source or ""
    if index < 0:
        raise InputError(f"--index {index} is negative", "Use a number of at least 0")
    if any(directory.glob("*.jsonl")):
        for number, conversation in enumerate(read_conversation_dir(directory)):
            if number == index:
                return conversation
        raise InputError(f"{directory} has no conversation {index}", "Use a smaller --index")
    if source.startswith("builtin:"):
        family = list(FAMILIES)[index % len(FAMILIES)]
        made = example(family, source.removeprefix("builtin:"), index // len(FAMILIES))
        return Conversation(made.id, source, parse_messages(made.messages, made.id), {"task": family})
    raise InputError(f"{directory} has no conversations yet", "Run `eyas respond` with this recipe")
