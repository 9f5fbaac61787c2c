"""`eyas export`: writes the head in the formats of other engines, and checks that each copy gives the same logits.

    head/ ─────┐                 export/sglang/            config.json  model.safetensors  README.md
    target ────┼─> export/  ──>  export/vllm/              the same
    eval/  ────┤                 export/vllm-speculators/  the same
    tune/  ────┤                 export/parity.json        differences of logits, for each directory and draft step
    prompts/ ──┘

A DSpark head has export/deepspec/ in the place of vllm-speculators/, a DFlash head has neither.
`formats.reference_reader`, a second implementation, loads each directory and computes logits. If they differ from the
logits of the head, the stage fails. The READMEs contain the acceptance length from eval/, the flags from tune/ and the
licenses from prompts/, if these stages are finished. They contain no times and no paths.
"""

import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.base import provenance
from eyas.base.errors import InputError, StageError
from eyas.base.storage import write_atomic, write_json_atomic
from eyas.base.templates import template_environment
from eyas.data.ledger.cards import render_data_section
from eyas.formats.fit import require_fit, require_layers
from eyas.formats.head_dir import ACCEPTANCE_FILE, CONFIG_FILE, StoredHead, digest_head, read_head
from eyas.formats.parity import MAX_TOKENS, TOLERANCE, TargetStates, compare_with_reference
from eyas.formats.sglang_vllm import engine_formats, find_matrix_problem, sglang_flags, vllm_flags, write_engine_dir
from eyas.model.head import HeadConfig
from eyas.model.target import Target
from eyas.model.target_dir import public_name
from eyas.tree.shape import TreeShape, chain_shape

STAGE = "export"
PARITY_FILE = "parity.json"
PARITY_TEXT = "The falconer calls twice; 3 of 12 birds return, one by one, before the rain: wet, hungry and content."
DIRECTORY = "THIS_DIRECTORY"
ENGINE_NAMES = {"sglang": "SGLang", "vllm": "vLLM", "vllm-speculators": "vLLM, in the format of speculators"}
ENGINE_NAMES["deepspec"] = "DeepSpec"


@dataclass(frozen=True)
class ExportInputs:
    """The directories that `export` reads.

    Attributes:
        head: The head directory.
        eval: The directory of the stage eval; ignored unless it is finished, like those of tune and prompts.
        tune: The directory of the stage tune.
        prompts: The directory of the stage prompts.
        tree: The draft tree whose flags the READMEs contain if the stage tune is not finished.
        is_trained_here: True if this run trained the head, so that its prompts are the head's training data.
    """

    head: Path
    eval: Path
    tune: Path
    prompts: Path
    tree: TreeShape
    is_trained_here: bool

    def read_finished(self, name: str, file: str) -> dict[str, Any] | None:
        """Returns the content of a JSON file of a stage; None if the stage is not finished or has no such file.

        Args:
            name: The stage: "eval", "tune" or "prompts".
            file: The name of the file.
        """
        directory: Path = getattr(self, name)
        if not provenance.has_provenance(directory) or not (directory / file).is_file():
            return None
        return json.loads((directory / file).read_bytes())

    def list_trees(self) -> list[dict[str, Any]]:
        """Returns the recommended draft trees, one entry {"streams", "tree", "chain"} for each number of streams.

        A stream is a request that runs at the same time as others. "tree" and "chain" are the fastest tree and chain
        that `eyas tune` measured, or None if no speculation was faster. Without `eyas tune` there is one entry, whose
        "streams" is None.
        """
        tuned = self.read_finished("tune", "tune.json")
        if tuned is None:
            tree, chain = map(asdict, (self.tree, chain_shape(self.tree.depth)))
            return [{"streams": None, "tree": tree, "chain": chain}]
        return [
            {"streams": point["n"], "tree": point["best"]["tree"], "chain": point["best_chain"]["tree"]}
            for point in tuned["streams"]
        ]


def build_origin(inputs: ExportInputs, target: Target) -> provenance.StageInputs:
    """Returns the inputs of the stage for provenance.json. Raises InputError if there is no head."""
    if not (inputs.head / CONFIG_FILE).is_file():
        fix = "Run `eyas train` with this recipe and --out, or set target.head=DIRECTORY"
        raise InputError(f"{inputs.head} does not contain a head", fix)
    parents = {"head": digest_head(inputs.head), "target": target.digest}
    for name in ("eval", "prompts"):
        if provenance.has_provenance(getattr(inputs, name)):
            parents[name] = provenance.read_provenance(getattr(inputs, name)).digest
    settings = {"trees": inputs.list_trees(), "is_own": inputs.is_trained_here, "dtype": str(target.model.dtype)}
    recipe, digests = provenance.digest_json(settings), target.text_digests
    return provenance.StageInputs(STAGE, recipe, parents, digests["tokenizer"], digests["chat template"])


