"""A recipe and its run directory: every stage from prompts to report, joined from rooms that are strangers.

    prompts -> respond -> capture -> train -> eval -> export -> bench        each skipped where it is finished
                                       └────> tune                 aside: asked for by name alone

A stage is finished when its directory ends with a provenance.json of exactly these inputs; running a verb again
continues whatever was interrupted.
"""

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from eyas import export
from eyas.base.config import build, load_toml, merge_tables, to_toml
from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import Provenance, StageInputs, has_provenance, read_provenance, require_finished
from eyas.base.storage import StoragePath, remove_temp_files, write_atomic
from eyas.bench import bench, tune
from eyas.bench.config import BenchConfig, TuneConfig
from eyas.costs.config import PlanConfig
from eyas.data import prompts
from eyas.data.answers import respond
from eyas.data.answers.remote_responder import RemoteResponder
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import AnswerScanner, Responder
from eyas.data.ledger.cards import render_data_section
from eyas.data.licenses.acknowledgements import ACKNOWLEDGEMENTS_FILE as ACKNOWLEDGEMENTS
from eyas.data.licenses.acknowledgements import append_acknowledgements, read_acknowledgements
from eyas.data.licenses.license_gate import LicenseDecision
from eyas.data.licenses.license_metadata import TargetClaim, read_target_claim
from eyas.data.prompts_config import PromptsConfig
from eyas.data.surrogate_key import load_surrogate_key
from eyas.deploy.config import DeployConfig
from eyas.engine_responder import EngineResponder
from eyas.evaluation import evaluate
from eyas.evaluation.evaluate import EvalConfig
from eyas.features import capture
from eyas.features.capture import CaptureConfig
from eyas.features.reader import Features
from eyas.features.store import FeaturesConfig, read_manifest
from eyas.formats.head_dir import digest_head, read_head, resolve_head
from eyas.model.devices import DTYPES
from eyas.model.target import Target, load_target_without_layers
from eyas.model.target_dir import TokenizerInfo, resolve_target
from eyas.privacy.filter import PrivacyFilter
from eyas.train import train as loop
from eyas.train.config import TrainConfig
from eyas.train.distributed import SINGLE_PROCESS, ProcessGroup
from eyas.train.init_head import RANDOM

STAGES = ("prompts", "respond", "capture", "train", "eval", "export", "bench")
SIDE_STAGES = {"tune": "eval"}
"""A stage that `eyas run` leaves out -> the one whose place it has: it reads what comes before that one."""
DIRECTORIES = {"prompts": "prompts", "respond": "conversations", "capture": "features"}
DIRECTORIES |= {"train": "head", "eval": "eval", "export": "export", "bench": "report", "tune": "tune"}
PARENTS = {"prompts": "prompts", "conversations": "respond", "features": "capture", "training": "capture"}
PARENTS |= {"head": "train", "eval": "eval"}
"""What a provenance calls a parent -> the stage that made it. The head is known by its two files: `digest_head`."""
RECIPE_FILE = "recipe.toml"


@dataclass(frozen=True)
class TargetConfig:
    """The recipe keys `target.*`.

    head: a head directory to use instead of training one ("embedded": the shipped). license: of the target, where its
    directory does not say it.
    """

    model: str = "embedded"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    head: str | None = None
    license: str | None = None


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a run makes. Each stage's part belongs to the room that reads it."""

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
        if self.name in ("", ".", "..") or set(self.name) & set("/\\"):
            raise UsageError(f"name = {self.name!r}", "a plain name, for runs/<name>", "take out the separators")
        if self.target.head == "":
            raise UsageError("an empty target.head", "a head directory or 'embedded'", "leave it out to train one")


