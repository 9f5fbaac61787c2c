"""Assembles results.json (schema 1) without host names or paths of this machine, and reads values out of it."""

import importlib.metadata
import math
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch

from eyas.base.environment import count_cpus, cpu_name, memory_bytes
from eyas.base.provenance import package_versions
from eyas.bench.load_test import LoadResults
from eyas.bench.single_stream import SingleStreamResults
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target

SCHEMA = 1
RESULTS_FILE = "results.json"


def assemble_results(
    target: Target,
    head: Head,
    stream: SingleStreamResults,
    load: LoadResults,
    lossless: Mapping[str, Any] | None,
    command: Sequence[str],
) -> dict[str, Any]:
    """Returns the object of results.json.

    Args:
        target: the measured target.
        head: its head.
        stream: results at one stream.
        load: results under load.
        lossless: counts of the lossless check; None if there was none.
        command: the command line; the directory of the program is left out.
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
        "command": shlex.join([Path(command[0]).name, *command[1:]]) if command else "",
        "versions": package_versions(),
    }


def describe_runtime(target: Target) -> dict[str, Any]:
    """Returns dtype and compilation of the loaded target."""
    dtype = str(target.model.dtype).removeprefix("torch.")
    return {"dtype": dtype, "compiled": target.compiled_forward is not None}


def public_target_name(target: Target) -> str:
    """Returns "embedded", the hub id, or the last part of the target's directory."""
    if target.directory == resolve_target(EMBEDDED):
        return EMBEDDED
    if Path(target.info.name) != target.directory:
        return target.info.name
    return target.directory.resolve().name


def redact_location(location: str) -> str:
    """Returns a path without its directory and a URL without the values of its query, which may hold a key.

    Other names, hub ids and relative paths stay.
    """
    if "://" not in location:
        return Path(location).name if Path(location).is_absolute() else location
    parts = urlsplit(location)
    query = "&".join(f"{name}=..." for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return parts._replace(query=query, fragment="").geturl()


def describe_machine() -> dict[str, Any]:
    """Returns `machine` of results.json.

    cores: CPUs that this process may use. threads: those that torch computes with. gpu: None if there is none.
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
    """Returns the finite number at a path of keys; None for anything else."""
    found = lookup(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return found


def read_interval(value: Any, *keys: str) -> tuple[float, float] | None:
    """Returns the [low, high] pair at a path of keys; None unless both are finite numbers in order."""
    found = lookup(value, *keys)
    if not isinstance(found, list | tuple) or len(found) != 2:
        return None
    low, high = read_number(found[0]), read_number(found[1])
    return (low, high) if low is not None and high is not None and low <= high else None
