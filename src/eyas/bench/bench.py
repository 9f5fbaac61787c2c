"""The stage of `eyas bench RECIPE`: measures baseline and speculation in this process and writes the report."""

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.base import provenance
from eyas.base.errors import InputError
from eyas.base.provenance import Provenance, StageInputs
from eyas.base.storage import AnyPath, StoragePath
from eyas.bench.config import BenchConfig
from eyas.bench.engine_load import measure_load
from eyas.bench.lossless_check import References, compare_with_references, generate_references, read_references
from eyas.bench.report import write_results
from eyas.bench.results import RESULTS_FILE, assemble_results, redact_location
from eyas.bench.single_stream import measure_draft_baselines, measure_tasks
from eyas.bench.workload import BUILTIN, MADE_PROMPTS, Workload, interleave_tasks, load_eval_prompts, load_workload
from eyas.data.sources.source import HUB
from eyas.drafters.head_spec import HeadSpec
from eyas.drafters.heads import draft_with
from eyas.evalsets import FAMILIES
from eyas.evaluation.reference_drafters import NgramTable
from eyas.features.reader import Features
from eyas.formats.head_dir import ACCEPTANCE_FILE, read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.train.training_metrics import read_training_curve

STAGE = "bench"


@dataclass(frozen=True)
class BenchInputs:
    """The directories that `eyas bench` reads.

    Attributes:
        head: The head directory.
        evaluation: The directory of `eyas eval`.
        features: The features directory. Its held-out rows give the default prompts.
    """

    head: Path
    evaluation: Path
    features: AnyPath


def build_origin(config: BenchConfig, inputs: BenchInputs, head_digest: str, target: Target) -> StageInputs:
    """Returns the settings and input digests that decide what is measured.

    Raises:
        InputError: The evaluation is unfinished or of another head.
    """
    evaluation = provenance.require_finished(inputs.evaluation, "eval")
    if evaluation.parents.get("head") != head_digest:
        problem = f"{inputs.evaluation} belongs to a head with digest {evaluation.parents.get('head')}"
        raise InputError(f"{problem}, not {head_digest}", "Run `eyas eval` again")
    decisive = dataclasses.asdict(config) | {"target_dtype": str(target.model.dtype)} | _prompts_digest(config)
    recipe, texts = provenance.digest_json(decisive), (target.tokenizer_digest, target.template_digest)
    parents = {"head": head_digest, "eval": evaluation.digest, "target": target.digest}
    return StageInputs(STAGE, recipe, parents, *texts, undigested=(RESULTS_FILE, "report.html"))


def run(
    config: BenchConfig, inputs: BenchInputs, target: Target, story: Mapping[str, Any], out_dir: Path, progress: bool
) -> Provenance:
    """Writes results.json and report.html. Does nothing if both files of this measurement exist.

    Two equal runs write different bytes, because the files contain times.

    Args:
        config: The keys `bench.*`.
        inputs: The directories of earlier stages.
        target: The loaded target.
        story: Figures of earlier stages for the report, such as the number of prompts; the key `story` of results.json.
        out_dir: The directory of results.json and report.html.
        progress: Shows progress bars.

    Raises:
        InputError: An input is missing or does not fit.
        StageError: Nothing could be measured, or the files cannot be written.
    """
    started_s = time.time()
    stored = read_head(inputs.head, target.model.dtype, target.info.num_layers)
    origin = build_origin(config, inputs, stored.digest, target)
    # No digest covers the two files, since they contain times; they only have to exist.
    if provenance.is_finished(out_dir, origin) and all((out_dir / name).is_file() for name in origin.undigested):
        return provenance.read_provenance(out_dir)
    provenance.mark_unfinished(out_dir)
    acceptance = json.loads((inputs.evaluation / ACCEPTANCE_FILE).read_bytes())
    stored = dataclasses.replace(stored, acceptance=acceptance)
    workload = load_workload(config, inputs.features, target)
    draft = draft_with(target.model.device, stored, config.shape)
    run_name = out_dir.resolve().parent.name  # the run directory holds the resolved recipe
    command = ["eyas", "bench", f"{run_name}/recipe.toml", "--out", run_name]
    features = Features(inputs.features)
    table = NgramTable(features.texts(features.indices("train")))
    results = _measure(config, inputs.head, (target, draft), workload, table, command, progress)
    results["story"] = dict(story) | {"training": read_training_curve(inputs.head / "metrics.jsonl")}
    write_results(results, acceptance, out_dir)
    return provenance.finish_stage(out_dir, origin, started_s)