def run(inputs: ExportInputs, target: Target, out_dir: Path) -> provenance.Provenance:
    """Runs the stage: writes a directory for each engine, and parity.json. Does nothing if the stage is finished.

    Raises:
        InputError: The head does not fit the target, or no engine can load it.
        StageError: A directory gives other logits than the head. parity.json has the differences.
    """
    started_s = time.time()
    origin = build_origin(inputs, target)
    if provenance.is_finished(out_dir, origin):
        return provenance.read_provenance(out_dir)
    stored = read_head(inputs.head, None, target.info.num_layers)
    require_fit(stored, target.info, target.digest)
    require_layers(stored, target.aux_layer_ids)
    formats = engine_formats(stored.config)
    problems = {engine.name: engine.find_problem(stored.config, target.info.num_layers) for engine in formats}
    if stored.config.max_depth is not None and (problem := find_matrix_problem(target)) is not None:
        problems = dict.fromkeys(problems, problem)
    if all(problems.values()) and stored.config.max_depth is None:
        raise InputError(f"No engine can load this head ({next(iter(problems.values()))})", "Train another head")
    provenance.mark_unfinished(out_dir)
    chain = inputs.list_trees()[0]["chain"] or {"depth": inputs.tree.depth}
    for name in ENGINE_NAMES:
        shutil.rmtree(out_dir / name, ignore_errors=True)
    for engine in formats:
        directory = out_dir / engine.name
        if problems[engine.name] is None:
            write_engine_dir(directory, engine, stored, public_name(target.info.name), chain["depth"], target)
            digests = {name: provenance.digest_file(directory / name) for name in (CONFIG_FILE, "model.safetensors")}
            write_atomic(directory / "README.md", render_readme(inputs, stored, target, engine.name, digests))
    parity = measure_parity(out_dir, inputs.head, target)
    left_out = {name: problem for name, problem in problems.items() if problem is not None}
    for name, problem in left_out.items():
        print(f"eyas: note: No directory for {name} is exported: {problem}.", file=sys.stderr)
    write_json_atomic(out_dir / PARITY_FILE, parity | {"left_out": left_out})
    for name, result in parity["engines"].items():
        if not result["ok"]:
            difference = max(result["steps"]) / result["largest_logit"]
            problem = f"{out_dir / name} gives other logits than the head when {name} reads it"
            fix = f"Do not serve this export; read the differences in {PARITY_FILE} beside it"
            raise StageError(f"{problem} (difference {difference:.1e})", fix)
    return provenance.finish_stage(out_dir, origin, started_s)


def measure_parity(out_dir: Path, head_dir: Path, target: Target) -> dict[str, Any]:
    """Compares the logits of each exported directory with the head's. Returns the content of parity.json."""
    stored = read_head(head_dir, torch.float32, target.info.num_layers)
    ids: list[int] = target.tokenizer(PARITY_TEXT)["input_ids"][:MAX_TOKENS]  # type: ignore[assignment]
    states = TargetStates.capture(target, ids)
    names = [name for name in ENGINE_NAMES if (out_dir / name / CONFIG_FILE).is_file()]
    engines = {name: compare_with_reference(out_dir / name, name, stored, target, states).to_json() for name in names}
    return {"schema": 1, "dtype": "float32", "tolerance": TOLERANCE, "tokens": ids, "engines": engines}


# --- README.md -------------------------------------------------------------------------------------------------------


def render_readme(
    inputs: ExportInputs, stored: StoredHead, target: Target, engine: str, file_digests: Mapping[str, str]
) -> str:
    """Returns the text of README.md for the directory of one engine.

    Args:
        inputs: The directories that `export` reads.
        stored: The head.
        target: The target.
        engine: The engine, a key of ENGINE_NAMES.
        file_digests: The digest of each other file in the directory, by name.
    """
    ledger = inputs.read_finished("prompts", "ledger.json") if inputs.is_trained_here else None
    acceptance = inputs.read_finished("eval", ACCEPTANCE_FILE)
    name = public_name(target.info.name)
    data = "## Data and licenses\n\nNothing is known of the data that trained this head."
    if ledger is not None and ledger.get("target"):
        data = render_data_section(ledger, ledger["target"] | {"name": name}).strip()
    kind = {"eagle3": "EAGLE-3", "dspark": "DSpark", "dflash": "DFlash"}[stored.config.method]
    environment = template_environment("eyas", ".", keep_trailing_newline=True)
    environment.filters["json"] = json.dumps
    environment.filters["cell"] = lambda value: str(value).replace("|", "\\|")
    return environment.get_template("export_readme.md.jinja").render(
        kind=kind,
        title=f"{kind} draft head for {name}",
        ledger=ledger or {},
        engine=engine,
        engine_name=ENGINE_NAMES[engine],
        target_name=name,
        config=stored.config,
        head=stored.head,
        trained_context=stored.metadata.trained_context,
        commands=[(one["streams"], launch_command(engine, one, name, stored.config)) for one in inputs.list_trees()],
        directory=DIRECTORY,
        acceptance=acceptance,
        digests={"target": target.digest, **target.text_digests, "head": stored.digest, **file_digests},
        data=data,
    )


def launch_command(engine: str, point: Mapping[str, Any], target_name: str, config: HeadConfig) -> str | None:
    """Returns the shell command that runs the target with this head; None if no speculation was faster.

    Args:
        engine: The engine, a key of ENGINE_NAMES.
        point: An entry of `ExportInputs.list_trees`.
        target_name: The name of the target in the command.
        config: The config of the head.
    """
    if engine == "deepspec":
        return f"python eval.py --target_name_or_path {target_name} --draft_name_or_path {DIRECTORY}"
    if engine == "sglang":
        flags = sglang_flags(point["tree"], DIRECTORY, config.max_depth, config.method)
        return None if flags is None else f"python -m sglang.launch_server --model-path {target_name} {flags}"
    flags = vllm_flags(point["chain"], DIRECTORY, config.max_depth, config.method)
    return None if flags is None else f"vllm serve {target_name} {flags}"
