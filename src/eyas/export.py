"""`eyas export`: writes the head as other engines load it, each directory with a README and a parity check.

    head/ ─────┐                 export/sglang/            config.json  model.safetensors  README.md
    target ────┼─> export/  ──>  export/vllm/              the same
    eval/  ────┤                 export/vllm-speculators/  the same
    tune/  ────┤                 export/parity.json        logits of each, step by step, against eyas's own
    prompts/ ──┘

A second, independent reader loads each directory and must compute the logits of the head; otherwise the stage fails.
eval, tune and prompts are optional: the READMEs take the acceptance length, the flags and the licenses from them. The
READMEs hold no times and no paths, so equal runs write equal bytes.
"""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import torch

from eyas.base import provenance
from eyas.base.errors import InputError, StageError
from eyas.base.provenance import Provenance, StageInputs, digest_file, digest_json, has_provenance, read_provenance
from eyas.base.storage import write_atomic, write_json_atomic
from eyas.data.ledger.cards import render_data_section
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import CONFIG_FILE, StoredHead, digest_head, read_head
from eyas.formats.parity import MAX_TOKENS, TOLERANCE, TargetStates, compare_with_reference
from eyas.formats.sglang_vllm import ENGINE_FORMATS, sglang_flags, vllm_flags, write_engine_dir
from eyas.model.target import Target
from eyas.tree.shape import TreeShape

STAGE = "export"
PARITY_FILE = "parity.json"
PARITY_TEXT = "The falconer calls twice; 3 of 12 birds return, one by one, before the rain: wet, hungry and content."
DIRECTORY = "THIS_DIRECTORY"
ENGINE_NAMES = {"sglang": "SGLang", "vllm": "vLLM", "vllm-speculators": "vLLM, in the format of speculators"}


@dataclass(frozen=True)
class ExportInputs:
    """The directories that `export` reads; those of eval, tune and prompts are used if they are finished.

    tree: the tree to recommend without `eyas tune`. is_trained_here: this run trained the head, so the run's prompts
    are the head's training data.
    """

    head: Path
    eval: Path
    tune: Path
    prompts: Path
    tree: TreeShape
    is_trained_here: bool

    def read_finished(self, name: str, file: str) -> dict[str, Any] | None:
        """Returns a JSON file of one of the directories, or None if that is not finished."""
        directory: Path = getattr(self, name)
        if not has_provenance(directory) or not (directory / file).is_file():
            return None
        return json.loads((directory / file).read_bytes())

    def list_trees(self) -> list[dict[str, Any]]:
        """Returns the best tree and chain, None for no speculation, for each number of streams that was tuned.

        Each entry is {"streams": a number, or None without `eyas tune`, "tree": ..., "chain": ...}.
        """
        tuned = self.read_finished("tune", "tune.json")
        if tuned is None:
            chain = {"depth": self.tree.depth, "top_k": 1, "nodes": self.tree.depth + 1}
            tree = {"depth": self.tree.depth, "top_k": self.tree.top_k, "nodes": self.tree.nodes}
            return [{"streams": None, "tree": tree, "chain": chain}]
        return [
            {"streams": point["n"], "tree": point["best"]["tree"], "chain": point["best_chain"]["tree"]}
            for point in tuned["streams"]
        ]


def build_origin(inputs: ExportInputs, target: Target) -> StageInputs:
    """Returns the inputs that decide the files. Raises InputError without a head."""
    if not (inputs.head / CONFIG_FILE).is_file():
        fix = "Run `eyas train` with this recipe and --out, or set target.head=DIRECTORY"
        raise InputError(f"{inputs.head} holds no head", fix)
    parents = {"head": digest_head(inputs.head), "target": target.digest}
    for name in ("eval", "prompts"):
        if has_provenance(getattr(inputs, name)):
            parents[name] = read_provenance(getattr(inputs, name)).digest
    settings = {"trees": inputs.list_trees(), "is_own": inputs.is_trained_here, "dtype": str(target.model.dtype)}
    digests = target.text_digests
    return StageInputs(STAGE, digest_json(settings), parents, digests["tokenizer"], digests["chat template"])


def run(inputs: ExportInputs, target: Target, out_dir: Path) -> Provenance:
    """Writes a directory for each engine, and parity.json. Does nothing if the stage is finished.

    Raises:
        InputError: The head does not fit the target, or no engine's format can describe it.
        StageError: A directory does not give the head's logits. parity.json then holds the differences.
    """
    started_s = time.time()
    origin = build_origin(inputs, target)
    if provenance.is_finished(out_dir, origin):
        return read_provenance(out_dir)
    stored = read_head(inputs.head, None, target.info.num_layers)
    require_fit(stored, target.info, target.digest)
    problems = {engine.name: engine.find_problem(stored.config, target.info.num_layers) for engine in ENGINE_FORMATS}
    if all(problems.values()):
        raise InputError(f"No engine can load this head ({next(iter(problems.values()))})", "Train another head")
    provenance.mark_unfinished(out_dir)
    chain = inputs.list_trees()[0]["chain"] or {"depth": inputs.tree.depth}
    for engine in ENGINE_FORMATS:
        directory = out_dir / engine.name
        shutil.rmtree(directory, ignore_errors=True)
        if problems[engine.name] is None:
            write_engine_dir(directory, engine, stored, _public_name(target), chain["depth"])
            digests = {name: digest_file(directory / name) for name in (CONFIG_FILE, "model.safetensors")}
            write_atomic(directory / "README.md", render_readme(inputs, stored, target, engine.name, digests))
    parity = measure_parity(out_dir, inputs.head, target)
    left_out = {name: problem for name, problem in problems.items() if problem is not None}
    write_json_atomic(out_dir / PARITY_FILE, parity | {"left_out": left_out})
    _require_parity(parity, out_dir)
    return provenance.finish_stage(out_dir, origin, started_s)


