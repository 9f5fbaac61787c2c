"""Defines recipes (all settings of a run) and runs their stages, from prompts to report, in a run directory.

Each stage reads the directories of earlier stages and writes one directory:

    stage      reads                                  writes            calls
    prompts    prompts.source                         prompts/          data.prompts: licenses, privacy, selection
    respond    prompts/, target                       conversations/    data.answers.respond: the target's answers
    capture    conversations/, target                 features/         features.capture: its hidden states
    train      features/, the target's embeddings     head/             train.train
    eval       head/, features/                       eval/             evaluation.evaluate: acceptance length
    export     head/, eval/, tune/, prompts/          export/           export: directories for SGLang and vLLM
    bench      head/, eval/, features/, target        report/           bench.bench: speed-up, lossless check
    tune       head/, features/, target               tune/             bench.tune; `eyas run` leaves it out

A stage is finished if its directory has a provenance.json that records exactly its present inputs. A finished stage is
skipped, and an interrupted stage continues. Only this module knows all stages. The command line, `eyas doctor`, `eyas
plan` and record_lineage call its class `Run`.
"""

import datetime
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from eyas import export
from eyas.base.c_memory import keep_freed_memory
from eyas.base.config import build, load_toml, merge_tables, parse_overrides, to_toml
from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import StageInputs, has_provenance, read_provenance, require_finished
from eyas.base.storage import StoragePath, lock_directory, remove_temp_files, write_atomic
from eyas.bench import bench, tune
from eyas.bench.config import BenchConfig, TuneConfig
from eyas.costs.config import PlanConfig
from eyas.data import prompts
from eyas.data.answers import respond
from eyas.data.answers.remote_responder import RemoteResponder
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Responder
from eyas.data.ledger.cards import render_data_section
from eyas.data.licenses import acknowledgements
from eyas.data.licenses.license_gate import LicenseGate
from eyas.data.licenses.license_metadata import TargetClaim, read_target_claim
from eyas.data.prompts_config import PromptsConfig
from eyas.deploy.config import DeployConfig
from eyas.engine_responder import EngineResponder
from eyas.evaluation import evaluate
from eyas.evaluation.evaluate import EvalConfig
from eyas.features import capture
from eyas.features.capture import CaptureConfig
from eyas.features.reader import Features
from eyas.features.store import FeaturesConfig, read_manifest
from eyas.formats.head_dir import digest_head, read_head, resolve_head
from eyas.model.devices import DTYPES, default_device
from eyas.model.target import Target, load_target_without_layers
from eyas.model.target_dir import TargetDir, public_name, resolve_target
from eyas.privacy.filter import PrivacyFilter
from eyas.privacy.surrogates import load_surrogate_key
from eyas.train import train
from eyas.train.config import TrainConfig
from eyas.train.distributed import SINGLE_PROCESS, ProcessGroup
from eyas.train.init_head import RANDOM

STAGES = ("prompts", "respond", "capture", "train", "eval", "export", "bench")
SIDE_STAGES = {"tune": "eval"}
"""Stages that `eyas run` does not run. The value is the stage whose inputs the side stage shares."""
DIRECTORIES = {"prompts": "prompts", "respond": "conversations", "capture": "features"}
DIRECTORIES |= {"train": "head", "eval": "eval", "export": "export", "bench": "report", "tune": "tune"}
PARENTS = {"prompts": "prompts", "conversations": "respond", "features": "capture", "training": "capture"}
PARENTS |= {"head": "train", "eval": "eval"}
"""Key of `parents` in a provenance.json -> the stage that writes it. The digest of a head is `digest_head`."""
RECIPE_FILE = "recipe.toml"