def measure_pair(
    config: BenchConfig, head_dir: Path, target: Target, draft: HeadSpec, out_dir: Path, progress: bool
) -> dict[str, Any]:
    """Measures a target and its head without a recipe, and writes results.json and report.html.

    The drafts of an n-gram table of the training answers are not measured, because there is no training here.

    Args:
        config: The keys `bench.*`. `prompts` is set.
        head_dir: The directory of the head.
        target: The loaded target.
        draft: The loaded head.
        out_dir: The directory of results.json and report.html.
        progress: Shows progress bars.

    Returns:
        The content of results.json.

    Raises:
        InputError: The prompts are missing or do not fit.
        StageError: Nothing could be measured, or the files cannot be written.
    """
    results = _measure(config, head_dir, (target, draft), load_workload(config, None, target), None, sys.argv, progress)
    write_results(results, None, out_dir)
    return results


def _measure(
    config: BenchConfig,
    head_dir: Path,
    pair: tuple[Target, HeadSpec],
    workload: tuple[Workload, int],
    ngrams: NgramTable | None,
    command: Sequence[str],
    progress: bool,
) -> dict[str, Any]:
    """Runs all measurements of a pair and returns the content of results.json.

    Args:
        config: The keys `bench.*`.
        head_dir: The directory of the head.
        pair: The loaded target and head.
        workload: The prompts by task, and the number of prompts that are too long.
        ngrams: The n-grams of the training answers, for a reference drafter; None to leave it out.
        command: The command line for the report.
        progress: Shows progress bars.
    """
    (target, draft), (prompts, num_too_long) = pair, workload
    if config.compile:
        compile_pair(target, draft.head)
    lossless = check_lossless(config, head_dir, prompts, target, progress)
    stream = measure_tasks(target, draft, prompts, config, progress)
    load = measure_load(target, draft, prompts, config, progress)
    if ngrams is not None:
        for task, references in measure_draft_baselines(stream.pairs, ngrams, config.depth, config.seed).items():
            stream.tasks[task]["references"] = references
    bench = _public_config(config) | {"too_long": num_too_long}
    return assemble_results(target, draft.head, stream, load, lossless, command) | {"bench": bench}


def check_lossless(
    config: BenchConfig, head_dir: Path, prompts: Workload, target: Target, progress: bool
) -> dict[str, Any] | None:
    """Runs the lossless check in float32. Returns `lossless` of results.json; None if `lossless_prompts` is 0."""
    if config.lossless_prompts == 0:
        return None
    if target.model.dtype != torch.float32:
        target = Target.load(target.directory, torch.float32, target.aux_layer_ids, target.model.device)
    if config.prompts == BUILTIN:
        prompts = load_eval_prompts(target.tokenizer, -(-config.lossless_prompts // len(FAMILIES)))
    chosen = interleave_tasks(prompts)[: config.lossless_prompts]
    references = _shipped_references(target) if config.prompts == BUILTIN else None
    slots, max_tokens = config.lossless_slots, config.lossless_tokens
    if references is None:
        references = generate_references(target.directory, chosen, max_tokens, progress, target.model.device)
    draft = draft_with(target.model.device, read_head(head_dir, torch.float32, target.info.num_layers), config.shape)
    return compare_with_references(target, draft, chosen, references, max_tokens, slots, progress)


def _shipped_references(target: Target) -> References | None:
    """Returns the reference answers that ship with the embedded target; None for another target."""
    path = resolve_target(EMBEDDED).parent / "references.json"
    references = read_references(path) if path.is_file() else None
    return references if references is not None and references.target_digest == target.digest else None


def _prompts_digest(config: BenchConfig) -> dict[str, str]:
    """Returns the digest of the prompts file under `prompts_digest`; {} if `bench.prompts` is not a file.

    Raises InputError if the file is missing.
    """
    source = config.prompts
    if source in (None, *MADE_PROMPTS) or source.startswith(HUB):
        return {}
    return {"prompts_digest": provenance.digest_file(StoragePath(source) if "://" in source else Path(source))}


def _public_config(config: BenchConfig) -> dict[str, Any]:
    """Returns the configuration as JSON, without directories of this machine."""
    prompts, draft_model = config.prompts or "held out from training", config.draft_model
    public = {"prompts": redact_location(prompts), "draft_model": draft_model and redact_location(draft_model)}
    return dataclasses.asdict(config) | public
