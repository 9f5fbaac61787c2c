"""`eyas export`: the head as other engines load it, each directory checked by a second reader before it counts.

    head/ ─────┐                 export/sglang/            config.json  model.safetensors  README.md
    target ────┼─> export/  ──>  export/vllm/              the same
    eval/  ────┤                 export/vllm-speculators/  the same
    tune/  ────┤                 export/parity.json        logits of each, step by step, against ours
    prompts/ ──┘

eval, tune and prompts are told of where they are there: the table of acceptance, the flags, the licences.
"""

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.base.errors import InputError, StageError
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_file,
    digest_json,
    finish_stage,
    has_provenance,
    is_finished,
    mark_unfinished,
    read_provenance,
)
from eyas.base.storage import write_atomic, write_json_atomic
from eyas.data.ledger.cards import render_data_section
from eyas.export_card import ExportCard, render_card
from eyas.formats.engine_formats import ENGINE_FORMATS, write_engine_dir
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import CONFIG_FILE, StoredHead, digest_head, read_head
from eyas.formats.parity import MAX_TOKENS, TOLERANCE, ParityResult, TargetStates, compare_with_reference
from eyas.model.target import Target
from eyas.tree.shape import TreeShape

STAGE = "export"
SCHEMA = 1
PARITY_FILE = "parity.json"
PARITY_TEXT = "The falconer calls twice; 3 of 12 birds return, one by one, before the rain: wet, hungry and content."


@dataclass(frozen=True)
class ExportInputs:
    """Directories; of eval, tune and prompts what is finished is used. tree: where tune has found none.

    is_own: whether this run trained the head, so that its prompts are the head's data.
    """

    head: Path
    eval: Path
    tune: Path
    prompts: Path
    tree: TreeShape
    is_trained_here: bool

    def read_finished(self, name: str, file: str) -> dict[str, Any] | None:
        """What one of them wrote; None where it is not finished."""
        directory: Path = getattr(self, name)
        if not has_provenance(directory) or not (directory / file).is_file():
            return None
        return json.loads((directory / file).read_bytes())

    def list_trees(self) -> list[dict[str, Any]]:
        """{"streams": None or a number, "tree": ..., "chain": ...}: what to draft, None for nothing."""
        tuned = self.read_finished("tune", "tune.json")
        if tuned is None:
            chain = {"depth": self.tree.depth, "top_k": 1, "nodes": self.tree.depth + 1}
            tree = {"depth": self.tree.depth, "top_k": self.tree.top_k, "nodes": self.tree.nodes}
            return [{"streams": None, "tree": tree, "chain": chain}]
        return [
            {"streams": point["n"], "tree": point["best"]["tree"], "chain": point["best_chain"]["tree"]}
            for point in tuned["streams"]
        ]


def origin_of(inputs: ExportInputs, target: Target) -> StageInputs:
    """What decides the files. `InputError` without a head."""
    if not (inputs.head / CONFIG_FILE).is_file():
        raise InputError(
            f"no head in {inputs.head}",
            "a trained head",
            "run `eyas train` with this recipe and this --out, or name one: target.head=DIRECTORY",
        )
    parents = {"head": digest_head(inputs.head), "target": target.digest}
    for name in ("eval", "prompts"):
        if has_provenance(getattr(inputs, name)):
            parents[name] = read_provenance(getattr(inputs, name)).digest
    words = target.text_digests
    return StageInputs(
        stage=STAGE,
        recipe=digest_json(
            {"trees": inputs.list_trees(), "is_own": inputs.is_trained_here, "dtype": str(target.model.dtype)}
        ),
        parents=parents,
        tokenizer=words["tokenizer"],
        template=words["chat template"],
    )


def run(inputs: ExportInputs, target: Target, out_dir: Path) -> Provenance:
    """Write every directory, then parity.json. Idempotent.

    `InputError` for a head that does not fit the target, or that no engine can be told; `StageError` where a directory
    does not give our logits: parity.json says by how much, and the stage is not finished.
    """
    started_s = time.time()
    origin = origin_of(inputs, target)
    if is_finished(out_dir, origin):
        return read_provenance(out_dir)
    stored = read_head(inputs.head, None, target.info.num_layers)
    require_fit(stored, target.info, target.digest)
    refused = {engine.name: engine.find_problem(stored.config, target.info.num_layers) for engine in ENGINE_FORMATS}
    if all(refused.values()):
        raise InputError(next(filter(None, refused.values())), "a head that some engine can run", "train another one")
    mark_unfinished(out_dir)
    made, trees = _build_card(inputs, stored, target), inputs.list_trees()
    for engine in ENGINE_FORMATS:
        shutil.rmtree(out_dir / engine.name, ignore_errors=True)
        if refused[engine.name] is None:
            chain = trees[0]["chain"] or {"depth": inputs.tree.depth}
            write_engine_dir(out_dir / engine.name, engine, stored, _hub_name(target), chain["depth"])
            digests = {name: digest_file(out_dir / engine.name / name) for name in (CONFIG_FILE, "model.safetensors")}
            write_atomic(out_dir / engine.name / "README.md", render_card(made, engine.name, digests))
    found = measure_parity(out_dir, inputs.head, target)
    told = {"left_out": {name: why for name, why in refused.items() if why is not None}}
    write_json_atomic(out_dir / PARITY_FILE, found | told)
    _require_parity(found, out_dir)
    return finish_stage(out_dir, origin, started_s)


def measure_parity(out_dir: Path, head_dir: Path, target: Target) -> dict[str, Any]:
    """The object of parity.json, of the directories that are there."""
    stored = read_head(head_dir, torch.float32, target.info.num_layers)
    ids: list[int] = target.tokenizer(PARITY_TEXT)["input_ids"][:MAX_TOKENS]  # type: ignore[assignment]
    text = TargetStates.capture(target, ids)
    names = [engine.name for engine in ENGINE_FORMATS if (out_dir / engine.name / CONFIG_FILE).is_file()]
    engines: dict[str, ParityResult] = {
        name: compare_with_reference(out_dir / name, name, stored, target, text) for name in names
    }
    return {
        "schema": SCHEMA,
        "dtype": "float32",
        "tolerance": TOLERANCE,
        "tokens": ids,
        "engines": {name: one.to_json() for name, one in engines.items()},
    }


def _require_parity(found: dict[str, Any], out_dir: Path) -> None:
    wrong = {name: one for name, one in found["engines"].items() if not one["ok"]}
    for name, one in wrong.items():
        away = max(one["steps"]) / one["largest_logit"]
        raise StageError(
            f"{out_dir / name}, whose logits are {away:.1e} of the largest away from those of the head",
            f"{TOLERANCE:g} at most, and the same tokens, when it is read as {name} reads it",
            f"look at {out_dir / PARITY_FILE}; do not serve this export",
        )


def _build_card(inputs: ExportInputs, stored: StoredHead, target: Target) -> ExportCard:
    ledger = inputs.read_finished("prompts", "ledger.json") if inputs.is_trained_here else None
    name, data = _hub_name(target), ""
    if ledger is not None and ledger.get("target"):
        data = render_data_section(ledger, ledger["target"] | {"name": name})
    return ExportCard(
        stored=stored,
        target_name=name,
        digests={"target": target.digest, **target.text_digests, "head": stored.digest},
        trees=inputs.list_trees(),
        acceptance=inputs.read_finished("eval", "acceptance.json"),
        ledger=ledger,
        data=data,
    )


def _hub_name(target: Target) -> str:
    """A hub id as it is; of a directory its last part, for a path says nothing elsewhere."""
    name = target.info.name
    return name if not Path(name).is_dir() else Path(name).resolve().name