def load_recipe(path: Path, overrides: dict[str, object]) -> Recipe:
    """The recipe of a TOML file with `stage.key=value` laid over it. InputError / UsageError."""
    if path.suffix != ".toml":
        raise UsageError(f"recipe {path}", "a .toml file", "name a recipe, for example recipes/tiny.toml")
    return build(Recipe, merge_tables(merge_tables({"name": path.stem}, load_toml(path)), overrides))


@dataclass(frozen=True)
class Run:
    """A recipe at work in a run directory. The target is loaded when the first stage asks for it.

    device: where the target lives (`model.devices`). Only capture and eval take `auto`: what they ask of the target are
    forwards over whole texts, and rows of its two largest matrices; the others run the engine. ranks: the processes
    that share the stage `train`; the others are the work of one.
    """

    recipe: Recipe
    out: Path
    progress: bool = True
    device: str = "cpu"
    ranks: ProcessGroup = SINGLE_PROCESS

    def directory(self, stage: str) -> Path:
        """Where a stage writes."""
        return self.out / DIRECTORIES[stage]

    def place(self, stage: str) -> StoragePath:
        """The same; of features, wherever `features.url` has them."""
        url = self.recipe.features.url
        return StoragePath(url) if stage == "capture" and url is not None else StoragePath.of(self.directory(stage))

    @cached_property
    def target(self) -> Target:
        """The target in the recipe's dtype, with the layers that capture asks for."""
        wanted, layers = self.recipe.target, self.recipe.capture.aux_layer_ids
        return Target.load(wanted.model, DTYPES[wanted.dtype], layers, self.device)

    @cached_property
    def layerless_target(self) -> Target:
        """The target as `train` and `eval` read it: without its layers, unless they run it or it is loaded anyway."""
        needed = self.recipe.capture.online or self.recipe.eval.temperature is not None
        if needed or "target" in vars(self):
            return self.target
        wanted, layers = self.recipe.target, self.recipe.capture.aux_layer_ids
        return load_target_without_layers(wanted.model, DTYPES[wanted.dtype], layers, self.device)

    @property
    def head_directory(self) -> Path:
        """The trained head, or the one that `target.head` names."""
        return self.directory("train") if self.recipe.target.head is None else resolve_head(self.recipe.target.head)

    @property
    def train_config(self) -> TrainConfig:
        """`train`, with the directory of the head that training starts from."""
        train = self.recipe.train
        return train if train.init == RANDOM else replace(train, init=str(resolve_head(train.init)))

    def run_stage(self, stage: str) -> None:
        """One stage; nothing is done where it is finished. InputError where what it reads is out of step.

        recipe.toml is written when the stage is finished, so a refused command leaves that of the work that is there.
        """
        # Where machines share a stage, another one may be in the middle of a write.
        worlds = {"prompts": self.recipe.prompts.world, "capture": self.recipe.capture.world}
        if self.out.is_dir() and worlds.get(stage, 1) == 1 and self.ranks.is_main:
            remove_temp_files(self.out)
        self._require_current_inputs(stage)
        self._stages[stage]()
        if self.ranks.is_main:
            write_atomic(self.out / RECIPE_FILE, to_toml(self.recipe))

    def _require_current_inputs(self, stage: str) -> None:
        """Each finished stage before this one must be made from what its parents hold now."""
        own_head = self.recipe.target.head is None
        before = [made for made in STAGES[: STAGES.index(SIDE_STAGES.get(stage, stage))] if made != "train" or own_head]
        held = {made: self.place(made) for made in before if has_provenance(self.place(made))}
        for made, place in held.items():
            for name, recorded in read_provenance(place).parents.items():
                parent = PARENTS.get(name)
                if parent not in held or name == "head":
                    continue
                now = read_provenance(held[parent]).digest
                if recorded != now:
                    raise InputError(
                        f"{place} made from {name} with digest {recorded}",
                        f"digest {now}, which {held[parent]} has now",
                        f"run `eyas {made}` again with this recipe and this --out, then the stages after it",
                    )

    @cached_property
    def _stages(self) -> dict[str, Callable[[], object]]:
        recipe, directory, progress, features = self.recipe, self.directory, self.progress, self.place("capture")
        return {
            "prompts": self._prompts,
            "respond": lambda: respond.run(
                recipe.respond,
                directory("prompts"),
                directory("respond"),
                self.build_responder(),
                progress,
                self.build_answer_scanner(),
            ),
            "capture": lambda: capture.run(
                recipe.capture, directory("respond"), self.target, features, progress=progress
            ),
            "train": self._train,
            "eval": lambda: evaluate.run(
                recipe.eval,
                evaluate.EvalInputs(self.head_directory, features),
                self.layerless_target,
                directory("eval"),
                progress=progress,
            ),
            "export": lambda: export.run(self.export_inputs(), self.target, directory("export")),
            "bench": self._bench,
            "tune": lambda: tune.run(
                recipe.tune, self.head_directory, features, self.target, directory("tune"), progress
            ),
        }

    @property
    def acknowledgements_file(self) -> Path:
        """Where people put down which licence terms they acknowledge."""
        return self.out / ACKNOWLEDGEMENTS

    def acknowledge_terms(self, signer: str) -> list[str]:
        """Puts down that `who` answers for all that the licence gate asks about; the names of what that was."""
        claims = [self._target_claim, *prompts.read_claims(self.recipe.prompts)]
        policy = prompts.load_gate(self.recipe.prompts)
        pending = policy.find_pending(claims, read_acknowledgements(self.acknowledgements_file))
        append_acknowledgements(self.acknowledgements_file, signer, pending, datetime.datetime.now(datetime.UTC))
        return [claim.name for claim in pending]

    @property
    def _target_claim(self) -> TargetClaim:
        target = self.recipe.target
        return read_target_claim(resolve_target(target.model), target.model, target.license)

    def _target_decision(self) -> LicenseDecision:
        """The gate covers the target, too: its terms may forbid to train on what it answers."""
        policy = prompts.load_gate(self.recipe.prompts)
        return policy.decide(self._target_claim, read_acknowledgements(self.acknowledgements_file))

    def _prompts(self) -> None:
        prompts.run(
            self.recipe.prompts,
            self.directory("prompts"),
            self.progress,
            self.acknowledgements_file,
            self._target_decision().to_json(),
        )

    def _train(self) -> None:
        if self.recipe.target.head is None:
            loop.run(
                self.train_config,
                self.place("capture"),
                self.layerless_target,
                self.directory("train"),
                progress=self.progress,
                data_card=self._data_card(),
                group=self.ranks,
            )

    def _data_card(self) -> str:
        """What the licence gate decided, for the head's card."""
        path = self.directory("prompts") / prompts.LEDGER_FILE
        ledger = json.loads(path.read_bytes()) if path.is_file() else {}
        return render_data_section(ledger, ledger["target"]) if ledger.get("target") else ""

    def origin(self, stage: str) -> StageInputs:
        """What decides the work of a stage, by this recipe and by what its parents hold now.

        InputError where something that it reads is missing or damaged.
        """
        return self._origins[stage]()

    @cached_property
    def _origins(self) -> dict[str, Callable[[], StageInputs]]:
        recipe, place = self.recipe, self.place

        def digest(stage: str) -> str:
            return read_provenance(place(stage)).digest

        def of_eval() -> StageInputs:
            stored = read_head(self.head_directory, DTYPES[recipe.eval.dtype], self.layerless_target.info.num_layers)
            features = Features(place("capture"))
            return evaluate.build_origin(recipe.eval, stored, (features, features), self.layerless_target)

        return {
            "prompts": lambda: prompts.open_prompts(recipe.prompts, self.acknowledgements_file).origin,
            "respond": lambda: respond.build_origin(
                recipe.respond, digest("prompts"), self.build_responder(), self.build_answer_scanner()
            ),
            "capture": lambda: capture.build_origin(recipe.capture, digest("respond"), self.target),
            "train": lambda: loop.build_origin(self.train_config, Features(place("capture")), self.layerless_target),
            "eval": of_eval,
            "export": lambda: export.origin_of(self.export_inputs(), self.layerless_target),
            "bench": lambda: bench.build_origin(
                recipe.bench, self.bench_inputs(), digest_head(self.head_directory), self.target
            ),
            "tune": lambda: tune.build_origin(
                recipe.tune, self.head_directory, Features(place("capture")), self.target
            ),
        }

    def export_inputs(self) -> export.ExportInputs:
        """The directories that `export` reads."""
        before = (self.directory(stage) for stage in ("eval", "tune", "prompts"))
        return export.ExportInputs(
            self.head_directory, *before, tree=self.recipe.eval.shape, is_trained_here=self.recipe.target.head is None
        )

    def bench_inputs(self) -> bench.BenchInputs:
        """The directories that `bench` reads."""
        return bench.BenchInputs(self.head_directory, self.directory("eval"), self.place("capture"))

    def _bench(self) -> None:
        bench.run(
            self.recipe.bench,
            self.bench_inputs(),
            self.target,
            self.summarize_stages(),
            self.directory("bench"),
            self.progress,
        )

    def summarize_stages(self) -> dict[str, object]:
        """What the stages before made, for the report: read from their directories."""
        for stage in ("prompts", "respond", "capture"):
            require_finished(self.place(stage), stage)
        answers = json.loads((self.directory("respond") / respond.LEDGER_FILE).read_bytes())
        manifest, trained = read_manifest(self.place("capture")), None
        if self.recipe.target.head is None:
            trained = require_finished(self.directory("train"), "train")
        return {
            "prompts": json.loads((self.directory("prompts") / "ledger.json").read_bytes())["kept"],
            "answers": answers["answers"],
            "tokens": answers["tokens"],
            "feature_bytes": sum(shard.num_bytes for shard in manifest.shards),
            "train_seconds": None if trained is None else trained.seconds,
            "head_start": _describe_head_start(trained),
        }

    def build_answer_scanner(self) -> AnswerScanner | None:
        """Looks at answers once more: a target may know what its prompts do not say. None for the grammar's prompts."""
        config = self.recipe.prompts
        if all(source.is_builtin for source in config.all_sources()):
            return None
        return _AnswerScanner(PrivacyFilter(config.privacy, load_surrogate_key(config.privacy.key_file)))

    def build_responder(self) -> Responder:
        """The target as `respond` sees it, here or on the recipe's server. InputError when it has no chat template."""
        config = self.recipe.respond
        if config.url is not None:
            words = TokenizerInfo.load(self.recipe.target.model)
            answer = RemoteResponder(config, words.tokenizer)
            digests = (words.digest, words.tokenizer_digest, words.template_digest)
            return Responder(answer, words.tokenizer, words.max_positions, *digests)
        target = self.target
        target.require_chat_template()
        return Responder(
            answer=EngineResponder(target, config),
            tokenizer=target.tokenizer,
            max_positions=target.info.max_positions,
            target_digest=target.digest,
            tokenizer_digest=target.tokenizer_digest,
            template_digest=target.template_digest,
            target_dtype=str(target.model.dtype),
        )


class _AnswerScanner:
    """The privacy room's filter as `respond` calls it."""

    def __init__(self, privacy: PrivacyFilter) -> None:
        self.digest = privacy.digest
        self._privacy = privacy

    def __call__(self, texts: list[str], languages: list[str]) -> list[dict[str, int]]:
        return self._privacy.scan(texts, languages)


def _describe_head_start(trained: Provenance | None) -> str:
    """Whose weights a head started from, as the report says it."""
    if trained is None:
        return "trained before this run"
    parent = trained.parents.get("init")
    return RANDOM if parent is None else f"another head's ({parent})"
