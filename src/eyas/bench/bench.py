"""`eyas bench RECIPE`: baseline beside speculation, and whether the words are the same."""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.base.errors import InputError
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_file,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
    require_finished,
)
from eyas.base.storage import StoragePath, write_json_atomic
from eyas.bench.bench_prompts import BUILTIN, SYNTHETIC, load_prompts
from eyas.bench.config import BenchConfig
from eyas.bench.draft_baselines import measure_draft_baselines
from eyas.bench.engine_load import measure_load
from eyas.bench.lossless_check import References, compare_with_references, generate_references, read_references
from eyas.bench.machine import redact_location
from eyas.bench.report import write_report
from eyas.bench.results import Measurements, assemble_results
from eyas.bench.single_stream import measure_tasks
from eyas.bench.training_curves import training_points
from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts, tokenize_prompts
from eyas.data.sources.source import HUB
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.evalsets import FAMILIES
from eyas.evaluation.reference_drafters import NgramTable
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target

STAGE = "bench"
RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class BenchInputs:
    """Directories: the head, its acceptance on held-out answers, and the features that name the held-out prompts."""

    head: Path
    evaluation: Path
    features: Path | StoragePath


def build_origin(config: BenchConfig, inputs: BenchInputs, head_digest: str, target: Target) -> StageInputs:
    """What decides what is measured; the figures themselves carry times.

    InputError without a finished evaluation, or with that of another head.
    """
    evaluated = require_finished(inputs.evaluation, "eval")
    if evaluated.parents.get("head") != head_digest:
        raise InputError(
            f"{inputs.evaluation} of a head with digest {evaluated.parents.get('head')}",
            f"that of {inputs.head}, digest {head_digest}",
            "run `eyas eval` again",
        )
    return StageInputs(
        stage=STAGE,
        recipe=digest_json(dataclasses.asdict(config) | {"target_dtype": str(target.model.dtype)} | _digested(config)),
        parents={"head": head_digest, "eval": evaluated.digest, "target": target.digest},
        tokenizer=target.tokenizer_digest,
        template=target.template_digest,
        undigested=(RESULTS_FILE, "report.html"),
    )


def run(
    config: BenchConfig, inputs: BenchInputs, target: Target, story: Mapping[str, Any], out_dir: Path, progress: bool
) -> Provenance:
    """Measure in process, write results.json and report.html. Idempotent. InputError, StageError as the parts.

    story: what the report tells of the stages before (see report.py). The figures carry times: of two equal runs, the
    origin is the same, the bytes are not.
    """
    started_s = time.time()
    stored = read_head(inputs.head, target.model.dtype, target.info.num_layers)
    origin = build_origin(config, inputs, stored.digest, target)
    # Both files carry times, so no digest covers them: that they are there is all that can be asked.
    if is_finished(out_dir, origin) and all((out_dir / name).is_file() for name in origin.undigested):
        return read_provenance(out_dir)
    mark_unfinished(out_dir)
    acceptance = json.loads((inputs.evaluation / "acceptance.json").read_bytes())
    prompts, num_too_long = load_workload(config, inputs.features, target)
    draft = Eagle3Spec.on(target.model.device, stored.head, stored.vocab, config.shape)
    if config.compile and target.model.device.type == "cpu":
        compile_pair(target, draft.head)
    same_words = check_lossless(config, inputs.head, prompts, target, progress)
    stream = measure_tasks(target, draft, prompts, config, progress)
    load = measure_load(target, draft, prompts, config, progress)
    features = Features(inputs.features)
    table = NgramTable(features.texts(features.indices("train")))
    free = measure_draft_baselines(stream.pairs, table, config.depth, config.seed)
    measured = Measurements(stream, load, same_words, free)
    of_run = out_dir.resolve().parent.name  # the directory that has the recipe as it was, wherever it lies
    command = ["eyas", "bench", f"{of_run}/recipe.toml", "--out", of_run]
    found = assemble_results(target, stored.head, measured, command)
    found["bench"] = _public_config(config) | {"too_long": num_too_long}
    found["story"] = dict(story) | {"training": training_points(inputs.head / "metrics.jsonl")}
    write_json_atomic(out_dir / RESULTS_FILE, found)
    write_report(found, acceptance, out_dir / "report.html")
    return finish_stage(out_dir, origin, started_s)


