"""`eyas serve`: an OpenAI-compatible server for one target."""

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from eyas.base.environment import count_cpus
from eyas.base.errors import UsageError
from eyas.base.fetch import fetch, is_url
from eyas.base.storage import StoragePath
from eyas.cli.generate import load_canary, load_pair
from eyas.cli.setup import silence_transformers
from eyas.engine.async_engine import AsyncEngine, EngineThread
from eyas.engine.canary import CanaryOptions
from eyas.engine.engine_builder import EngineOptions, build_async_engine, compile_in_background, start_canary
from eyas.formats.head_dir import digest_head, resolve_head
from eyas.kernels.dispatch import fallback_reason
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.monitoring.privacy_gate import PrivacyGate
from eyas.monitoring.prompt_sampler import LOG_FILE, PROMPTS_FILE, PromptSampler, SampleOptions
from eyas.server.app import Api, ApiOptions
from eyas.server.server import bind, serve, server_url
from eyas.server.vertex import STORAGE_VARIABLE, VertexConfig, read_vertex_config
from eyas.speculation.arms import OFF

API_KEY_VARIABLE = "EYAS_API_KEY"


def run(parsed: argparse.Namespace) -> int:
    """The verb; see the parser in `eyas.cli`. 0 after SIGTERM or SIGINT."""
    options = EngineOptions(
        parsed.slots,
        parsed.context,
        parsed.memory_tokens,
        parsed.max_waiting,
        parsed.speculation,
        compile=not parsed.no_compile,
    )
    keys = _api_keys(parsed.api_key)
    contract = read_vertex_config(os.environ)
    host, port = _address(parsed.host, parsed.port, contract)
    if not 0 <= parsed.drain_s < math.inf:
        raise UsageError(f"--drain-s {parsed.drain_s}", "a number of seconds from 0 on", "choose another one")
    threads, sample, canary = _num_threads(parsed.threads), _sample_options(parsed), _canary_options(parsed)
    with bind(host, port) as holder:
        silence_transformers()
        name = download_inputs(parsed, os.environ)
        thread = EngineThread()
        thread.call(lambda: torch.set_num_threads(threads))
        target, draft = thread.call(lambda: load_pair(parsed))
        heads = [] if draft is None else [draft]
        if draft is not None and canary is not None:
            heads.append(thread.call(partial(load_canary, parsed.canary_head, target, draft)))
        _warn_if_slow(target)
        service = thread.call(lambda: build_async_engine(target, heads, options, thread))
        if canary is not None:
            thread.call(lambda: start_canary(service, canary, lambda event: _log(json.dumps({"event": event}))))
        sampler = None if sample is None else _build_sampler(sample, service, parsed)
        api = Api(service, ApiOptions(name, keys, _log, contract, not parsed.no_ui, sampler))
        url = server_url(holder)

        def say_ready() -> None:
            print(f"eyas serves {name} at {url}/v1 (arms: {', '.join(service.arms)})", flush=True)
            graphs = service.engine.runner.graphs
            if graphs is not None and graphs.disabled_reason is not None:
                _log(f"eyas: warning: no CUDA graphs, the same words but slower: {graphs.disabled_reason}")
            if options.compile and target.model.device.type == "cpu":
                compile_in_background(service, lambda event: _log(json.dumps({"event": event})))

        try:
            serve(api, holder, parsed.drain_s, say_ready)
        finally:
            if sampler is not None:
                sampler.close()
    return 0


def _canary_options(parsed: argparse.Namespace) -> CanaryOptions | None:
    """UsageError for a share out of range, and where nothing would draft."""
    if parsed.canary_head is None:
        return None
    _require_drafting(parsed, "--canary-head")
    return CanaryOptions(parsed.canary_share)


def _require_drafting(parsed: argparse.Namespace, option: str) -> None:
    if parsed.no_head or parsed.speculation == OFF.name:
        word = "--no-head" if parsed.no_head else "--speculation off"
        raise UsageError(f"{option} and {word}", "a head that drafts", "leave one out")


def _sample_options(parsed: argparse.Namespace) -> SampleOptions | None:
    """UsageError for figures out of range, and where nothing would draft."""
    if parsed.sample_low_acceptance is None:
        return None
    _require_drafting(parsed, "--sample-low-acceptance")
    return SampleOptions(Path(parsed.sample_low_acceptance), parsed.sample_below, parsed.sample_limit)


