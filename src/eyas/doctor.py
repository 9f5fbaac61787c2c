"""`eyas doctor`: what is wrong with a run, a head or a target, in words.

    prompts -> conversations -> features -> head -> eval -> report

Every stage must be finished, its files as they were written, made from the stages that lie beside it now, with the
settings of recipe.toml, and all of it from one target, one tokenizer and one chat template. Nothing is changed.
"""

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
from eyas.formats.head_dir import StoredHead, digest_head, inspect_head, read_head
from eyas.kernels.cpu_attention import Unavailable
from eyas.kernels.dispatch import cpu_kernel
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, read_num_layers, resolve_target
from eyas.recipe import DIRECTORIES, PARENTS, RECIPE_FILE, SIDE_STAGES, STAGES, Recipe, Run, resolve_head

CONFIG_FILE = "config.json"
SHALLOW = (0,)  # nothing is captured here, so a target of any depth may be looked at


def examine(path: str, target: str | None) -> list[Finding]:
    """Everything found in a run directory, a head directory or a target directory, in the order it was looked at.

    target: what a head is held against; None for the one that the run or the head itself names. InputError where
    `path` is none of the three, and where `target` names nothing.
    """
    directory = resolve_head(path) if path == EMBEDDED else Path(path)
    if not directory.is_dir():
        raise InputError(f"no directory {path}", "a run directory, a head directory or a target", "check the path")
    if target is not None:
        resolve_target(target)
    if (directory / RECIPE_FILE).is_file() or any((directory / d / PROVENANCE).is_file() for d in DIRECTORIES.values()):
        return list(_examine_run(directory, target))
    if (directory / CONFIG_FILE).is_file():
        if _is_head(directory):
            return list(_examine_head(directory, target))
        return list(_examine_target(directory))
    raise InputError(
        f"neither {RECIPE_FILE} nor {CONFIG_FILE} in {directory}",
        "a run directory, a head directory or a target",
        "check the path; of a run name the directory above its stages",
    )


def examine_machine() -> Finding:
    """Whether attention on this machine's CPU is the operator in C or the reference. Builds it where it must."""
    kernel = cpu_kernel()
    if isinstance(kernel, Unavailable):
        found = f"attention on this CPU by the dense reference, the same words but slower ({kernel.reason})"
        return Finding("warning", found, "the operator in C", "install gcc, or mend what the reason names")
    return Finding("ok", "attention on this CPU", "the operator in C is built")


def _is_head(directory: Path) -> bool:
    """Whether config.json is that of a head; a damaged one beside no tokenizer is taken for a head's too."""
    try:
        raw = json.loads((directory / CONFIG_FILE).read_bytes())
        if isinstance(raw, dict) and is_head_config(raw):
            return True
    except (OSError, ValueError):
        pass
    return not any(directory.glob("tokenizer*"))


def _misfit(error: EyasError) -> Finding:
    return Finding("misfit", error.problem, error.fix, error.do)


# --- a target, a head ------------------------------------------------------------------------------------------------


def _examine_target(directory: Path) -> Iterator[Finding]:
    try:
        target = Target.load(directory, layers=SHALLOW)
        yield Finding("ok", f"target {directory}", f"{target.info.num_parameters:,} parameters, attention is plain")
        target.require_chat_template()
        yield Finding("ok", "chat template", "there is one")
    except InputError as error:
        yield _misfit(error)


def _examine_head(directory: Path, target: str | None) -> Iterator[Finding]:
    """The files of a head, and its fit to `target` or to the embedded target if it says that it is for that one."""
    if (directory / PROVENANCE).is_file():
        yield _contents("head", directory)
    try:
        num_layers = None if target is None else read_num_layers(target)
        read, weights = inspect_head(directory, num_layers)
        if read.layout != "eyas":
            yield Finding("ok", f"layout of {directory}", f"that of {read.layout}")
        findings = [*read.findings, *([] if weights is None else weights.findings)]
        yield from findings
        if any(finding.weight == "misfit" for finding in findings):
            return
        stored = read_head(directory, None, num_layers)
    except InputError as error:
        yield _misfit(error)
        return
    yield from check_weights(stored)
    size = f"{stored.head.num_parameters:,} parameters, {stored.vocab.size:,} of {stored.vocab.target_size:,} tokens"
    size += f", {stored.config.variant}"
    yield Finding("ok", f"head {directory}", size)
    if target is None and stored.metadata.target_name != EMBEDDED:
        made_for = stored.metadata.target_name or "a target that it does not name"
        yield Finding("warning", f"a head for {made_for}, not compared", "--target, to compare them", "add --target T")
        return
    try:
        loaded = Target.load(target or EMBEDDED, layers=SHALLOW)
        loaded.require_chat_template()
    except InputError as error:
        yield _misfit(error)
        return
    yield from _examine_pair(stored, loaded)