def load_workload(
    config: BenchConfig, features_dir: Path | StoragePath, target: Target
) -> tuple[dict[str, list[Prompt]], int]:
    """Prompts by task: those held out from training, or what `bench.prompts` names; and how many of these are too long.

    InputError where none is left.
    """
    if config.prompts is None:
        return _held_out(config.prompts_per_task, features_dir, target), 0
    limit = config.prompts_per_task if config.prompts in (BUILTIN, SYNTHETIC) else None  # of a file: by task
    asked = load_prompts(config.prompts, limit, config.synthetic_words, config.seed)
    few = {task: some[: config.prompts_per_task] for task, some in asked.items()}
    longest = target.info.max_positions - config.max_tokens
    found, num_too_long = {}, 0
    for task, prompts in tokenize_prompts(few, target.tokenizer).items():
        if fit := [prompt for prompt in prompts if len(prompt.ids) <= longest]:
            found[task] = fit
        num_too_long += len(prompts) - len(fit)
    if not found:
        raise InputError(
            f"prompts of more than {longest} tokens only in {config.prompts}",
            f"one that fits into the target's context with {config.max_tokens} tokens of answer",
            "lower bench.max_tokens, or name other prompts",
        )
    return found, num_too_long


def _held_out(per_task: int, features_dir: Path | StoragePath, target: Target) -> dict[str, list[Prompt]]:
    features = Features(features_dir)
    features.check_target(target.digest)
    found: dict[str, list[Prompt]] = {}
    indices = features.indices("held_out")
    for index, (ids_T, loss_mask_T) in zip(indices, features.texts(indices), strict=True):
        row = features.manifest.rows[index]
        some = found.setdefault(row.task, [])
        if len(some) < per_task:
            # What serving feeds stands before the first generated token.
            some.append(Prompt(row.id, tuple(ids_T[: int(loss_mask_T.int().argmax())].tolist())))
    if not found:
        raise InputError("no held-out prompt to measure with", "one at least", "raise capture.held_out")
    return found


def _digested(config: BenchConfig) -> dict[str, str]:
    """Of a file of prompts its digest: another one is another measurement. InputError where it is not there."""
    source = config.prompts
    if source in (None, BUILTIN, SYNTHETIC) or source.startswith(HUB):
        return {}
    return {"prompts_digest": digest_file(StoragePath(source) if "://" in source else Path(source))}


def _public_config(config: BenchConfig) -> dict[str, Any]:
    """The configuration as a page may have it."""
    told = dataclasses.asdict(config) | {"prompts": redact_location(config.prompts or "held out from training")}
    return told if config.draft_model is None else told | {"draft_model": redact_location(config.draft_model)}


def check_lossless(
    config: BenchConfig, head_dir: Path, prompts: Mapping[str, Sequence[Prompt]], target: Target, progress: bool
) -> dict[str, Any] | None:
    """`lossless` of results.json, in float32 whatever the dtype of the measurement; None where it is switched off."""
    if config.lossless_prompts == 0:
        return None
    exact = target if target.model.dtype == torch.float32 else _reload(target)
    chosen = _lossless_prompts(config, prompts, exact)
    shipped = resolve_target(EMBEDDED).parent / "references.json"
    references: References | None = None
    if config.prompts == BUILTIN and shipped.is_file():
        references = read_references(shipped)
        if references.target_digest != target.digest:
            references = None
    if references is None:
        references = generate_references(
            target.directory, chosen, config.lossless_tokens, progress, target.model.device
        )
    stored = read_head(head_dir, torch.float32, target.info.num_layers)
    draft = Eagle3Spec.on(exact.model.device, stored.head, stored.vocab, config.shape)
    slots = config.lossless_slots
    found = compare_with_references(exact, draft, chosen, references, config.lossless_tokens, slots, progress)
    return found.counts | {"differing": list(found.differing)}


def _lossless_prompts(config: BenchConfig, prompts: Mapping[str, Sequence[Prompt]], target: Target) -> list[Prompt]:
    if config.prompts == BUILTIN:
        per_family = -(-config.lossless_prompts // len(FAMILIES))
        return interleave_tasks(load_eval_prompts(target.tokenizer, per_family))[: config.lossless_prompts]
    return interleave_tasks(prompts)[: config.lossless_prompts]


def _reload(target: Target) -> Target:
    return Target.load(target.info.name, torch.float32, target.aux_layer_ids, target.model.device)
