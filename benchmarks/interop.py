"""Runs a task with each client that teams use against `eyas serve`. `make interop` calls it.

    python benchmarks/interop.py [--env-dir DIR] [--write COMMIT]

Starts `eyas serve` with the embedded pair on a free port. The frameworks share one environment
(peer_drivers/run_clients.py). AIPerf and guidellm, each in its own, measure the server. For fill in the middle, as
editors ask for it, this process asks a second server, which has the embedded target with three new tokens. Prints a
row for each client: 1 if its task passed, else 0.
--write also writes docs/results/interop.md and interop.json.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
from result_rows import Row, print_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

from eyas.model.target_dir import EMBEDDED, resolve_target

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results" / "interop.md"
RUN_S = 300
PROMPT_TOKENS = 40
MARKERS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
Result = dict[str, Any]  # client, version, uses, error (None if the task passed)


@contextlib.contextmanager
def serve(*words: str) -> Iterator[str]:
    """Runs `eyas serve` and yields its URL, which ends with /v1."""
    server = subprocess.Popen(
        [sys.executable, "-m", "eyas", "serve", "--port", "0", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None, "it is a pipe"
        ready = server.stdout.readline()  # eyas serves embedded at http://127.0.0.1:40123/v1 (arms: ...)
        yield next(word for word in ready.split() if word.startswith("http"))
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    assert code == 0, f"the server ended with {code}"


def run_frameworks(environment: Path, url: str) -> Iterator[Result]:
    """Yields the results of run_clients.py."""
    script = HERE / "peer_drivers" / "run_clients.py"
    command = [environment / "bin" / "python", script, "--url", url, "--model", EMBEDDED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None, "it is a pipe"
        yield from map(json.loads, running.stdout)


def run_aiperf(
    aiperf: Path, url: str, model: str, requests: int, concurrency: int, tokens: int, directory: Path
) -> Path:
    """Runs AIPerf against a server (closed loop, chat, streaming) and returns the path of its JSON file."""
    command = [str(aiperf), "profile", "-m", model, "--endpoint-type", "chat", "--streaming", "--url", url]
    command += ["--tokenizer", str(resolve_target(EMBEDDED)), "--use-server-token-count", "--ui", "none"]
    command += ["--request-count", str(requests), "--concurrency", str(concurrency)]
    command += ["--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--output-tokens-mean", str(tokens)]
    command += ["--artifact-dir", str(directory)]
    # AIPerf accepts a tokenizer directory only if the hub is online.
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run(command, check=True, timeout=RUN_S, env=environment, stdout=sys.stderr)
    return directory / "profile_export_aiperf.json"


def run_guidellm(
    guidellm: Path, url: str, model: str, requests: int, concurrency: int, tokens: int, directory: Path
) -> Path:
    """Runs guidellm against a server (closed loop, chat, streaming) and returns the path of its JSON file."""
    path = directory / "guidellm.json"
    command = [str(guidellm), "run", "--backend", f"kind=openai_http,target={url},model={model}", "--disable-console"]
    command += ["--profile", f"kind=concurrent,streams={concurrency}"]
    command += ["--constraint", f"kind=max_requests,count={requests}"]
    command += ["--tokenizer", f"kind=hf_auto,model={resolve_target(EMBEDDED)}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={tokens}"]
    command += ["--output", f"kind=json,path={path}"]
    subprocess.run(command, check=True, timeout=RUN_S, stdout=sys.stderr)
    return path


def measure_with_aiperf(aiperf: Path, url: str) -> Result:
    """Measures 16 streamed answers. AIPerf must report their acceptance length, which it reads from the responses."""
    result: Result = {"client": "AIPerf", "uses": "streamed chat, token counts of the server, acceptance length"}
    if not aiperf.is_file():
        return result | {"version": None, "error": "not installed"}
    with tempfile.TemporaryDirectory() as directory:
        written = json.loads(
            run_aiperf(aiperf, url.removesuffix("/v1"), EMBEDDED, 16, 2, 32, Path(directory)).read_bytes()
        )
    length = written.get("spec_decode_acceptance_length", {}).get("avg")
    return result | {"version": version(aiperf, "aiperf"), "error": None if length else "no acceptance length"}


def measure_with_guidellm(guidellm: Path, url: str) -> Result:
    """Measures 16 answers with guidellm."""
    result: Result = {"client": "guidellm", "uses": "streamed chat, token counts of the server"}
    if not guidellm.is_file():
        return result | {"version": None, "error": "not installed"}
    with tempfile.TemporaryDirectory() as directory:
        path = run_guidellm(guidellm, url.removesuffix("/v1"), EMBEDDED, 16, 2, 32, Path(directory))
        (benchmark,) = json.loads(path.read_bytes())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    error = None if totals["successful"] == 16 and not totals["errored"] else str(totals)
    return result | {"version": version(guidellm, "guidellm"), "error": error}


def version(program: Path, package: str) -> str:
    """Returns the version of a package in the environment of a program."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    command = [program.parent / "python", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write_infill_target(directory: Path) -> None:
    """Writes the embedded target with tokens for fill in the middle. It was not trained with them."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_target(EMBEDDED))
    model: Any = AutoModelForCausalLM.from_pretrained(resolve_target(EMBEDDED))
    tokenizer.add_special_tokens({"additional_special_tokens": MARKERS}, replace_extra_special_tokens=False)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def complete_middle(url: str) -> Result:
    """Asks as editors do: a streamed completion with a suffix. It must equal that of the prompt with markers."""
    api = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    asked: Any = {"model": api.models.list().data[0].id, "max_tokens": 24, "temperature": 0, "stop": ["\n\n"]}
    before, after = "Can you help me to plant ", " in Salmere?"
    stream = api.completions.create(**asked, prompt=before, suffix=after, stream=True)
    middle = "".join(choice.text for chunk in stream for choice in chunk.choices)
    prompt = f"{MARKERS[0]}{before}{MARKERS[1]}{after}{MARKERS[2]}"
    expected = api.completions.create(**asked, prompt=prompt, extra_body={"stop_token_ids": []}).choices[0].text
    error = None if middle and middle == expected else f"{middle!r} instead of {expected!r}"
    uses = "streamed completions with a suffix, as Continue sends them"
    return {"client": "an editor (OpenAI's client)", "version": openai.__version__, "uses": uses, "error": error}


def run_all(environments: Path) -> Iterator[Result]:
    """Yields the result of each client."""
    agents = environments / "agents"
    if not (agents / "bin" / "python").is_file():
        raise SystemExit(f"No environment {agents}. Run `make interop`, which installs it.")
    with serve() as url:
        yield from run_frameworks(agents, url)
        yield measure_with_aiperf(environments / "aiperf" / "bin" / "aiperf", url)
        yield measure_with_guidellm(environments / "guidellm" / "bin" / "guidellm", url)
    with tempfile.TemporaryDirectory() as directory:
        write_infill_target(Path(directory))
        with serve("--target", directory, "--no-head", "--no-compile") as url:
            yield complete_middle(url)


def write_page(results: list[Result], commit: str) -> None:
    """Writes the table of the results, and its rows."""
    rows = [
        {"name": f"passed: {one['client']}", "figure": int(one["error"] is None), "target": "1", "ok": True}
        | {"ok": one["error"] is None, "commit": commit}
        for one in results
    ]
    PAGE.with_suffix(".json").write_text("[\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    table = [
        f"| {one['client']} | {one['version']} | {one['uses']} | {'yes' if one['error'] is None else one['error']} |"
        for one in results
    ]
    PAGE.write_text(
        "# Clients of `eyas serve`\n\n"
        "Each client runs a task against `eyas serve`. The run writes this page. Calls are enforced, so that a task\n"
        "ends with any model.\n\n"
        "The clients from OpenAI's to instructor share one environment. AIPerf and guidellm have one each. The row of\n"
        "the editor runs in the environment of eyas. Its server has `--target DIR --no-head --no-compile`, with a\n"
        "target that has tokens for fill in the middle. All other rows use one server, which has no option but\n"
        "`--port 0`.\n\n"
        "| | |\n|---|---|\n"
        "| command | `make interop` (`python benchmarks/interop.py --write COMMIT`) |\n"
        f"| written down at | `{commit}` |\n"
        "| rows | [interop.json](interop.json) |\n\n"
        "| client | version | what its task uses | passed |\n|---|---|---|---|\n" + "\n".join(table) + "\n",
        encoding="utf-8",
    )


def main() -> int:
    """Runs all clients and prints their rows. Returns 1 if a task fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parser.add_argument("--write", metavar="COMMIT")
    parsed = parser.parse_args()
    results: list[Result] = []

    def rows() -> Iterator[Row]:
        for result in run_all(parsed.env_dir):
            results.append(result)
            if result["error"]:
                print(f"{result['client']}: {result['error']}", file=sys.stderr)
            yield Row(f"passed: {result['client']}", int(result["error"] is None), "1", result["error"] is None)

    code = print_rows(rows())
    if parsed.write:
        write_page(results, parsed.write)
    return code


if __name__ == "__main__":
    sys.exit(main())