def _examine_pair(stored: StoredHead, target: Target) -> Iterator[Finding]:
    findings = check_fit(stored, target.info, target.digest, target.text_digests)
    yield from findings
    yield from check_embedding(stored, target.embedding.weight)
    if not any(finding.weight == "misfit" for finding in findings):
        share = stored.head.num_parameters / target.info.num_parameters
        yield Finding("ok", f"head and target {target.info.name} fit", f"the head is {share:.1%} of the target")


# --- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Finished:
    """The finished stages of a run directory. `head` lies elsewhere where the recipe takes a head that exists."""

    out: Path
    head: Path
    stages: Mapping[str, Provenance]

    @cached_property
    def head_digest(self) -> str | None:
        """The head is known by its two files, not by its card and figures; None where they are not there."""
        try:
            return digest_head(self.head)
        except InputError:
            return None

    def digest(self, parent: str) -> str | None:
        """The digest that this parent has now; None where it is not finished or not of this run."""
        if parent == "head":
            return self.head_digest
        stage = self.stages.get(PARENTS.get(parent, ""))
        return None if stage is None else stage.digest


def _examine_run(out: Path, target: str | None) -> Iterator[Finding]:
    recipe = None
    try:
        recipe = build(Recipe, load_toml(out / RECIPE_FILE))
        yield Finding("ok", f"{out / RECIPE_FILE}", "every key is known")
    except EyasError as error:
        yield _misfit(error)
    own_head = recipe is None or recipe.target.head is None
    stages: dict[str, Provenance] = {}
    for stage in (*STAGES, *(stage for stage in SIDE_STAGES if (out / DIRECTORIES[stage]).is_dir())):
        if stage == "train" and not own_head:
            continue
        place = out / DIRECTORIES[stage] if recipe is None else Run(recipe, out).storage_path(stage)
        yield from _examine_stage(stage, StoragePath.of(place), stages)
    try:
        head = out / DIRECTORIES["train"] if own_head or recipe is None else resolve_head(recipe.target.head or "")
    except InputError as error:
        yield _misfit(error)
        return
    finished = _Finished(out, head, stages)
    yield from _examine_chain(finished)
    for directory in sorted((out / "deploy").glob("*/")):
        yield from _examine_deployment(directory, finished)
    run = None if recipe is None else Run(_for_target(recipe, target), out, progress=False)
    loaded, template = None, None
    try:
        if run is not None:
            loaded = run.target
        elif target is not None:
            loaded = Target.load(target, layers=SHALLOW)
        template = None if loaded is None else loaded.template_digest
    except InputError as error:
        yield _misfit(error)
    if run is not None and loaded is not None:
        yield from _examine_settings(run, finished)
    yield from _examine_words(finished, loaded, template)
    if loaded is not None and (head / CONFIG_FILE).is_file():
        try:
            yield from _examine_pair(read_head(head, None, loaded.info.num_layers), loaded)
        except InputError as error:
            yield _misfit(error)


def _examine_stage(stage: str, directory: StoragePath, stages: dict[str, Provenance]) -> Iterator[Finding]:
    """One directory; what is finished is added to `stages`."""
    run_it = f"run `eyas {stage}` with the recipe of this run"
    if not directory.list_files():
        yield Finding("warning", f"no {directory}", f"the work of stage {stage}", run_it)
        return
    if not has_provenance(directory):
        yield Finding("warning", f"{directory}, which is unfinished", f"{PROVENANCE} at its end", f"{run_it} again")
        return
    try:
        provenance = read_provenance(directory)
    except InputError as error:
        yield _misfit(error)
        return
    if provenance.stage != stage:
        yield Finding("misfit", f"{directory} made by stage {provenance.stage}", f"the work of stage {stage}", run_it)
        return
    stages[stage] = provenance
    yield _contents(stage, directory.path) if directory.is_local else _sizes(stage, directory)


def _contents(stage: str, directory: Path) -> Finding:
    """Whether every file is as it was written; this reads them all."""
    try:
        provenance = verify_contents(directory)
    except InputError as error:
        return _misfit(error)
    missing = [name for name in provenance.undigested if "*" not in name and not (directory / name).is_file()]
    if missing:
        return Finding("misfit", f"no {directory / missing[0]}", "what the stage wrote", f"run `eyas {stage}` again")
    if not provenance.files:
        return Finding("ok", f"{stage}: finished", "its files carry times, so only their presence is asked for")
    return Finding("ok", f"{stage}: finished", f"every file is as it was written ({len(provenance.files)})")


