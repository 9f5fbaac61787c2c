"""results.json, schema 1: the parts of a measurement put together."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.base.provenance import versions
from eyas.bench.concurrent_streams import UnderLoad
from eyas.bench.machine import machine
from eyas.bench.report import SCHEMA
from eyas.bench.single_stream import OneStream
from eyas.model.head import Head
from eyas.model.target import EMBEDDED, Target, resolve_target


@dataclass(frozen=True)
class Measured:
    """The parts. lossless is the result object, None where it was not checked.

    references: by task and drafter {"acceptance_length", ...}, see `free_drafters`.
    """

    one_stream: OneStream
    load: UnderLoad
    lossless: Mapping[str, Any] | None
    references: Mapping[str, Mapping[str, Any]]


def results(target: Target, head: Head, measured: Measured, command: Sequence[str]) -> dict[str, Any]:
    """The whole object of results.json. command: the words of the command line; the program's own path is cut off."""
    num_head = sum(weight.numel() for weight in head.parameters())
    num_target = target.facts.num_parameters
    stream = measured.one_stream
    tasks = {
        name: entry | ({"references": dict(measured.references[name])} if name in measured.references else {})
        for name, entry in stream.tasks.items()
    }
    unchecked = {"prompts": 0, "identical": 0, "dtype": "float32", "reference": "none: not checked"}
    return {
        "schema": SCHEMA,
        "machine": machine(),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "compiled": target.compiled is not None,
        "target": {"name": public_name(target), "parameters": num_target},
        "head": {"parameters": num_head, "share_of_target": num_head / num_target},
        "lossless": dict(measured.lossless or unchecked),
        "tasks": tasks,
        "concurrency": [dict(point) for point in measured.load.concurrency],
        "rates": [dict(point) for point in measured.load.rates],
        "ramp": [dict(point) for point in measured.load.ramp],
        "rounds": stream.rounds,
        "looping": stream.looping,
        "command": shlex.join([Path(command[0]).name, *command[1:]]) if command else "",
        "versions": versions(),
    }


def public_name(target: Target) -> str:
    """What a page may call the target: "embedded", its hub id, or the last part of its directory's path."""
    if target.directory == resolve_target(EMBEDDED):
        return EMBEDDED
    if Path(target.facts.name) != target.directory:
        return target.facts.name
    return target.directory.resolve().name