def _build_sampler(options: SampleOptions, service: AsyncEngine, parsed: argparse.Namespace) -> PromptSampler:
    """And a line that says what is kept and where. InputError, StorageError."""
    shapes = [arm.shape for arm in service.engine.policies[0].arms if arm.shape is not None]
    names = [parsed.head or EMBEDDED] + ([] if parsed.canary_head is None else [parsed.canary_head])
    heads = [digest_head(resolve_head(name)) for name in names]
    sampler = PromptSampler(options, PrivacyGate(), heads, shapes, _log)
    _log(
        f"eyas: prompts that draft below {options.below:.0%} of the average are kept in "
        f"{options.directory / PROMPTS_FILE}, personal data replaced or the prompt dropped, at most {options.limit}; "
        f"acceptance without any text in {options.directory / LOG_FILE}"
    )
    return sampler


def _address(host: str | None, port: int | None, contract: VertexConfig | None) -> tuple[str, int]:
    """What was asked for, else what Vertex AI asks for, else this machine alone. UsageError."""
    if port is not None and not 0 <= port <= 65535:
        raise UsageError(f"--port {port}", "a number from 0 to 65535", "choose another one")
    if contract is None:
        return host or "127.0.0.1", 8000 if port is None else port
    return host or "0.0.0.0", contract.port if port is None else port


def download_inputs(parsed: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Put directories of this machine into the place of URLs: --target and --head, or what AIP_STORAGE_URI has.

    What clients call the model: --served-name, else after the target.

    Vertex AI copies a model's artifacts into a bucket of its own and names it there: `target/` and `head/` below it are
    taken where the command line leaves them out. InputError, StorageError.
    """
    artifacts = environment.get(STORAGE_VARIABLE) or None
    if artifacts is not None and not parsed.no_head and parsed.head is None and _has_artifact(artifacts, "head"):
        parsed.head = f"{artifacts.rstrip('/')}/head"
    if artifacts is not None and parsed.target == EMBEDDED and _has_artifact(artifacts, "target"):
        parsed.target = f"{artifacts.rstrip('/')}/target"
    name = parsed.served_name or _model_name(parsed.target)
    if is_url(parsed.target):
        parsed.target = str(fetch(parsed.target))
    if parsed.head is not None and is_url(parsed.head):
        parsed.head = str(fetch(parsed.head))
    if parsed.canary_head is not None and is_url(parsed.canary_head):
        parsed.canary_head = str(fetch(parsed.canary_head))
    return name


def _has_artifact(artifacts: str, name: str) -> bool:
    return StoragePath(artifacts).join(name, "config.json").exists()


def _num_threads(asked: int | None) -> int:
    """How many threads compute: what was asked for, else OMP_NUM_THREADS, else all cores but one.

    The one is for the server's own thread: where it has to share a core, all others wait for it at every operator.
    """
    if asked is None:
        return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else max(count_cpus() - 1, 1)
    if asked < 1:
        raise UsageError(f"--threads {asked}", "at least 1", "raise --threads")
    return asked


def _warn_if_slow(target: Target) -> None:
    """A line on stderr where attention is the dense reference for want of the operator."""
    weight = next(target.model.parameters())
    reason = None if weight.device.type != "cpu" else fallback_reason(weight.dtype, target.info.head_dim)
    if reason is not None:
        _log(
            f"eyas: warning: found attention by the dense reference, the same words but slower ({reason}); expected "
            "the operator in C; do install gcc, or mend what the reason names"
        )


def _model_name(target: str) -> str:
    """What clients call the model: the name of its directory, its id on the hub, or the last part of its URL."""
    if is_url(target):
        return StoragePath(target).name
    return Path(target).resolve().name if Path(target).is_dir() else target


def _api_keys(given: list[str] | None) -> tuple[str, ...]:
    """The keys of --api-key, and of the environment, separated by commas there. UsageError for one that is empty."""
    variable = os.environ.get(API_KEY_VARIABLE)
    keys = [*(given or []), *(variable.split(",") if variable is not None else [])]
    keys = [key.strip() for key in keys]
    if not all(keys):
        raise UsageError(
            "an empty API key", "keys of at least one character", f"correct --api-key or {API_KEY_VARIABLE}"
        )
    return tuple(keys)


def _log(line: str) -> None:
    """One line on stderr, at once and in one piece."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
