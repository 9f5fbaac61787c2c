"""`eyas doctor`: checks a run, a head or a target and returns findings. It changes no files of them.

    prompts -> conversations -> features -> head -> eval -> report

In a run it checks that each stage is finished, that no file has changed since, and that the stage was made from the
current files of earlier stages with the settings of recipe.toml. It also checks that all stages used the same target,
tokenizer and chat template.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from eyas.base.config import build, load_toml
from eyas.base.errors import EyasError, Finding, InputError
from eyas.base.provenance import PROVENANCE, Provenance, has_provenance, read_provenance, verify_contents
from eyas.base.storage import StoragePath
from eyas.features.store import read_manifest
from eyas.formats.config import is_head_config
from eyas.formats.fit import check_embedding, check_fit, check_weights
from eyas.formats.head_dir import CONFIG_FILE, StoredHead, digest_head, inspect_head, read_head
from eyas.kernels.cpu_attention import Unavailable
from eyas.kernels.dispatch import cpu_kernel
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, read_num_layers, resolve_target
from eyas.recipe import DIRECTORIES, PARENTS, RECIPE_FILE, SIDE_STAGES, STAGES, Recipe, Run, resolve_head

NO_LAYERS = (0,)  # nothing is captured here: layer 0 exists in every target
KINDS = "Name a run directory, a head directory or a target directory"


def examine(path: str, target: str | None) -> list[Finding]:
    """Checks a run directory, a head directory or a target directory, and returns the findings.

    Args:
        path: The directory, or "embedded" for the head that ships with eyas.
        target: The target with which a head is compared; None for the target that the run or the head names.

    Raises:
        InputError: `path` is not one of these directories, or `target` does not exist.
    """
    directory = resolve_head(path) if path == EMBEDDED else Path(path)
    if not directory.is_dir():
        raise InputError(f"No directory {path}", KINDS)
    if target is not None:
        resolve_target(target)
    if (directory / RECIPE_FILE).is_file() or any((directory / d / PROVENANCE).is_file() for d in DIRECTORIES.values()):
        return list(_end_with_misfit(_examine_run(directory, target)))
    if not (directory / CONFIG_FILE).is_file():
        problem = f"{directory} has neither {RECIPE_FILE} nor {CONFIG_FILE}"
        raise InputError(problem, f"{KINDS}. For a run, name its directory, for example runs/NAME")
    findings = _examine_head(directory, target) if _is_head(directory) else _examine_target(directory)
    return list(_end_with_misfit(findings))


def examine_machine() -> Finding:
    """Builds the C attention kernel for this CPU if needed. Returns "ok", or a warning if the build fails."""
    kernel = cpu_kernel()
    if isinstance(kernel, Unavailable):
        problem = "Attention on this CPU runs the dense reference, which gives the same results but is slower"
        return Finding("warning", f"{problem} ({kernel.reason})", "Install gcc to build the kernel in C")
    return Finding("ok", "Attention on this CPU runs the kernel in C")


def _is_head(directory: Path) -> bool:
    """Returns True if the directory contains a head. With a damaged config.json: True if it has no tokenizer."""
    with contextlib.suppress(OSError, ValueError):
        raw = json.loads((directory / CONFIG_FILE).read_bytes())
        if isinstance(raw, dict) and is_head_config(raw):
            return True
    return not any(directory.glob("tokenizer*"))


def _misfit(error: EyasError) -> Finding:
    return Finding("misfit", error.problem, error.fix)


def _end_with_misfit(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yields the findings of a check. If the check raises an error, its last finding is a misfit with that text."""
    try:
        yield from findings
    except InputError as error:
        yield _misfit(error)


# --- a target, a head ------------------------------------------------------------------------------------------------


def _examine_target(directory: Path) -> Iterator[Finding]:
    target = Target.load(directory, layers=NO_LAYERS)
    yield Finding("ok", f"Target {directory} loads: {target.info.num_parameters:,} parameters, plain attention")
    target.require_chat_template()
    yield Finding("ok", f"Target {directory} has a chat template")


def _examine_head(directory: Path, target: str | None) -> Iterator[Finding]:
    """Checks the files of a head and its fit to `target`. If that is None, only a head for "embedded" is compared."""
    if (directory / PROVENANCE).is_file():
        yield _check_contents("head", directory)
    num_layers = None if target is None else read_num_layers(target)
    parsed, weights = inspect_head(directory, num_layers)
    if parsed.layout != "eyas":
        yield Finding("ok", f"{directory} has the layout of {parsed.layout}")
    findings = [*parsed.findings, *([] if weights is None else weights.findings)]
    yield from findings
    if any(finding.weight == "misfit" for finding in findings):
        return
    stored = read_head(directory, None, num_layers)
    yield from check_weights(stored)
    size = f"{stored.head.num_parameters:,} parameters, {stored.vocab.size:,} of {stored.vocab.target_size:,} tokens"
    yield Finding("ok", f"Head {directory} loads: {size}, {stored.config.variant}")
    if target is None and stored.metadata.target_name != EMBEDDED:
        name = stored.metadata.target_name
        trained_for = "names no target" if name is None else f"was trained for {name}"
        fix = "Add --target T to compare it with its target"
        yield Finding("warning", f"Head {directory} {trained_for} and was not compared with a target", fix)
        return
    loaded = Target.load(target or EMBEDDED, layers=NO_LAYERS)
    loaded.require_chat_template()
    yield from _examine_pair(stored, loaded)


