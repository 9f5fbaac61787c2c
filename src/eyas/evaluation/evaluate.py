"""Acceptance of a head on held-out answers, with the tree and the verification of serving. T tokens, W vocabulary."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from eyas.base.errors import InputError, UsageError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
)
from eyas.base.storage import StoragePath, write_json_atomic
from eyas.evaluation.head_drafter import HeadDrafter, build_embed
from eyas.evaluation.reference_drafters import NgramDrafter, NgramTable, PromptLookup
from eyas.evaluation.replay import ReplayDrafter, TextRounds, replay_rows
from eyas.evaluation.resample import resample_answers
from eyas.evaluation.vocab_report import measure_vocab_sizes
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import StoredHead, read_head
from eyas.model.devices import DTYPES
from eyas.model.target import Target
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape
from eyas.tree.stats import AcceptanceStats, context_label, summarize

STAGE = "eval"
SCHEMA = 1
CONFIDENT_PROB = 0.9  # a greedy position below this top-1 probability is uncertain


@dataclass(frozen=True)
class EvalConfig:
    """depth, top_k, nodes: the tree (see tree.shape). batch_tokens: padded tokens of the texts walked together.

    temperature: None walks the held-out answers as they were drawn; with a number the target first answers their
    prompts anew, at that temperature, in max_tokens at most (train.anew). seed: of the bootstrap, and of these answers.
    """

    depth: int = 6
    top_k: int = 4
    nodes: int = 16
    temperature: float | None = None
    max_tokens: int = 256
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: int = 16384
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.shape
        _ = self.sampling
        for name in ("batch_tokens", "max_tokens"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"eval.{name} = {value}", "at least 1", f"raise eval.{name}")

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.depth, self.top_k, self.nodes)

    @property
    def sampling(self) -> SamplingParams | None:
        """How answers are drawn anew; None: they are not."""
        return None if self.temperature is None else SamplingParams(self.temperature)


@dataclass(frozen=True)
class EvalInputs:
    """Directories. The rows of split "held_out" of `features` are walked; `training` holds the training answers for the
    4-gram table (None: those of `features`)."""

    head: Path
    features: Path | StoragePath
    training: Path | StoragePath | None = None


def build_origin(
    config: EvalConfig, stored: StoredHead, data: tuple[Features, Features], target: Target
) -> StageInputs:
    """What decides the figures; data = (rows to walk, rows for the 4-gram table)."""
    features, training = data
    return StageInputs(
        stage=STAGE,
        recipe=digest_json(dataclasses.asdict(config) | {"target_dtype": str(target.model.dtype)}),
        parents={
            "head": stored.digest,
            "features": features.digest,
            "training": training.digest,
            "target": target.digest,
        },
        tokenizer=features.manifest.tokenizer_digest,
        template=features.manifest.template_digest,
    )


def run(config: EvalConfig, inputs: EvalInputs, target: Target, out_dir: Path, *, progress: bool = True) -> Provenance:
    """Write acceptance.json. Idempotent. `InputError` where head, features and target do not belong together."""
    started_s = time.time()
    stored = read_head(inputs.head, DTYPES[config.dtype], target.info.num_layers)
    features = Features(inputs.features, target=target)
    training = features if inputs.training is None else Features(inputs.training)
    features.check_target(target.digest)
    require_fit(stored, target.info, target.digest)
    origin = build_origin(config, stored, (features, training), target)
    if is_finished(out_dir, origin):
        return read_provenance(out_dir)
    found = evaluate(config, stored, (features, training), target, progress)
    found["draft_vocab"] = measure_vocab_sizes(config.shape, stored, (features, training), target)
    mark_unfinished(out_dir)
    write_json_atomic(out_dir / "acceptance.json", found)
    return finish_stage(out_dir, origin, started_s)


@torch.inference_mode()
def evaluate(
    config: EvalConfig, stored: StoredHead, data: tuple[Features, Features], target: Target, progress: bool
) -> dict[str, Any]:
    """The object of acceptance.json; data = (rows to walk, rows for the 4-gram table)."""
    features, training = data
    indices = features.indices("held_out")
    if not indices:
        raise InputError(
            f"no held-out row in {features.directory}",
            "at least one answer that was not trained on",
            "raise capture.held_out, or capture more conversations",
        )
    table = NgramTable(training.texts(training.indices("train")))
    embed = build_embed(target, DTYPES[config.dtype])
    makers: dict[str, Callable[[Sequence[Row]], ReplayDrafter]] = {
        "head": lambda rows: HeadDrafter(stored.head, stored.vocab, embed, config.shape, rows),
        "prompt_lookup": lambda rows: PromptLookup([row.ids_T for row in rows], config.depth),
        "ngram4": lambda rows: NgramDrafter(table, [row.ids_T for row in rows], config.depth),
    }
    found: dict[str, list[_Replayed]] = {name: [] for name in makers}
    doubts: dict[str, list[Tensor]] = {}
    with Progress(STAGE, len(indices), "texts", enabled=progress) as bar:
        for group in features.batches(indices, config.batch_tokens):
            rows, loops = _read_texts(config, features, group, target)
            for name, make in makers.items():
                walked = zip(rows, loops, replay_rows(rows, make(rows)), strict=True)
                found[name] += [_Replayed(row.task, loop, one) for row, loop, one in walked if one.rounds.accepted]
            for row, loop in zip(rows, loops, strict=True):
                if not loop:
                    doubts.setdefault(row.task, []).append(_top1_probs(row, target) < CONFIDENT_PROB)
            bar.advance(len(rows))

    def together(looping: bool) -> dict[str, Any] | None:
        texts = [one.text_rounds for one in found["head"] if one.is_looping == looping]
        return _to_entry(texts, config.seed) if texts else None

    tables = {name: _entries_by_task(walked, config.seed) for name, walked in found.items()}
    for task, entry in tables["head"].items():
        entry["uncertain_share"] = float(torch.cat(doubts[task]).float().mean())
    return {
        "schema": SCHEMA,
        "tree": dataclasses.asdict(config.shape),
        "temperature": config.temperature,
        "tasks": tables["head"],
        "all": together(looping=False),
        "looping": together(looping=True),
        "references": {name: tables[name] for name in makers if name != "head"},
    }


@dataclass(frozen=True)
class _Replayed:
    task: str
    is_looping: bool
    text_rounds: TextRounds


def _entries_by_task(walked: Sequence[_Replayed], seed: int) -> dict[str, dict[str, Any]]:
    """Tasks by name. Looping answers are counted apart: any drafter is good at them."""
    by_task: dict[str, list[TextRounds]] = {}
    for one in walked:
        if not one.is_looping:
            by_task.setdefault(one.task, []).append(one.text_rounds)
    return {task: _to_entry(by_task[task], seed) for task in sorted(by_task)}


def _to_entry(texts: Sequence[TextRounds], seed: int) -> dict[str, Any]:
    """What the file says of one group of texts."""
    stats: AcceptanceStats = summarize([text.rounds for text in texts], seed)
    return {
        "prompts": stats.prompts,
        **_length_entry(stats),
        "by_depth": [depth.rate for depth in stats.by_depth],
        "accepted": stats.accepted,
        "by_context": acceptance_by_context(texts, seed),
    }


def acceptance_by_context(texts: Sequence[TextRounds], seed: int) -> dict[str, dict[str, Any]]:
    """The same by where a round's root stands: "<=256" the first 257 positions, "<=512" up to the double, and so on.

    Buckets without a round are left out.
    """
    entries: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys(context_label(root) for root in sorted(root for text in texts for root in text.roots)):
        in_bucket = [rounds for text in texts if (rounds := text.in_context(label)).accepted]
        entries[label] = {"prompts": len(in_bucket)} | _length_entry(summarize(in_bucket, seed))
    return entries


def _length_entry(stats: AcceptanceStats) -> dict[str, Any]:
    interval = [stats.ci95.low, stats.ci95.high]
    return {"acceptance_length": stats.acceptance_length, "ci95": interval, "rounds": stats.rounds}


def _read_texts(
    config: EvalConfig, features: Features, group: Sequence[int], target: Target
) -> tuple[list[Row], list[bool]]:
    """The rows of a group and which of them loop. Among answers drawn anew no loops are looked for."""
    rows = list(features.rows(group))
    if config.sampling is None:
        return rows, [features.manifest.rows[index].looping for index in group]
    seeds = [config.seed + index for index in group]
    return resample_answers(rows, seeds, target, config.sampling, config.max_tokens), [False] * len(rows)


def _top1_probs(row: Row, target: Target) -> Tensor:
    """The target's likeliest probability at each generated token (`layout.taught`), on the CPU."""
    weight = next(target.lm_head.parameters())
    return target.logits(row.hidden_UD.to(weight.device, weight.dtype)).float().softmax(-1).amax(-1).cpu()
