"""One look for every long job: transformers' own bars and notes stay away."""

import transformers


def quiet() -> None:
    """Before the first target is loaded."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
