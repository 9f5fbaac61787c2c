"""Predicts the fastest drafter and draft tree for each number of concurrent requests (`eyas tune`).

    evaluation.tree_sweep     acceptance length of each tree on held-out answers      tokens
    tune_predictions          seconds of a round, on an engine with all heads         seconds
    evaluation.copy_replay    acceptance length with copies, where they pay           tokens
    tune_predictions          tokens per second of all drafts, and the best ones      tune.json

All use the code of serving, with this target, these heads, this dtype and machine. The prediction does not include
prefill, which plain decoding needs as well, and assumes that all n streams are busy.
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from eyas.base import provenance
from eyas.base.errors import InputError, raise_misfits
from eyas.base.progress import Progress
from eyas.base.provenance import Provenance, StageInputs
from eyas.base.storage import AnyPath, write_json_atomic
from eyas.bench.config import TuneConfig
from eyas.bench.results import describe_machine, describe_runtime
from eyas.bench.tune_predictions import RatedHead, RoundCosts, build_tune_results, plan_replays
from eyas.evaluation.copy_replay import CopyReplay
from eyas.evaluation.head_drafter import build_head_drafter
from eyas.evaluation.replay import sample_held_out
from eyas.evaluation.resample import resample_answers
from eyas.evaluation.tree_sweep import TreeAcceptance, acceptance_lengths, count_rounds
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.formats.fit import check_fit, require_layers
from eyas.formats.head_dir import CONFIG_FILE, StoredHead, digest_head, read_head, resolve_head
from eyas.model.target import Target

STAGE = "tune"
FILE = "tune.json"


def build_origin(config: TuneConfig, head_dir: Path, features: Features, target: Target) -> StageInputs:
    """Returns the settings and input digests that decide what is measured. Raises InputError without a head."""
    if not (head_dir / CONFIG_FILE).is_file():
        problem = f"There is no head in {head_dir}"
        raise InputError(problem, "Run `eyas train` with this recipe and this --out, or set target.head=DIRECTORY")
    settings = dataclasses.asdict(config) | {"heads": len(config.heads), "target_dtype": str(target.model.dtype)}
    parents = {"head": digest_head(head_dir), "features": features.digest, "target": target.digest}
    parents |= {f"head {number}": digest_head(resolve_head(name)) for number, name in enumerate(config.heads, 2)}
    return features.build_origin(STAGE, settings, parents, undigested=(FILE,))


def run(
    config: TuneConfig, head_dir: Path, features_dir: AnyPath, target: Target, out_dir: Path, progress: bool
) -> Provenance:
    """Writes tune.json. Does nothing if the file of these inputs exists.

    Raises:
        InputError: A head is missing or does not fit the target, or no answer is held out.
    """
    started_s = time.time()
    features = Features(features_dir, target=target)
    features.check_target(target.digest)
    origin = build_origin(config, head_dir, features, target)
    directories = [head_dir, *map(resolve_head, config.heads)]
    heads = [read_fitting_head(directory, torch.float32, target) for directory in directories]
    if provenance.is_finished(out_dir, origin) and (out_dir / FILE).is_file():
        return provenance.read_provenance(out_dir)
    answers = partial(read_rows, config, features, target, progress)
    trees, context = measure_acceptance(config, heads, answers("tune, trees"), target)
    rated = [
        RatedHead(str(directory), "eagle3" if stored.config.max_depth is None else "block", some)
        for directory, stored, some in zip(directories, heads, trees, strict=True)
    ]
    served = [read_fitting_head(directory, target.model.dtype, target) for directory in directories]
    costs = RoundCosts.measure(config, served, target, progress)
    copies = plan_replays(config, rated, costs, context)
    replay_copies(copies, heads, answers("tune, copies"), target)
    about = {"machine": describe_machine(), **describe_runtime(target), "head": str(head_dir)}
    about |= {"slots": heads[0].config.max_depth, "method": heads[0].config.method}
    provenance.mark_unfinished(out_dir)
    write_json_atomic(out_dir / FILE, build_tune_results(config, rated, copies, costs, context) | about)
    return provenance.finish_stage(out_dir, origin, started_s)


def read_fitting_head(directory: Path, dtype: torch.dtype, target: Target) -> StoredHead:
    """Reads a head. Raises InputError if it does not fit the target or reads other layers than the features have."""
    stored = read_head(directory, dtype, target.info.num_layers)
    findings = check_fit(stored, target.info, target.digest)
    raise_misfits(f"The head in {directory} does not fit target {target.info.name}", findings)
    require_layers(stored, target.aux_layer_ids)
    return stored


def read_rows(config: TuneConfig, features: Features, target: Target, progress: bool, name: str) -> Iterator[list[Row]]:
    """Yields the held-out answers with their features in batches, sampled again if `tune.temperature` is set.

    Args:
        config: The configuration.
        features: The features.
        target: The target.
        progress: True to print the progress.
        name: The name of the progress.

    Raises:
        InputError: No answer is held out.
    """
    indices = sample_held_out(features, config.answers, config.seed)
    if not indices:
        problem = f"Every held-out answer in {features.directory} is shorter than two tokens or repeats itself"
        raise InputError(problem, "Raise capture.held_out, or capture more conversations")
    with Progress(name, len(indices), "texts", enabled=progress) as bar:
        for group in features.batches(indices, config.batch_tokens):
            some = list(features.rows(group))
            if config.sampling is not None:
                seeds = [config.seed + index for index in group]
                some = resample_answers(some, seeds, target, config.sampling, config.max_tokens)
            yield some
            bar.advance(len(some))


@torch.no_grad()
def measure_acceptance(
    config: TuneConfig, heads: Sequence[StoredHead], answers: Iterable[list[Row]], target: Target
) -> tuple[list[list[TreeAcceptance]], int]:
    """Computes the acceptance length of all trees of all heads on the same answers, in float32.

    Returns:
        For each head, the acceptance length of each tree; and the mean context length: the mean position of an answer
        token.
    """
    groups = [config.shape_groups(stored.config.max_depth) for stored in heads]
    sweeps = [(number, shapes, list[np.ndarray]()) for number, some in enumerate(groups) for shapes in some]
    rows: list[Row] = []
    for some in answers:
        for number, shapes, counts in sweeps:
            head, vocab = heads[number].head, heads[number].vocab
            build = partial(build_head_drafter, head, vocab, target, rows=some, is_exact=False)  # the shapes are exact
            counts.append(count_rounds(some, shapes, build, config.batch_tokens))
        # Only the generated tokens are needed from here on, so the features are dropped.
        rows += [dataclasses.replace(row, aux_TL=row.aux_TL[:0], hidden_UD=row.hidden_UD[:0]) for row in some]
    accepted: list[list[TreeAcceptance]] = [[] for _ in heads]
    for number, shapes, counts in sweeps:
        accepted[number] += acceptance_lengths(shapes, rows, np.concatenate(counts), config.seed)
    positions = torch.cat([row.loss_mask_T.nonzero()[:, 0] for row in rows])
    return accepted, round(float(positions.float().mean()))


@torch.no_grad()
def replay_copies(
    replays: Sequence[CopyReplay], heads: Sequence[StoredHead], answers: Iterable[list[Row]], target: Target
) -> None:
    """Replays the answers with copies of their own earlier text, in each of `replays`."""
    for some in answers:
        for one in replays:
            head = heads[one.head]
            one.run(some, one.tree and build_head_drafter(head.head, head.vocab, target, one.tree, some))
