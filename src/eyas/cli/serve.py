"""`eyas serve`: starts an OpenAI-compatible server for one target and its head."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from prometheus_client import make_wsgi_app, start_http_server

from eyas.base.config import require_range
from eyas.base.environment import count_cpus
from eyas.base.errors import UsageError
from eyas.base.storage import StoragePath
from eyas.cli.generate import load_canary, load_pair
from eyas.engine.async_engine import AsyncEngine, EngineThread
from eyas.engine.canary import CanaryOptions
from eyas.engine.engine_builder import EngineOptions, build_async_engine, compile_in_background, start_canary
from eyas.formats.head_dir import digest_head, resolve_head
from eyas.kernels.cpu_linear import can_pack, use_thread_pool
from eyas.kernels.dispatch import fallback_reason
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, public_name
from eyas.server.routes import Api, ApiOptions
from eyas.server.server import bind, serve, server_url
from eyas.server.vertex import STORAGE_VARIABLE, read_vertex_config
from eyas.speculation.arms import OFF

if TYPE_CHECKING:  # imported when --sample-low-acceptance is given: it imports the data stage
    from eyas.monitoring.prompt_sampler import PromptSampler, SampleOptions

API_KEY_VARIABLE = "EYAS_API_KEY"


def run_verb(parsed: argparse.Namespace) -> int:
    """Runs `eyas serve`: loads the models and serves until SIGTERM or SIGINT."""
    limits = (parsed.slots, parsed.context, parsed.memory_tokens, parsed.memory_share, parsed.max_waiting)
    options = EngineOptions(*limits, parsed.speculation, not parsed.no_compile, parsed.copies, parsed.kv_dtype)
    keys, vertex = _api_keys(parsed.api_key), read_vertex_config(os.environ)
    if parsed.copies == "key" and not keys:
        raise UsageError("--copies key needs API keys, but the server has none", "Add --api-key, or --copies request")
    # From the command line, else from Vertex AI's variables.
    host = parsed.host or ("127.0.0.1" if vertex is None else "0.0.0.0")
    port = parsed.port if parsed.port is not None else 8000 if vertex is None else vertex.port
    require_range("--drain-s", parsed.drain_s, 0)
    require_range("--threads", parsed.threads, 1)
    sample_options, canary = _sample_options(parsed), _canary_options(parsed)
    if parsed.copies in ("request", "key") and (parsed.speculation != "auto" or canary is not None):
        raise UsageError("--copies needs --speculation auto and no --canary-head", "Remove one of the options")
    key, metrics_port = parsed.metrics_key, parsed.metrics_port
    if metrics_port is not None:  # it is used only after the models are loaded
        if metrics_port in (0, port):
            raise UsageError(f"--metrics-port {metrics_port} is 0 or the same as --port", "Choose another port")
        bind(host, metrics_port, "--metrics-port").close()
    with bind(host, port) as listener:
        name, thread = choose_inputs(parsed, os.environ), EngineThread()
        target, draft = thread.call(lambda: load_pair(parsed))
        thread.call(lambda: _set_threads(parsed.threads, target.model.device.type, target.model.dtype))
        heads = [] if draft is None else [draft]
        if draft is not None and canary is not None:
            heads.append(thread.call(partial(load_canary, parsed.canary_head, target, draft)))
        _warn_if_slow(target)
        engine = thread.call(lambda: build_async_engine(target, heads, options, thread))
        if canary is not None:
            thread.call(lambda: start_canary(engine, canary, _log_event))
        sampler = None if sample_options is None else _start_sampler(sample_options, engine, parsed)
        api = Api(engine, ApiOptions(name, keys, _log, vertex, not parsed.no_ui, sampler, key, metrics_port))
        if metrics_port is not None:
            _serve_metrics(api, host, metrics_port)

        def on_ready() -> None:
            print(f"eyas serves {name} at {server_url(listener)}/v1 (arms: {', '.join(engine.arms)})", flush=True)
            graphs = engine.engine.runner.graphs
            if graphs is not None and graphs.disabled_reason is not None:
                _log(f"eyas: warning: CUDA graphs are off, which is slower: {graphs.disabled_reason}")
            if options.compile and target.model.device.type == "cpu":
                compile_in_background(engine, _log_event)

        try:
            serve(api, listener, parsed.drain_s, on_ready)
        finally:
            if sampler is not None:
                sampler.close()
    return 0


def _serve_metrics(api: Api, host: str, port: int) -> None:
    """Serves the metrics on a port of their own, in a thread.

    The format is always Prometheus' text format, because in OpenMetrics, which Prometheus asks for, prometheus_client
    replaces the colons of the names.
    """
    server, _ = start_http_server(port, host, api.metrics.registry)
    app = make_wsgi_app(api.metrics.registry)
    server.set_app(lambda environ, start: app({**environ, "HTTP_ACCEPT": ""}, start))


def choose_inputs(parsed: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Selects the model's artifacts on Vertex AI as --target and --head, if the command line does not name them.

    The variable AIP_STORAGE_URI has the URL of a directory with `target/` and `head/`. `load_pair` downloads them.

    Returns:
        The name of the model in the API: --served-name, or else the name of the target.

    Raises:
        StorageError: The store cannot be read.
    """
    artifacts = (environment.get(STORAGE_VARIABLE) or "").rstrip("/")
    if artifacts and not parsed.no_head and parsed.head is None and _has_artifact(artifacts, "head"):
        parsed.head = f"{artifacts}/head"
    if artifacts and parsed.target == EMBEDDED and _has_artifact(artifacts, "target"):
        parsed.target = f"{artifacts}/target"
    return parsed.served_name or public_name(parsed.target)