def measure_parity(out_dir: Path, head_dir: Path, target: Target) -> dict[str, Any]:
    """Returns the content of parity.json, for the engines whose directories exist."""
    stored = read_head(head_dir, torch.float32, target.info.num_layers)
    ids: list[int] = target.tokenizer(PARITY_TEXT)["input_ids"][:MAX_TOKENS]  # type: ignore[assignment]
    states = TargetStates.capture(target, ids)
    names = [engine.name for engine in ENGINE_FORMATS if (out_dir / engine.name / CONFIG_FILE).is_file()]
    results = {name: compare_with_reference(out_dir / name, name, stored, target, states) for name in names}
    engines = {name: result.to_json() for name, result in results.items()}
    return {"schema": 1, "dtype": "float32", "tolerance": TOLERANCE, "tokens": ids, "engines": engines}


def _require_parity(parity: dict[str, Any], out_dir: Path) -> None:
    for name, result in parity["engines"].items():
        if not result["ok"]:
            difference = max(result["steps"]) / result["largest_logit"]
            problem = (
                f"{out_dir / name} gives other logits than the head when {name} reads it (difference {difference:.1e})"
            )
            raise StageError(problem, f"Do not serve this export; {PARITY_FILE} beside it holds the differences")


# --- README.md -------------------------------------------------------------------------------------------------------


def render_readme(
    inputs: ExportInputs, stored: StoredHead, target: Target, engine: str, file_digests: Mapping[str, str]
) -> str:
    """Returns the README.md of one engine's directory. file_digests: those of the files beside it."""
    ledger = inputs.read_finished("prompts", "ledger.json") if inputs.is_trained_here else None
    acceptance = inputs.read_finished("eval", "acceptance.json")
    name, data = _public_name(target), "## Data and licenses\n\nNothing is known of the data that trained this head."
    if ledger is not None and ledger.get("target"):
        data = render_data_section(ledger, ledger["target"] | {"name": name}).strip()
    title = f"EAGLE-3 draft head for {name}"
    return _load_template().render(
        front_matter=_build_front_matter(title, name, ledger or {}, acceptance),
        title=title,
        engine=engine,
        engine_name=ENGINE_NAMES[engine],
        target_name=name,
        config=stored.config,
        head=stored.head,
        trained_context=stored.metadata.trained_context,
        commands=[(point["streams"], launch_command(engine, point, name)) for point in inputs.list_trees()],
        directory=DIRECTORY,
        acceptance=acceptance,
        digests={"target": target.digest, **target.text_digests, "head": stored.digest, **file_digests},
        data=data,
    )


def _load_template() -> jinja2.Template:
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["json"] = json.dumps
    environment.filters["cell"] = lambda value: str(value).replace("|", "\\|")
    return environment.from_string(files("eyas").joinpath("export_readme.md.jinja").read_text(encoding="utf-8"))


def _public_name(target: Target) -> str:
    """Returns a hub id as it is, and the last part of a directory: a path means nothing on another machine."""
    name = target.info.name
    return Path(name).resolve().name if Path(name).is_dir() else name


def _build_front_matter(
    title: str, name: str, ledger: Mapping[str, Any], acceptance: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the keys of the hub's model cards; every value is written as JSON, which YAML reads."""
    front: dict[str, Any] = {"library_name": "eyas", "pipeline_tag": "text-generation"}
    if name.count("/") == 1:
        front["base_model"] = name
    spdx = ledger.get("target", {}).get("spdx")
    if spdx and "LicenseRef-" not in spdx and " " not in spdx:
        front["license"] = spdx.lower()
    else:
        front |= {"license": "other", "license_name": spdx or "not stated"}
    if ledger.get("languages"):
        front["language"] = sorted(ledger["languages"])
    front["tags"] = ["eagle3", "speculative-decoding", "draft-head", "eyas"]
    if acceptance is not None:
        results = [
            {
                "task": {"type": "text-generation"},
                "dataset": {"name": f"held-out answers, {task}", "type": task},
                "metrics": [{"type": "acceptance_length", "value": round(entry["acceptance_length"], 3)}],
            }
            for task, entry in acceptance["tasks"].items()
        ]
        front["model-index"] = [{"name": title, "results": results}]
    return front


def launch_command(engine: str, point: Mapping[str, Any], target_name: str) -> str | None:
    """Returns the command that serves the target with this head, or None where speculation does not pay."""
    if engine == "sglang":
        flags = sglang_flags(point["tree"], DIRECTORY)
        return None if flags is None else f"python -m sglang.launch_server --model-path {target_name} {flags}"
    flags = vllm_flags(point["chain"], DIRECTORY)
    return None if flags is None else f"vllm serve {target_name} {flags}"