def _examine_pair(stored: StoredHead, target: Target) -> Iterator[Finding]:
    findings = check_fit(stored, target.info, target.digest, target.text_digests)
    yield from findings
    yield from check_embedding(stored, target.embedding.weight)
    if not any(finding.weight == "misfit" for finding in findings):
        share = stored.head.num_parameters / target.info.num_parameters
        yield Finding("ok", f"The head fits target {target.info.name} and has {share:.1%} of its parameters")


# --- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FinishedRun:
    """The finished stages of a run directory.

    Attributes:
        out: The run directory.
        head: The head directory. It is outside the run directory if the recipe names an existing head.
        stages: The provenance of each finished stage by its verb.
    """

    out: Path
    head: Path
    stages: Mapping[str, Provenance]

    @cached_property
    def head_digest(self) -> str | None:
        """The digest of the head's config.json and weights; None if one of them is missing."""
        try:
            return digest_head(self.head)
        except InputError:
            return None

    def digest(self, parent: str) -> str | None:
        """Returns the current digest of a key of `parents`; None if it is unfinished or not part of this run."""
        if parent == "head":
            return self.head_digest
        stage = self.stages.get(PARENTS.get(parent, ""))
        return None if stage is None else stage.digest


def _examine_run(out: Path, target: str | None) -> Iterator[Finding]:
    recipe = None
    try:
        recipe = build(Recipe, load_toml(out / RECIPE_FILE))
        yield Finding("ok", f"{out / RECIPE_FILE} is valid")
    except EyasError as error:
        yield _misfit(error)
    own_head = recipe is None or recipe.target.head is None
    stages: dict[str, Provenance] = {}
    for stage in (*STAGES, *(stage for stage in SIDE_STAGES if (out / DIRECTORIES[stage]).is_dir())):
        if stage == "train" and not own_head:
            continue
        directory = out / DIRECTORIES[stage] if recipe is None else Run(recipe, out).storage_path(stage)
        yield from _end_with_misfit(_examine_stage(stage, StoragePath.of(directory), stages))
    head = out / DIRECTORIES["train"] if own_head or recipe is None else resolve_head(recipe.target.head or "")
    finished = _FinishedRun(out, head, stages)
    yield from _examine_parents(finished)
    for directory in sorted((out / "deploy").glob("*/")):
        yield from _examine_deployment(directory, finished)
    if recipe is not None and target is not None:
        recipe = replace(recipe, target=replace(recipe.target, model=target))
    run = None if recipe is None else Run(recipe, out, progress=False)
    loaded, template = None, None
    try:
        if run is not None:
            loaded = run.target
        elif target is not None:
            loaded = Target.load(target, layers=NO_LAYERS)
        template = None if loaded is None else loaded.template_digest
    except InputError as error:
        yield _misfit(error)
    if run is not None and loaded is not None:
        yield from _examine_settings(run, finished)
    yield from _examine_target_digests(finished, loaded, template)
    if loaded is not None and (head / CONFIG_FILE).is_file():
        yield from _examine_pair(read_head(head, None, loaded.info.num_layers), loaded)


def _examine_stage(stage: str, directory: StoragePath, stages: dict[str, Provenance]) -> Iterator[Finding]:
    """Checks the directory of one stage. If the stage is finished, adds its provenance to `stages`."""
    fix = f"Run `eyas {stage}` with the recipe of this run"
    if not directory.list_files():
        yield Finding("warning", f"Stage {stage} has not run: {directory} is missing or empty", fix)
        return
    if not has_provenance(directory):
        yield Finding("warning", f"{directory} is unfinished: it has no {PROVENANCE}", f"{fix} again")
        return
    provenance = read_provenance(directory)
    if provenance.stage != stage:
        yield Finding("misfit", f"{directory} was written by stage {provenance.stage}, not by {stage}", fix)
        return
    stages[stage] = provenance
    yield _check_contents(stage, directory.path) if directory.is_local else _check_sizes(stage, directory)


def _check_contents(stage: str, directory: Path) -> Finding:
    """Reads every file of a directory and compares its digest with the recorded one."""
    try:
        provenance = verify_contents(directory)
    except InputError as error:
        return _misfit(error)
    missing = [name for name in provenance.undigested if "*" not in name and not (directory / name).is_file()]
    if missing:
        return Finding("misfit", f"The file {directory / missing[0]} is missing", f"Run `eyas {stage}` again")
    if not provenance.files:
        return Finding("ok", f"{stage} is finished, all files exist (they hold times, so they have no digest)")
    return Finding("ok", f"{stage} is finished, all {len(provenance.files)} files have their recorded digest")


