"""What commands do before their own work: open a recipe's run, and silence transformers."""

from collections.abc import Sequence
from pathlib import Path

import transformers

from eyas.base.config import parse_overrides
from eyas.model.devices import default_device
from eyas.recipe import Run, load_recipe


def open_run(recipe: str, overrides: Sequence[str], out: str | None, device: str | None = None) -> Run:
    """Load a recipe and return its run.

    Args:
        out: the run directory; None for runs/<recipe name>.
        device: where the target is loaded; None for CUDA if there is a GPU, else the CPU.
    """
    loaded = load_recipe(Path(recipe), parse_overrides(overrides))
    directory = Path("runs") / loaded.name if out is None else Path(out)
    return Run(loaded, directory, device=device or default_device())


def silence_transformers() -> None:
    """Turn off the progress bars and notes of transformers. Call this before the first target is loaded."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
