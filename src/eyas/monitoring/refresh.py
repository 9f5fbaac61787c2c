"""A recipe that goes on from a run's head with the prompts that a server kept."""

from dataclasses import replace
from pathlib import Path

from eyas.base.config import to_toml
from eyas.base.errors import InputError, UsageError
from eyas.base.storage import convert_write_errors, write_atomic
from eyas.data.sources.source import SourceConfig
from eyas.deploy.config import NAME, DeployConfig
from eyas.formats.head_dir import read_head, resolve_head
from eyas.model.target_dir import read_num_layers
from eyas.monitoring.append_log import read_complete_lines
from eyas.monitoring.privacy_gate import LICENSE, SOURCE
from eyas.monitoring.prompt_sampler import PROMPTS_FILE
from eyas.recipe import Recipe
from eyas.train.config import HeadOptions

SNAPSHOT_SUFFIX = ".prompts.jsonl"


def write_recipe(recipe: Recipe, run: Path, sampled: Path, out: Path) -> int:
    """Writes `out` and, beside it, a copy of the prompts, for the server goes on adding to them. How many those are.

    InputError where there is no prompt yet, StorageError.
    """
    if out.suffix != ".toml":
        raise UsageError(f"--recipe {out}", "a .toml file", "name it so")
    try:
        lines = list(read_complete_lines(sampled / PROMPTS_FILE))
    except OSError as error:
        lines, reason = [], f" ({error.strerror})"
    else:
        reason = ""
    if not lines:
        raise InputError(
            f"no prompt in {sampled / PROMPTS_FILE}{reason}",
            "prompts that went badly",
            "serve on, or raise --sample-below",
        )
    copy = out.with_name(out.stem + SNAPSHOT_SUFFIX).absolute()
    write_atomic(copy, lines)
    with convert_write_errors(copy):
        copy.chmod(0o600)
    write_atomic(out, to_toml(build_recipe(recipe, run, copy, out.stem)))
    return len(lines)


def build_recipe(recipe: Recipe, run: Path, prompts: Path, name: str) -> Recipe:
    """The run's recipe with other prompts and a name of its own; the run's head to start from, of the same sizes; to be
    deployed where the run's was.
    """
    head = (run / "head") if recipe.target.head is None else resolve_head(recipe.target.head)
    sizes = read_head(head, None, read_num_layers(recipe.target.model)).config
    source = SourceConfig(str(prompts), license=LICENSE, name=SOURCE, keep_system=True)
    options = HeadOptions(
        sizes.intermediate_size, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.fc_norm, sizes.norm_output
    )
    return replace(
        recipe,
        name=name,
        target=replace(recipe.target, head=None),
        prompts=replace(recipe.prompts, source=None, license=None, limit=None, sources=(source,)),
        capture=replace(recipe.capture, aux_layer_ids=tuple(sizes.aux_layer_ids)),
        # Places that belong to the other run alone.
        features=replace(recipe.features, url=_sibling_url(recipe.features.url, name)),
        train=replace(
            recipe.train,
            init=str(head.absolute()),
            head=options,
            checkpoint_url=_sibling_url(recipe.train.checkpoint_url, name),
        ),
        deploy=_keep_endpoint(recipe),
    )


def _keep_endpoint(recipe: Recipe) -> DeployConfig:
    """The new head takes the old one's place: endpoint and service are called after the first recipe for good."""
    name = recipe.deploy.name or recipe.name
    return replace(recipe.deploy, name=name) if NAME.fullmatch(name) else recipe.deploy


def _sibling_url(url: str | None, name: str) -> str | None:
    return None if url is None else f"{url.rstrip('/')}-{name}"
