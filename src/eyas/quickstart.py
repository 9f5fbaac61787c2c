"""The quickstart: a recipe that ships with the package, small enough for two cores and a few minutes."""

import tomllib
from importlib.resources import files

from eyas.base.config import build
from eyas.recipe import Recipe


def load_quickstart_recipe() -> Recipe:
    """The recipe of quickstart.toml."""
    return build(Recipe, tomllib.loads(files("eyas").joinpath("quickstart.toml").read_text(encoding="utf-8")))