def _has_artifact(artifacts: str, name: str) -> bool:
    return StoragePath(artifacts).join(name, "config.json").exists()


def _canary_options(parsed: argparse.Namespace) -> CanaryOptions | None:
    given = _given_options(parsed, {"canary_share": "share"}, "--canary-head", parsed.canary_head)
    return None if given is None else CanaryOptions(**given)


def _given_options(
    parsed: argparse.Namespace, fields: Mapping[str, str], option: str, value: object
) -> dict[str, Any] | None:
    """Returns the given arguments that belong to an option, by field; None if the option itself is not given.

    Args:
        parsed: The command line.
        fields: The arguments that have no effect without the option, each with its field.
        option: The option, such as "--canary-head".
        value: The value of the option; None if it is not given.

    Raises:
        UsageError: One of the arguments is given without the option, or the option without speculation.
    """
    given = {name: getattr(parsed, name) for name in fields if getattr(parsed, name) is not None}
    if value is None:
        for name in given:
            argument = f"--{name.replace('_', '-')}"
            raise UsageError(f"{argument} has no effect without {option}", f"Add {option}, or remove {argument}")
        return None
    if parsed.no_head or parsed.speculation == OFF.name:
        other = "--no-head" if parsed.no_head else "--speculation off"
        raise UsageError(f"{option} needs speculation, but {other} disables it", f"Remove {option} or {other}")
    return {fields[name]: argument for name, argument in given.items()}


def _sample_options(parsed: argparse.Namespace) -> "SampleOptions | None":
    fields = {"sample_below": "below", "sample_limit": "limit"}
    given = _given_options(parsed, fields, "--sample-low-acceptance", parsed.sample_low_acceptance)
    if given is None:
        return None
    from eyas.monitoring.prompt_sampler import SampleOptions

    return SampleOptions(Path(parsed.sample_low_acceptance), **given)


def _start_sampler(options: "SampleOptions", engine: AsyncEngine, parsed: argparse.Namespace) -> "PromptSampler":
    """Starts the prompt sampler and logs which data it stores where."""
    from eyas.monitoring.acceptance_log import LOG_FILE
    from eyas.monitoring.privacy_gate import PrivacyGate
    from eyas.monitoring.prompt_sampler import PROMPTS_FILE, PromptSampler

    shapes = [arm.shape for arm in engine.engine.policies[0].arms if arm.shape is not None]
    names = [parsed.head or EMBEDDED] + ([] if parsed.canary_head is None else [parsed.canary_head])
    sampler = PromptSampler(options, PrivacyGate(), [digest_head(resolve_head(name)) for name in names], shapes, _log)
    _log(
        f"eyas: prompts with acceptance below {options.below:.0%} of the average are stored in "
        f"{options.directory / PROMPTS_FILE} (at most {options.limit}), with personal data replaced; "
        f"acceptance by slice, without any text, is stored in {options.directory / LOG_FILE}"
    )
    return sampler


def _set_threads(given: int | None, device: str, dtype: torch.dtype) -> None:
    """Sets the number of CPU threads of the model: --threads, else OMP_NUM_THREADS, else all cores.

    Without a thread pool (cpu_thread_pool.h), one core is left for the thread of the HTTP server. If that thread shared
    a core with a thread of the model, the other threads would wait for the slower one at every operator.
    """
    if given is None and "OMP_NUM_THREADS" in os.environ:
        given = torch.get_num_threads()
    if device == "cpu" and can_pack(dtype):
        use_thread_pool(given or count_cpus())
    else:
        torch.set_num_threads(given or max(count_cpus() - 1, 1))


def _warn_if_slow(target: Target) -> None:
    """Logs a warning if the target runs on a CPU without the compiled attention operator, which is slower."""
    weight = next(target.model.parameters())
    reason = None if weight.device.type != "cpu" else fallback_reason(weight.dtype, target.info.head_dim)
    if reason is not None:
        _log(f"eyas: warning: attention runs without its C operator, which is slower: {reason}. Install gcc.")


def _api_keys(given: list[str] | None) -> tuple[str, ...]:
    """Returns the API keys of --api-key and of EYAS_API_KEY, which separates keys by commas. Raises UsageError."""
    variable = os.environ.get(API_KEY_VARIABLE)
    keys = [key.strip() for key in [*(given or []), *(variable.split(",") if variable is not None else [])]]
    if not all(keys):
        raise UsageError("An API key is empty", f"Correct --api-key or {API_KEY_VARIABLE}")
    return tuple(keys)


def _log(line: str) -> None:
    """Writes one line to stderr and flushes it."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _log_event(event: str) -> None:
    _log(json.dumps({"event": event}))
