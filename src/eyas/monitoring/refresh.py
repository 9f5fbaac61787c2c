"""Writes a recipe that trains a run's head further, on the prompts that a server has stored (`eyas drift --recipe`)."""

from dataclasses import replace
from pathlib import Path

from eyas.base.config import to_toml
from eyas.base.errors import InputError, UsageError
from eyas.base.storage import convert_write_errors, write_atomic
from eyas.data.sources.source import SourceConfig
from eyas.deploy.config import NAME
from eyas.formats.head_dir import read_head, resolve_head
from eyas.model.target_dir import read_num_layers
from eyas.monitoring.acceptance_log import read_complete_lines
from eyas.monitoring.privacy_gate import LICENSE, SOURCE
from eyas.monitoring.prompt_sampler import PROMPTS_FILE
from eyas.recipe import Recipe
from eyas.train.config import match_sizes

SNAPSHOT_SUFFIX = ".prompts.jsonl"


def write_recipe(recipe: Recipe, run: Path, sampled: Path, out: Path) -> int:
    """Writes a recipe and, beside it, a copy of the prompts, because the server may append more prompts later.

    Args:
        recipe: the recipe of the run.
        run: the run directory with the head.
        sampled: the directory of `eyas serve --sample-low-acceptance`.
        out: the path of the new recipe, a .toml file. The prompts go to the same name with .prompts.jsonl.

    Returns:
        The number of prompts.

    Raises:
        UsageError: `out` is not a .toml file.
        InputError: the server has stored no prompts.
        StorageError: `out` cannot be written.
    """
    if out.suffix != ".toml":
        raise UsageError(f"--recipe {out} is not a .toml file", "Name a file that ends with .toml")
    source, reason = sampled / PROMPTS_FILE, ""
    try:
        lines = read_complete_lines(source)
    except OSError as error:
        lines, reason = [], f" ({error.strerror})"
    if not lines:
        fix = "Wait until the server has stored prompts, or raise --sample-below"
        raise InputError(f"There are no prompts in {source}{reason}", fix)
    copy = out.with_name(out.stem + SNAPSHOT_SUFFIX).absolute()
    write_atomic(copy, lines)
    with convert_write_errors(copy):
        copy.chmod(0o600)
    write_atomic(out, to_toml(build_recipe(recipe, run, copy, out.stem)))
    return len(lines)


def build_recipe(recipe: Recipe, run: Path, prompts: Path, name: str) -> Recipe:
    """Returns the recipe of the run, changed so that it trains the run's head further on new prompts.

    Training starts from the weights of the head, so the sizes of the head stay. The new head is deployed under the same
    name as the old one.

    Args:
        recipe: the recipe of the run.
        run: the run directory with the head.
        prompts: the file with the new prompts.
        name: the name of the new recipe.
    """
    head = (run / "head") if recipe.target.head is None else resolve_head(recipe.target.head)
    sizes = read_head(head, None, read_num_layers(recipe.target.model)).config
    source = SourceConfig(str(prompts), license=LICENSE, name=SOURCE, keep_system=True)
    checkpoints, deploy = _sibling_url(recipe.train.checkpoint_url, name), recipe.deploy
    if NAME.fullmatch(endpoint := deploy.name or recipe.name):
        deploy = replace(deploy, name=endpoint)  # so that the new head replaces the old one
    return replace(
        recipe,
        name=name,
        target=replace(recipe.target, head=None),
        prompts=replace(recipe.prompts, source=None, license=None, limit=None, sources=(source,)),
        capture=replace(recipe.capture, aux_layer_ids=tuple(sizes.aux_layer_ids)),
        # These URLs hold the files of one run each.
        features=replace(recipe.features, url=_sibling_url(recipe.features.url, name)),
        train=replace(match_sizes(recipe.train, sizes), init=str(head.absolute()), checkpoint_url=checkpoints),
        deploy=deploy,
    )


def _sibling_url(url: str | None, name: str) -> str | None:
    return None if url is None else f"{url.rstrip('/')}-{name}"
