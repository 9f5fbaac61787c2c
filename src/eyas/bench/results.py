"""results.json, schema 1: the parts of a measurement put together."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.base.provenance import package_versions
from eyas.bench.engine_load import LoadResults
from eyas.bench.machine import describe_machine
from eyas.bench.report import SCHEMA
from eyas.bench.single_stream import SingleStreamResults
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target


@dataclass(frozen=True)
class Measurements:
    """The parts. lossless is the result object, None where it was not checked.

    references: by task and drafter {"acceptance_length", ...}, see `free_drafters`.
    """

    single_stream: SingleStreamResults
    load: LoadResults
    lossless: Mapping[str, Any] | None
    references: Mapping[str, Mapping[str, Any]]


def assemble_results(target: Target, head: Head, measured: Measurements, command: Sequence[str]) -> dict[str, Any]:
    """The whole object of results.json. command: the words of the command line; the program's own path is cut off."""
    num_head = sum(weight.numel() for weight in head.parameters())
    num_target = target.info.num_parameters
    stream = measured.single_stream
    tasks = {
        name: entry | ({"references": dict(measured.references[name])} if name in measured.references else {})
        for name, entry in stream.tasks.items()
    }
    unchecked = {"prompts": 0, "identical": 0, "dtype": "float32", "reference": "none: not checked"}
    return {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "compiled": target.compiled_forward is not None,
        "target": {"name": public_target_name(target), "parameters": num_target},
        "head": {"parameters": num_head, "share_of_target": num_head / num_target},
        "lossless": dict(measured.lossless or unchecked),
        "tasks": tasks,
        "concurrency": [dict(point) for point in measured.load.concurrency],
        "rates": [dict(point) for point in measured.load.rates],
        "ramp": [dict(point) for point in measured.load.ramp],
        "rounds": stream.rounds,
        "looping": stream.looping,
        "command": shlex.join([Path(command[0]).name, *command[1:]]) if command else "",
        "versions": package_versions(),
    }


def public_target_name(target: Target) -> str:
    """What a page may call the target: "embedded", its hub id, or the last part of its directory's path."""
    if target.directory == resolve_target(EMBEDDED):
        return EMBEDDED
    if Path(target.info.name) != target.directory:
        return target.info.name
    return target.directory.resolve().name