# --- the recipe ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetConfig:
    """The recipe keys `target.*`.

    Attributes:
        model: The target: a local directory, a hub id, or "embedded" for the model that ships with eyas.
        dtype: The dtype in which the target runs.
        head: A head directory, or "embedded", to use instead of training a head.
        license: The SPDX id of the target's license, if its directory does not name one.
    """

    model: str = "embedded"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    head: str | None = None
    license: str | None = None


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. The keys of a stage are defined in its package.

    Attributes:
        name: The name of the run; the default run directory is runs/NAME.
    """

    name: str = "recipe"
    target: TargetConfig = field(default_factory=TargetConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    respond: RespondConfig = field(default_factory=RespondConfig)
    capture: CaptureConfig = field(default_factory=CaptureConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    deploy: DeployConfig = field(default_factory=DeployConfig)

    def __post_init__(self) -> None:
        """Raises UsageError for a name that cannot be a directory, and for an empty head."""
        if self.name in ("", ".", "..") or set(self.name) & set("/\\"):
            raise UsageError(f"name={self.name!r} cannot be a directory below runs/", "Use a name without separators")
        if self.target.head == "":
            raise UsageError("target.head is empty", "Name a head directory, or leave the key out to train a head")


def load_recipe(path: Path, overrides: dict[str, object]) -> Recipe:
    """Reads a recipe and merges the overrides into it. Raises InputError or UsageError if it is invalid."""
    if path.suffix != ".toml":
        raise UsageError(f"The recipe {path} is not a .toml file", "Name a recipe, for example recipes/tiny.toml")
    return build(Recipe, merge_tables(merge_tables({"name": path.stem}, load_toml(path)), overrides))


def load_quickstart_recipe() -> Recipe:
    """Returns the recipe of `eyas quickstart`. It takes a few minutes on two cores."""
    with as_file(files("eyas").joinpath("quickstart.toml")) as path:
        return load_recipe(path, {})


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A recipe and its run directory. The target is loaded when the first stage needs it.

    Attributes:
        device: The device of the target. Only the stages capture and eval accept `auto` (all devices).
        ranks: The processes that together run the stage `train`.
    """

    recipe: Recipe
    out: Path
    progress: bool = True
    device: str = "cpu"
    ranks: ProcessGroup = SINGLE_PROCESS

    def directory(self, stage: str) -> Path:
        """Returns the local directory of a stage, below the run directory."""
        return self.out / DIRECTORIES[stage]

    def storage_path(self, stage: str) -> StoragePath:
        """Returns the directory of a stage. If `features.url` is set, the directory of capture is at this URL."""
        url = self.recipe.features.url
        return StoragePath(url) if stage == "capture" and url is not None else StoragePath.of(self.directory(stage))

    @cached_property
    def target(self) -> Target:
        """The loaded target, in the dtype of `target.dtype`. It captures the layers of `capture.aux_layer_ids`."""
        config, layers = self.recipe.target, self.recipe.capture.aux_layer_ids
        target = Target.load(config.model, DTYPES[config.dtype], layers, self.device)
        if layers is None and self.ranks.is_main:
            capture.print_chosen_layers(target.aux_layer_ids, target.info.num_layers)
        return target

    @cached_property
    def layerless_target(self) -> Target:
        """The target for `train` and `eval`: only embedding and LM head, unless all layers are needed or loaded."""
        needs_layers = self.recipe.capture.online or self.recipe.eval.temperature is not None
        if needs_layers or "target" in vars(self):
            return self.target
        config, layers = self.recipe.target, self.recipe.capture.aux_layer_ids
        return load_target_without_layers(config.model, DTYPES[config.dtype], layers, self.device)

    @property
    def trains_head(self) -> bool:
        """True if this run trains a head, False if `target.head` names an existing head."""
        return self.recipe.target.head is None

    @property
    def head_directory(self) -> Path:
        """The directory of the trained head, or of the head that `target.head` names."""
        return resolve_head(self.recipe.target.head) if self.recipe.target.head else self.directory("train")

    def run_stage(self, stage: str) -> None:
        """Runs one stage unless it is finished, and then writes recipe.toml.

        Raises:
            InputError: An earlier stage was made from directories that have changed since. recipe.toml is not changed.
                Or another process on this machine runs a stage of this run directory.
        """
        # Other processes may share these stages and be in the middle of a write.
        worlds = {"prompts": self.recipe.prompts.world, "capture": self.recipe.capture.world}
        with ExitStack() as stack:
            if self.out.is_dir() and worlds.get(stage, 1) == 1 and self.ranks.is_main:
                stack.enter_context(lock_directory(self.out))
                remove_temp_files(self.out)
            self._require_current_inputs(stage)
            self._execute(stage)
            if self.ranks.is_main:
                write_atomic(self.out / RECIPE_FILE, to_toml(self.recipe))

    def _require_current_inputs(self, stage: str) -> None:
        """Raises InputError if an earlier stage was made from directories that have changed since."""
        before = STAGES[: STAGES.index(SIDE_STAGES.get(stage, stage))]
        paths = {earlier: self.storage_path(earlier) for earlier in before if earlier != "train" or self.trains_head}
        finished = {earlier: path for earlier, path in paths.items() if has_provenance(path)}
        for earlier, path in finished.items():
            for name, recorded in read_provenance(path).parents.items():
                parent = PARENTS.get(name)
                if parent not in finished or name == "head":
                    continue
                current = read_provenance(finished[parent]).digest
                if recorded != current:
                    problem = f"{path} was made from {name} {recorded[:19]}, but {finished[parent]} has"
                    fix = f"Run `eyas {earlier}` with this recipe and --out, then the stages after it"
                    raise InputError(f"{problem} {current[:19]} now", fix)

    def _execute(self, stage: str) -> None:
        """Calls the code of a stage with its inputs and its output directory."""
        if self.device == "cpu":
            keep_freed_memory()
        recipe, progress, out = self.recipe, self.progress, self.directory(stage)
        features = self.storage_path("capture")
        match stage:
            case "prompts":
                given = acknowledgements.read_acknowledgements(self.acknowledgements_file)
                decision = LicenseGate.load(recipe.prompts.policy).decide(self._read_target_claim(), given)
                prompts.run(recipe.prompts, out, progress, self.acknowledgements_file, decision.to_json())
            case "respond":
                prompts_dir, scanner = self.directory("prompts"), self.build_answer_scanner()
                respond.run(recipe.respond, prompts_dir, out, self.build_responder(), progress, scanner)
            case "capture":
                capture.run(recipe.capture, self.directory("respond"), self.target, features, progress=progress)
            case "train":
                if self.trains_head:
                    card, options = self._render_data_card(), {"progress": progress, "group": self.ranks}
                    train.run(self.train_config, features, self.layerless_target, out, data_card=card, **options)
            case "eval":
                inputs = evaluate.EvalInputs(self.head_directory, features)
                evaluate.run(recipe.eval, inputs, self.layerless_target, out, progress=progress)
            case "export":
                export.run(self.export_inputs(), self.target, out)
            case "bench":
                bench.run(recipe.bench, self.bench_inputs(), self.target, self.summarize_stages(), out, progress)
            case "tune":
                tune.run(recipe.tune, self.head_directory, features, self.target, out, progress)

    def build_inputs(self, stage: str) -> StageInputs:
        """Returns the inputs of a stage, from this recipe and the current content of the directories that it reads.

        Raises:
            InputError: Something that the stage reads is missing or damaged.
        """
        recipe = self.recipe
        match stage:
            case "prompts":
                return prompts.open_prompts(recipe.prompts, self.acknowledgements_file).origin
            case "respond":
                digest, scanner = read_provenance(self.directory("prompts")).digest, self.build_answer_scanner()
                return respond.build_origin(recipe.respond, digest, self.build_responder(), scanner)
            case "capture":
                digest = read_provenance(self.directory("respond")).digest
                return capture.build_origin(recipe.capture, digest, self.target)
            case "export":
                return export.build_origin(self.export_inputs(), self.layerless_target)
            case "bench":
                digest = digest_head(self.head_directory)
                return bench.build_origin(recipe.bench, self.bench_inputs(), digest, self.target)
        features = Features(self.storage_path("capture"))
        if stage == "train":
            return train.build_origin(self.train_config, features, self.layerless_target)
        if stage == "tune":
            return tune.build_origin(recipe.tune, self.head_directory, features, self.target)
        stored = read_head(self.head_directory, DTYPES[recipe.eval.dtype], self.layerless_target.info.num_layers)
        return evaluate.build_origin(recipe.eval, stored, (features, features), self.layerless_target)

    # --- inputs of single stages -------------------------------------------------------------------------------------

    @property
    def acknowledgements_file(self) -> Path:
        """The file that records who has accepted which license terms for this run."""
        return self.out / acknowledgements.ACKNOWLEDGEMENTS_FILE

    def acknowledge_terms(self, signer: str) -> list[str]:
        """Saves that `signer` accepts the required license terms. Returns the names of the targets and sources."""
        claims = [self._read_target_claim(), *prompts.read_claims(self.recipe.prompts)]
        path, now = self.acknowledgements_file, datetime.datetime.now(datetime.UTC)
        given = acknowledgements.read_acknowledgements(path)
        pending = LicenseGate.load(self.recipe.prompts.policy).find_pending(claims, given)
        acknowledgements.append_acknowledgements(path, signer, pending, now)
        return [claim.name for claim in pending]

    def _read_target_claim(self) -> TargetClaim:
        """Returns the license of the target, which may forbid training on its answers."""
        target = self.recipe.target
        return read_target_claim(resolve_target(target.model), public_name(target.model), target.license)

    def build_responder(self) -> Responder:
        """Returns the object that answers prompts: eyas's engine with the target, or the server at `respond.url`.

        Raises:
            InputError: The target has no chat template.
        """
        config = self.recipe.respond
        if config.url is not None:
            directory = TargetDir.open(self.recipe.target.model)
            digests = (directory.digest, directory.tokenizer_digest, directory.template_digest)
            answer = RemoteResponder(config, directory.tokenizer)
            return Responder(answer, directory.tokenizer, directory.max_positions, *digests)
        target = self.target
        target.require_chat_template()
        digests = (target.digest, target.tokenizer_digest, target.template_digest, str(target.model.dtype))
        return Responder(EngineResponder(target, config), target.tokenizer, target.info.max_positions, *digests)

    def build_answer_scanner(self) -> PrivacyFilter | None:
        """Returns the scanner that finds personal data in answers. The target may write data that no prompt contains.

        Returns None if all prompts are from eyas.evalsets, which contain no personal data.
        """
        config = self.recipe.prompts
        if all(source.is_builtin for source in config.all_sources()):
            return None
        return PrivacyFilter(config.privacy, load_surrogate_key(config.privacy.key_file))

    @property
    def train_config(self) -> TrainConfig:
        """The settings `train.*`. If `train.init` names a head, it is replaced by the directory of this head."""
        config = self.recipe.train
        return config if config.init == RANDOM else replace(config, init=str(resolve_head(config.init)))

    def _render_data_card(self) -> str:
        """Returns the license decisions of the stage `prompts` as Markdown for the head's card, or ""."""
        path = self.directory("prompts") / prompts.LEDGER_FILE
        ledger = json.loads(path.read_bytes()) if path.is_file() else {}
        return render_data_section(ledger, ledger["target"]) if ledger.get("target") else ""

    def export_inputs(self) -> export.ExportInputs:
        """Returns the directories that `export` reads."""
        before = (self.directory(stage) for stage in ("eval", "tune", "prompts"))
        tree = self.recipe.eval.shape
        return export.ExportInputs(self.head_directory, *before, tree=tree, is_trained_here=self.trains_head)

    def bench_inputs(self) -> bench.BenchInputs:
        """Returns the directories that `bench` reads."""
        return bench.BenchInputs(self.head_directory, self.directory("eval"), self.storage_path("capture"))

    def summarize_stages(self) -> dict[str, object]:
        """Returns the sizes of the outputs of the stages before `bench` and the time of training, for the report."""
        for stage in ("prompts", "respond", "capture"):
            require_finished(self.storage_path(stage), stage)
        answers = json.loads((self.directory("respond") / respond.LEDGER_FILE).read_bytes())
        trained = require_finished(self.directory("train"), "train") if self.trains_head else None
        init = None if trained is None else trained.parents.get("init")
        head_start = RANDOM if init is None else f"another head's ({init})"
        return {
            "prompts": json.loads((self.directory("prompts") / prompts.LEDGER_FILE).read_bytes())["kept"],
            "answers": answers["answers"],
            "tokens": answers["tokens"],
            "feature_bytes": sum(shard.num_bytes for shard in read_manifest(self.storage_path("capture")).shards),
            "train_seconds": None if trained is None else trained.seconds,
            "head_start": "trained before this run" if trained is None else head_start,
        }


def open_run(recipe: str, overrides: Sequence[str], out: str | None, device: str | None = None) -> Run:
    """Loads a recipe and returns its run.

    Args:
        recipe: The path of the TOML file.
        overrides: "key=value" strings that override the file.
        out: The run directory; None for runs/NAME.
        device: The device of the target; None for CUDA if there is a GPU, else the CPU.
    """
    loaded = load_recipe(Path(recipe), parse_overrides(overrides))
    return Run(loaded, Path("runs") / loaded.name if out is None else Path(out), device=device or default_device())
