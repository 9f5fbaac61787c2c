"""`eyas serve`: an OpenAI-compatible server for one target."""

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from eyas.base.cores import num_cores
from eyas.base.errors import UsageError
from eyas.base.fetch import fetch, is_remote
from eyas.base.storage import Place
from eyas.cli.generate import load
from eyas.cli.quiet import quiet
from eyas.model.target import EMBEDDED, Target
from eyas.serve.api.app import Api, ApiOptions
from eyas.serve.api.server import bind, serve, url_of
from eyas.serve.api.vertex import STORAGE, Contract, contract_of
from eyas.serve.kernels.choice import why_reference
from eyas.serve.options import ServeOptions
from eyas.serve.service import build_service, compile_in_background
from eyas.serve.thread import EngineThread

KEY_VARIABLE = "EYAS_API_KEY"


def run(parsed: argparse.Namespace) -> int:
    """The verb; see the parser in `eyas.cli`. 0 after SIGTERM or SIGINT."""
    options = ServeOptions(
        parsed.slots,
        parsed.context,
        parsed.memory_tokens,
        parsed.max_waiting,
        parsed.speculation,
        compile=not parsed.no_compile,
    )
    keys = _keys(parsed.api_key)
    contract = contract_of(os.environ)
    host, port = _address(parsed.host, parsed.port, contract)
    if not 0 <= parsed.drain_s < math.inf:
        raise UsageError(f"--drain-s {parsed.drain_s}", "a number of seconds from 0 on", "choose another one")
    threads = _threads(parsed.threads)
    with bind(host, port) as holder:
        quiet()
        name = bring(parsed, os.environ)
        thread = EngineThread()
        thread.call(lambda: torch.set_num_threads(threads))
        target, draft = thread.call(lambda: load(parsed))
        _say_if_slow(target)
        service = thread.call(lambda: build_service(target, draft, options, thread))
        api = Api(service, ApiOptions(name, keys, _log, contract, page=not parsed.no_ui))
        url = url_of(holder)

        def say_ready() -> None:
            print(f"eyas serves {name} at {url}/v1 (arms: {', '.join(service.arms)})", flush=True)
            graphs = service.engine.runner.graphs
            if graphs is not None and graphs.reason is not None:
                _log(f"eyas: warning: no CUDA graphs, the same words but slower: {graphs.reason}")
            if options.compile and target.model.device.type == "cpu":
                compile_in_background(service, lambda event: _log(json.dumps({"event": event})))

        serve(api, holder, parsed.drain_s, say_ready)
    return 0


def _address(host: str | None, port: int | None, contract: Contract | None) -> tuple[str, int]:
    """What was asked for, else what Vertex AI asks for, else this machine alone. UsageError."""
    if port is not None and not 0 <= port <= 65535:
        raise UsageError(f"--port {port}", "a number from 0 to 65535", "choose another one")
    if contract is None:
        return host or "127.0.0.1", 8000 if port is None else port
    return host or "0.0.0.0", contract.port if port is None else port


def bring(parsed: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Put directories of this machine into the place of URLs: --target and --head, or what AIP_STORAGE_URI has.

    What clients call the model: --served-name, else after the target.

    Vertex AI copies a model's artifacts into a bucket of its own and names it there: `target/` and `head/` below it are
    taken where the command line leaves them out. InputError, PlaceError.
    """
    artifacts = environment.get(STORAGE) or None
    if artifacts is not None and not parsed.no_head and parsed.head is None and _has(artifacts, "head"):
        parsed.head = f"{artifacts.rstrip('/')}/head"
    if artifacts is not None and parsed.target == EMBEDDED and _has(artifacts, "target"):
        parsed.target = f"{artifacts.rstrip('/')}/target"
    name = parsed.served_name or _name_of(parsed.target)
    if is_remote(parsed.target):
        parsed.target = str(fetch(parsed.target))
    if parsed.head is not None and is_remote(parsed.head):
        parsed.head = str(fetch(parsed.head))
    return name


def _has(artifacts: str, name: str) -> bool:
    return Place(artifacts).join(name, "config.json").exists()


def _threads(asked: int | None) -> int:
    """How many threads compute: what was asked for, else OMP_NUM_THREADS, else all cores but one.

    The one is for the server's own thread: where it has to share a core, all others wait for it at every operator.
    """
    if asked is None:
        return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else max(num_cores() - 1, 1)
    if asked < 1:
        raise UsageError(f"--threads {asked}", "at least 1", "raise --threads")
    return asked


def _say_if_slow(target: Target) -> None:
    """A line on stderr where attention is the dense reference for want of the operator."""
    weight = next(target.model.parameters())
    reason = None if weight.device.type != "cpu" else why_reference(weight.dtype, target.facts.head_dim)
    if reason is not None:
        _log(
            f"eyas: warning: found attention by the dense reference, the same words but slower ({reason}); expected "
            "the operator in C; do install gcc, or mend what the reason names"
        )


def _name_of(target: str) -> str:
    """What clients call the model: the name of its directory, its id on the hub, or the last part of its URL."""
    if is_remote(target):
        return Place(target).name
    return Path(target).resolve().name if Path(target).is_dir() else target


def _keys(given: list[str] | None) -> tuple[str, ...]:
    """The keys of --api-key, and of the environment, separated by commas there. UsageError for one that is empty."""
    variable = os.environ.get(KEY_VARIABLE)
    keys = [*(given or []), *(variable.split(",") if variable is not None else [])]
    keys = [key.strip() for key in keys]
    if not all(keys):
        raise UsageError("an empty API key", "keys of at least one character", f"correct --api-key or {KEY_VARIABLE}")
    return tuple(keys)


def _log(line: str) -> None:
    """One line on stderr, at once and in one piece."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
