"""Assembles results.json (schema 1) without host names and paths of this machine, and reads values from it."""

import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch

from eyas.base.environment import count_cpus, cpu_name, memory_bytes
from eyas.base.provenance import describe_command, package_versions
from eyas.bench.load_test import LoadResults
from eyas.bench.single_stream import SingleStreamResults
from eyas.model.head import DraftHead
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, public_name, resolve_target

SCHEMA = 1
RESULTS_FILE = "results.json"


def assemble_results(
    target: Target,
    head: DraftHead,
    stream: SingleStreamResults,
    load: LoadResults,
    lossless: Mapping[str, Any] | None,
    command: Sequence[str],
) -> dict[str, Any]:
    """Returns the object of results.json.

    Args:
        target: The measured target.
        head: The measured head.
        stream: The results at one stream.
        load: The results under load.
        lossless: The result of the lossless check; None if it did not run.
        command: The words of the command line; the directory of the program is left out.
    """
    num_head = sum(weight.numel() for weight in head.parameters())
    num_target = target.info.num_parameters
    unchecked = {"prompts": 0, "identical": 0, "dtype": "float32", "reference": "none: not checked"}
    return {
        "schema": SCHEMA,
        "machine": describe_machine(),
        **describe_runtime(target),
        "target": {"name": public_target_name(target), "parameters": num_target},
        "head": {"parameters": num_head, "share_of_target": num_head / num_target},
        "lossless": dict(lossless or unchecked),
        "tasks": stream.tasks,
        **load,
        "rounds": stream.rounds,
        "looping": stream.looping,
        "calibration": stream.calibration,
        "slices": stream.slices,
        "command": describe_command(command) if command else "",
        "versions": package_versions(),
    }


def describe_runtime(target: Target) -> dict[str, Any]:
    """Returns the keys `dtype` and `compiled` of results.json for a loaded target."""
    return {"dtype": str(target.model.dtype).removeprefix("torch."), "compiled": target.compiled_forward is not None}


def public_target_name(target: Target) -> str:
    """Returns "embedded", the hub id, or the last part of the target's directory."""
    return EMBEDDED if target.directory == resolve_target(EMBEDDED) else public_name(target.info.name)


def redact_location(location: str) -> str:
    """Returns an absolute path without its directory, and a URL without the values of its query (it may hold a key).

    Relative paths, hub ids and other names are returned unchanged.
    """
    if "://" not in location:
        return Path(location).name if Path(location).is_absolute() else location
    parts = urlsplit(location)
    query = "&".join(f"{name}=..." for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return parts._replace(query=query, fragment="").geturl()


def describe_machine() -> dict[str, Any]:
    """Returns `machine` of results.json.

    `cores` is the number of CPUs that this process may use, `threads` the number of threads of torch. `gpu` is None
    without a GPU.
    """
    return {
        "cpu": cpu_name(),
        "cores": count_cpus(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(memory_bytes() / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
    }


# --- reading ---------------------------------------------------------------------------------------------------------


def lookup(value: Any, *keys: str) -> Any:
    """Returns value[key1][key2]..., or None if a key is missing."""
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def read_number(value: Any, *keys: str) -> float | int | None:
    """Returns value[key1][key2]... if it is a finite number, else None."""
    found = lookup(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return found


def read_interval(value: Any, *keys: str) -> tuple[float, float] | None:
    """Returns value[key1][key2]... if it is a pair of finite numbers low <= high, else None."""
    found = lookup(value, *keys)
    if not isinstance(found, list | tuple) or len(found) != 2:
        return None
    low, high = read_number(found[0]), read_number(found[1])
    return (low, high) if low is not None and high is not None and low <= high else None
