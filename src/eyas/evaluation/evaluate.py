"""Measures the acceptance length of a head on held-out answers, with the tree and the verification of serving.

`eyas eval` calls `run`. A held-out answer is known, so eyas replays it: the head drafts, and the known tokens decide
which drafts are accepted (replay.py). T tokens.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from eyas.base import provenance
from eyas.base.config import PositiveInt
from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.storage import StoragePath, write_json_atomic
from eyas.chat.tool_format import ToolFormat
from eyas.chat.tool_parser import Phase
from eyas.evaluation.head_drafter import build_head_drafter
from eyas.evaluation.reference_drafters import NgramDrafter, NgramTable, PromptLookup
from eyas.evaluation.replay import ReplayDrafter, TextRounds, find_turns, replay_heads, replay_rows, sample_held_out
from eyas.evaluation.resample import resample_answers
from eyas.evaluation.vocab_report import measure_vocab_sizes
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.features.shard import RowInfo
from eyas.formats.fit import require_fit, require_layers
from eyas.formats.head_dir import ACCEPTANCE_FILE, StoredHead, read_head
from eyas.model.devices import DTYPES
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.speculation.arms import default_arms, largest_arms
from eyas.tree.acceptance_length import AcceptanceStats, RequestRounds, context_label, summarize, turn_label
from eyas.tree.node_scale import NodeScale
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape

STAGE = "eval"
SCHEMA = 1
ARM_TEXTS = 48
CONFIDENT_PROB = 0.9  # below this top-1 probability, a token counts as uncertain


@dataclass(frozen=True)
class EvalConfig:
    """The recipe keys `eval.*`. Raises UsageError for values that do not fit.

    Attributes:
        depth: The number of levels of the draft tree below its root.
        top_k: The number of nodes expanded in each level, and the number of children scored for each expanded node.
        nodes: The number of nodes that the target verifies in a round, the root included.
        temperature: The temperature at which the target generates new answers to the held-out prompts, which are then
            evaluated. By default, the stored answers are evaluated.
        max_tokens: The maximum number of tokens of a new answer; without `eval.temperature` it has no effect.
        dtype: The dtype in which the head runs.
        batch_tokens: The most tokens of the texts that are evaluated together, padding included.
        seed: The seed of the bootstrap interval and of the sampling of answers.
    """

    depth: int = 6
    top_k: int = 4
    nodes: int = 16
    temperature: float | None = None
    max_tokens: PositiveInt = 256
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: PositiveInt = 16384
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.shape, self.sampling  # both validate their values

    @property
    def shape(self) -> TreeShape:
        """The draft tree."""
        return TreeShape(self.depth, self.top_k, self.nodes)

    @property
    def sampling(self) -> SamplingParams | None:
        """The sampling of new answers; None: the answers in the features are used."""
        return None if self.temperature is None else SamplingParams(self.temperature)


@dataclass(frozen=True)
class EvalInputs:
    """The directories that an evaluation reads.

    Attributes:
        head: The head directory.
        features: The features directory. The head is evaluated on its split "held_out".
        training: The features directory whose split "train" fills the 4-gram table. None: `features`.
    """

    head: Path
    features: Path | StoragePath
    training: Path | StoragePath | None = None


def build_origin(
    config: EvalConfig, stored: StoredHead, data: tuple[Features, Features], target: Target
) -> provenance.StageInputs:
    """Returns the settings and input digests that determine acceptance.json. data: as in `evaluate`."""
    features, training = data
    settings = asdict(config) | {"target_dtype": str(target.model.dtype)}
    parents = {"head": stored.digest, "features": features.digest, "training": training.digest}
    return features.build_origin(STAGE, settings, parents | {"target": target.digest})


def run(
    config: EvalConfig, inputs: EvalInputs, target: Target, out_dir: Path, *, progress: bool = True
) -> provenance.Provenance:
    """Evaluates a head and writes acceptance.json to `out_dir`. Does nothing if the file of this evaluation exists.

    Raises:
        InputError: If the head or the features belong to another target, or no row is held out.
    """
    started_s = time.time()
    stored = read_head(inputs.head, DTYPES[config.dtype], target.info.num_layers)
    features = Features(inputs.features, target=target)
    training = features if inputs.training is None else Features(inputs.training)
    features.check_target(target.digest)
    require_fit(stored, target.info, target.digest)
    require_layers(stored, features.manifest.aux_layer_ids)
    origin = build_origin(config, stored, (features, training), target)
    if provenance.is_finished(out_dir, origin):
        return provenance.read_provenance(out_dir)
    report = evaluate(config, stored, (features, training), target, progress)
    scale = NodeScale()
    report["arms"] = measure_arms(config, stored, features, target, progress, scale)
    report["node_shares"] = scale.head_shares_N.tolist()
    if isinstance(stored.head, Head):  # other heads draft with the whole vocabulary
        report["draft_vocab"] = measure_vocab_sizes(config.shape, stored, (features, training), target)
    provenance.mark_unfinished(out_dir)
    write_json_atomic(out_dir / ACCEPTANCE_FILE, report)
    return provenance.finish_stage(out_dir, origin, started_s)


def measure_arms(
    config: EvalConfig, stored: StoredHead, features: Features, target: Target, progress: bool, scale: NodeScale
) -> dict[str, Any]:
    """Returns the acceptance of the longest chain and of each tree of a server, by the name of the arm.

    The budget of a server starts from it, and from `scale`, which is fitted to the nodes of all arms. At most ARM_TEXTS
    held-out texts are replayed with their stored answers.
    """
    settings = (features, sample_held_out(features, ARM_TEXTS, config.seed), [(stored.head, stored.vocab)], target)
    arms, entries = largest_arms(default_arms(stored.config.max_depth)), {}
    with Progress("eval, arms", len(arms), "arms", enabled=progress) as bar:
        for arm in arms:
            assert arm.shape is not None, "these arms draft"
            (rounds,) = replay_heads(*settings, arm.shape, config.batch_tokens, scale.counts_SDN2)
            if rounds:
                stats = summarize(list(rounds.values()), config.seed)
                entries[arm.name] = _length_entry(stats) | {"by_depth": stats.by_depth}
            bar.advance(1)
    scale.learn(scale.counts_SDN2.numpy())
    return entries


@torch.inference_mode()
def evaluate(
    config: EvalConfig, stored: StoredHead, data: tuple[Features, Features], target: Target, progress: bool
) -> dict[str, Any]:
    """Returns the content of acceptance.json, without its keys `arms` and `draft_vocab` (of EAGLE-3).

    Args:
        config: The settings.
        stored: The head.
        data: The features whose held-out rows are evaluated, and the features that fill the 4-gram table.
        target: The target of the head.
        progress: Shows a progress bar on stderr.

    Raises:
        InputError: If no row is held out.
    """
    features, training = data
    indices = features.indices("held_out")
    if not indices:
        problem = f"The features in {features.directory} have no held-out row"
        raise InputError(problem, "Raise capture.held_out, or capture more conversations")
    table = NgramTable(training.texts(training.indices("train")))
    drafters: dict[str, Callable[[Sequence[Row]], ReplayDrafter]] = {
        "head": lambda rows: build_head_drafter(stored.head, stored.vocab, target, config.shape, rows),
        "prompt_lookup": lambda rows: PromptLookup([row.ids_T for row in rows], config.depth),
        "ngram4": lambda rows: NgramDrafter(table, [row.ids_T for row in rows], config.depth),
    }
    tool_format = ToolFormat(target.tokenizer)
    replayed: dict[str, list[_Replayed]] = {name: [] for name in drafters}
    uncertain: dict[str, list[Tensor]] = {}
    with Progress(STAGE, len(indices), "texts", enabled=progress) as bar:
        for batch in features.batches(indices, config.batch_tokens):
            rows, infos = _read_rows(config, features, batch, target)
            labels = [_find_labels(*pair, tool_format) for pair in zip(rows, infos, strict=True)]
            for name, build_drafter in drafters.items():
                texts = map(_Replayed, infos, replay_rows(rows, build_drafter(rows)), labels)
                replayed[name] += [text for text in texts if text.rounds.rounds.accepted]
            for row, info in zip(rows, infos, strict=True):
                if not info.looping:
                    uncertain.setdefault(row.task, []).append(_top1_probs(row, target) < CONFIDENT_PROB)
            bar.advance(len(rows))

    def entry_of_all(is_looping: bool) -> dict[str, Any] | None:
        texts = [text for text in replayed["head"] if text.row.looping == is_looping]
        return _to_entry(texts, config.seed) if texts else None

    tasks = {name: _entries_by("task", texts, config.seed) for name, texts in replayed.items()}
    modes = _entries_by("mode", replayed["head"], config.seed)
    for task, entry in tasks["head"].items():
        entry["uncertain_share"] = float(torch.cat(uncertain[task]).float().mean())
    return {
        "schema": SCHEMA,
        "tree": asdict(config.shape),
        "temperature": config.temperature,
        "tasks": tasks.pop("head"),
        "all": entry_of_all(is_looping=False),
        "looping": entry_of_all(is_looping=True),
        "references": tasks,
        **({"modes": modes} if any(modes) else {}),
    }


@dataclass(frozen=True)
class _Replayed:
    """The rounds of one text with one drafter. labels: the phase and the turn of each token of the text."""

    row: RowInfo
    rounds: TextRounds
    labels: Sequence[tuple[Phase, str]]


def _find_labels(row: Row, info: RowInfo, tool_format: ToolFormat) -> list[tuple[Phase, str]]:
    labels: list[tuple[Phase, str]] = [("content", "1")] * len(row.ids_T)
    ids = row.ids_T.tolist()
    for turn, answer in find_turns(info.id, row.ids_T, row.loss_mask_T):
        phases = tool_format.phases(ids[: answer.start], ids[answer.start : answer.end])
        labels[answer.start : answer.end] = [(phase, turn_label(turn)) for phase in phases]
    return labels


def _entries_by(key: Literal["task", "mode"], replayed: Sequence[_Replayed], seed: int) -> dict[str, dict[str, Any]]:
    """Returns task or mode -> entry of acceptance.json. Leaves out answers that repeat themselves: they are easy."""
    groups: dict[str, list[_Replayed]] = {}
    for text in replayed:
        if not text.row.looping:
            groups.setdefault(getattr(text.row, key), []).append(text)
    return {name: _to_entry(groups[name], seed) for name in sorted(groups)}


def _to_entry(texts: Sequence[_Replayed], seed: int) -> dict[str, Any]:
    """Returns the entry of acceptance.json for one group of texts.

    It has `by_phase` if there are several phases, and `by_turn` if there are several turns.
    """
    stats = summarize([text.rounds.rounds for text in texts], seed)
    entry = {
        "prompts": stats.prompts,
        **_length_entry(stats),
        "by_depth": stats.by_depth,
        "accepted": stats.accepted,
        "by_context": acceptance_by_context([text.rounds for text in texts], seed),
    }
    for index, key in enumerate(("by_phase", "by_turn")):
        # A round drafts the tokens after its root.
        parts = [text.rounds.split(lambda root, text=text, index=index: text.labels[root + 1][index]) for text in texts]
        if len(lengths := _lengths_by(parts, seed)) > 1:
            entry[key] = lengths
    return entry


def acceptance_by_context(texts: Sequence[TextRounds], seed: int) -> dict[str, dict[str, Any]]:
    """Returns the acceptance length for each bucket of context lengths that has rounds.

    The context length of a round is the position of its tree's root. The keys are "<=256", "<=512", "<=1024", ...
    (`tree.acceptance_length.context_label`).
    """
    entries = _lengths_by([text.split(context_label) for text in texts], seed)
    return dict(sorted(entries.items(), key=lambda entry: int(entry[0].removeprefix("<="))))


def _lengths_by(split_texts: Sequence[Mapping[str, RequestRounds]], seed: int) -> dict[str, dict[str, Any]]:
    """Returns label -> acceptance length. split_texts: for each text, label -> its rounds."""
    entries = {}
    for label in sorted({label for text in split_texts for label in text}):
        some = [text[label] for text in split_texts if label in text]
        entries[label] = {"prompts": len(some)} | _length_entry(summarize(some, seed))
    return entries


def _length_entry(stats: AcceptanceStats) -> dict[str, Any]:
    interval = [stats.ci95.low, stats.ci95.high]
    return {"acceptance_length": stats.acceptance_length, "ci95": interval, "rounds": stats.rounds}


def _read_rows(
    config: EvalConfig, features: Features, batch: Sequence[int], target: Target
) -> tuple[list[Row], list[RowInfo]]:
    """Returns the rows of a batch and their descriptions. With `temperature`, no answer counts as repeating itself."""
    rows, infos = list(features.rows(batch)), [features.manifest.rows[index] for index in batch]
    if config.sampling is None:
        return rows, infos
    seeds = [config.seed + index for index in batch]
    rows = resample_answers(rows, seeds, target, config.sampling, config.max_tokens)
    return rows, [replace(info, looping=False) for info in infos]


def _top1_probs(row: Row, target: Target) -> Tensor:
    """Returns the probability of the target's most likely token at each `layout.teacher_positions`, on the CPU."""
    weight = target.logits_weight
    return target.logits(row.hidden_UD.to(weight.device, weight.dtype)).float().softmax(-1).amax(-1).cpu()