def _sizes(stage: str, features: StoragePath) -> Finding:
    """Whether every shard elsewhere is there and as large as it was: to read them all may take hours."""
    try:
        shards = read_manifest(features).shards
        other = [shard for shard in shards if features.join(shard.name).size() != shard.num_bytes]
    except InputError as error:
        return _misfit(error)
    if other:
        found = f"{features.join(other[0].name)}, {features.join(other[0].name).size() or 0:,} bytes long"
        return Finding("misfit", found, f"{other[0].num_bytes:,} bytes", f"remove it and run `eyas {stage}` again")
    return Finding("ok", f"{stage}: finished", f"{len(shards)} shards at {features} are as large as they were written")


def _examine_chain(finished: _Finished) -> Iterator[Finding]:
    """Whether each stage was made from what lies in the directories before it now."""
    num_links, broken = 0, False
    for stage, provenance in finished.stages.items():
        for parent, recorded in provenance.parents.items():
            found = finished.digest(parent)
            if found is None:
                continue
            num_links += 1
            if found != recorded:
                broken = True
                yield Finding(
                    "misfit",
                    f"{finished.out / DIRECTORIES[stage]} made from {parent} with digest {recorded}",
                    f"{parent} as they are now, digest {found}",
                    f"run `eyas {stage}` and the stages after it again, or bring back what it was made from",
                )
    if num_links and not broken:
        yield Finding("ok", "chain of stages", f"each of {num_links} parents is the one that was used")


def _examine_deployment(directory: Path, finished: _Finished) -> Iterator[Finding]:
    """What was written for a platform, and whether for a head that the run has now, as it is or as it was exported."""
    run_it = f"run `eyas deploy {directory.name}` with the recipe of this run"
    if not has_provenance(directory):
        yield Finding("warning", f"{directory}, which is unfinished", f"{PROVENANCE} at its end", f"{run_it} again")
        return
    contents = _contents(f"deploy {directory.name}", directory)
    yield contents
    if contents.weight == "misfit":
        return
    heads = [finished.head, *(place.parent for place in finished.out.glob(f"{DIRECTORIES['export']}/*/{CONFIG_FILE}"))]
    wanted = read_provenance(directory).parents.get("head")  # Jobs alone have none
    if wanted is not None and wanted not in {digest_head(head) for head in heads if (head / CONFIG_FILE).is_file()}:
        found = f"{directory} made for a head with digest {wanted}"
        yield Finding("misfit", found, "a head that this run has now, or its export", f"{run_it} again")


def _for_target(recipe: Recipe, target: str | None) -> Recipe:
    """The recipe with the target that was named instead of its own."""
    return recipe if target is None else replace(recipe, target=replace(recipe.target, model=target))


def _examine_settings(run: Run, finished: _Finished) -> Iterator[Finding]:
    """Whether each stage was made with its part of recipe.toml as it reads now."""
    same: list[str] = []
    for stage, provenance in finished.stages.items():
        try:
            settings = run.build_inputs(stage).recipe
        except InputError:
            continue  # what it was made from is missing or damaged, which is said elsewhere
        if settings == provenance.recipe:
            same.append(stage)
        else:
            read = "[prompts]" if stage == "prompts" else f"[{stage}] and target.dtype"
            yield Finding(
                "warning",
                f"{finished.out / DIRECTORIES[stage]} made with settings of digest {provenance.recipe}",
                f"digest {settings}, that of {read} in {finished.out / RECIPE_FILE}",
                f"run `eyas {stage}` again with the recipe of this run, then the stages after it",
            )
    if same:
        yield Finding("ok", f"settings of {', '.join(same)}", f"those of {RECIPE_FILE}")


def _examine_words(finished: _Finished, target: Target | None, template: str | None) -> Iterator[Finding]:
    """One target, one tokenizer, one chat template along the chain, and those that the target has now."""
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
        (first, wanted), *others = known.items()
        strangers = [(name, digest) for name, digest in others if digest != wanted]
        for name, digest in strangers:
            yield Finding(
                "misfit",
                f"{name} with a {kind} of digest {digest}",
                f"digest {wanted}, as {first} has",
                "run the stages again with one target, or name the target of this run",
            )
        if not strangers:
            yield Finding("ok", kind, f"the same in {', '.join(known)}")