def _check_sizes(stage: str, features: StoragePath) -> Finding:
    """Compares the sizes of remote shards with the manifest. It does not read them, which could take hours."""
    shards = read_manifest(features).shards
    for shard in shards:
        path = features.join(shard.name)
        if (size := path.size()) != shard.num_bytes:
            problem = f"{path} has {size or 0:,} bytes, but the manifest records {shard.num_bytes:,}"
            return Finding("misfit", problem, f"Remove it and run `eyas {stage}` again")
    return Finding("ok", f"{stage} is finished, all {len(shards)} shards at {features} have their recorded size")


def _examine_parents(finished: _FinishedRun) -> Iterator[Finding]:
    """Checks that each stage was made from the current content of the directories that it reads."""
    num_parents, num_changed = 0, 0
    for stage, provenance in finished.stages.items():
        for parent, recorded in provenance.parents.items():
            current = finished.digest(parent)
            num_parents += current is not None
            if current not in (None, recorded):
                num_changed += 1
                problem = f"{finished.out / DIRECTORIES[stage]} was made from {parent} with digest {recorded},"
                problem += f" but {parent} has {current} now"
                fix = f"Run `eyas {stage}` and the stages after it again, or restore the old {parent}"
                yield Finding("misfit", problem, fix)
    if num_parents and not num_changed:
        yield Finding("ok", f"Every stage was made from the stages in the run now ({num_parents} parents)")


def _examine_deployment(directory: Path, finished: _FinishedRun) -> Iterator[Finding]:
    """Checks the deployment files of a platform, and that they serve this run's head or one of its exports."""
    fix = f"Run `eyas deploy {directory.name}` with the recipe of this run again"
    if not has_provenance(directory):
        yield Finding("warning", f"{directory} is unfinished: it has no {PROVENANCE}", fix)
        return
    contents = _check_contents(f"deploy {directory.name}", directory)
    yield contents
    if contents.weight == "misfit":
        return
    heads = [finished.head, *(path.parent for path in finished.out.glob(f"{DIRECTORIES['export']}/*/{CONFIG_FILE}"))]
    wanted = read_provenance(directory).parents.get("head")  # None if only jobs are deployed
    if wanted is not None and wanted not in {digest_head(head) for head in heads if (head / CONFIG_FILE).is_file()}:
        problem = f"{directory} deploys a head with digest {wanted}, which is neither this run's head nor an export"
        yield Finding("misfit", problem, fix)


def _examine_settings(run: Run, finished: _FinishedRun) -> Iterator[Finding]:
    """Checks that each stage was made with the current settings of recipe.toml."""
    same: list[str] = []
    for stage, provenance in finished.stages.items():
        try:
            settings = run.build_inputs(stage).recipe
        except InputError:
            continue  # a parent is missing or damaged, which another finding says
        if settings == provenance.recipe:
            same.append(stage)
        else:
            keys = "[prompts]" if stage == "prompts" else f"[{stage}] and target.dtype"
            problem = f"{finished.out / DIRECTORIES[stage]} was made with settings of digest {provenance.recipe},"
            problem += f" but {keys} in {finished.out / RECIPE_FILE} has {settings}"
            fix = f"Run `eyas {stage}` again with the recipe of this run, then the stages after it"
            yield Finding("warning", problem, fix)
    if same:
        yield Finding("ok", f"{', '.join(same)}: made with the settings of {RECIPE_FILE}")


def _examine_target_digests(finished: _FinishedRun, target: Target | None, template: str | None) -> Iterator[Finding]:
    """Checks that all stages recorded the same target, tokenizer and chat template, and the same as `target`."""
    recorded: dict[str, dict[str, str | None]] = {
        "target": {stage: p.parents.get("target") for stage, p in finished.stages.items()},
        "tokenizer": {stage: p.tokenizer for stage, p in finished.stages.items()},
        "chat template": {stage: p.template for stage, p in finished.stages.items()},
    }
    if target is not None:
        name = f"target {target.info.name}"
        recorded["target"][name], recorded["tokenizer"][name] = target.digest, target.tokenizer_digest
        recorded["chat template"][name] = template
    for kind, digests in recorded.items():
        known = {name: digest for name, digest in digests.items() if digest is not None}
        if len(known) < 2:
            continue
        (first, expected), *others = known.items()
        different = [(name, digest) for name, digest in others if digest != expected]
        for name, digest in different:
            problem = f"{name} has a {kind} with digest {digest}, but {first} has {expected}"
            yield Finding("misfit", problem, "Run the stages again with one target, or pass this run's target")
        if not different:
            yield Finding("ok", f"{kind.capitalize()}: the same in {', '.join(known)}")
