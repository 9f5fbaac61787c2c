"""Measures `eyas serve` with AIPerf and checks that AIPerf reports the acceptance length. `make interop` calls it.

    python benchmarks/interop_aiperf.py AIPERF      # the aiperf command in its environment

Starts the server on a free port with the embedded pair. AIPerf sends streamed chat requests and reads the acceptance
length from the responses. Prints one JSON object. Exits 1 if the result has no acceptance length.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from eyas.model.target_dir import EMBEDDED, resolve_target

REQUESTS, CONCURRENCY = 16, 2
RUN_S = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("aiperf", type=Path)
    parsed = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-c", "import sys; from eyas.cli import main; sys.exit(main())", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None, "it is a pipe"
        ready = server.stdout.readline()  # eyas serves embedded at http://127.0.0.1:40123/v1 (arms: ...)
        url = next(word for word in ready.split() if word.startswith("http")).removesuffix("/v1")
        with tempfile.TemporaryDirectory() as directory:
            found = measure(parsed.aiperf, url, Path(directory))
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    row = {"name": "AIPerf against eyas serve", "server_exit_code": code, **found}
    print(json.dumps(row))
    return 0 if found.get("acceptance_length") and code == 0 else 1


def measure(aiperf: Path, url: str, directory: Path) -> dict[str, float | None]:
    """Runs AIPerf and returns its averages of the main figures."""
    written = json.loads(run_aiperf(aiperf, url, EMBEDDED, REQUESTS, CONCURRENCY, 32, directory).read_bytes())
    names = {
        "acceptance_length": "spec_decode_acceptance_length",
        "draft_acceptance_percent": "spec_decode_draft_acceptance_rate",
        "ttft_ms": "time_to_first_token",
        "itl_ms": "inter_token_latency",
        "output_tps": "output_token_throughput",
    }
    return {ours: written.get(theirs, {}).get("avg") for ours, theirs in names.items()}


def run_aiperf(
    aiperf: Path, url: str, model: str, requests: int, concurrency: int, tokens: int, directory: Path
) -> Path:
    """Runs AIPerf against a server (closed loop, chat, streaming) and returns the path of its JSON file."""
    command = [str(aiperf), "profile", "-m", model, "--endpoint-type", "chat", "--streaming", "--url", url]
    command += ["--tokenizer", str(resolve_target(EMBEDDED)), "--use-server-token-count", "--ui", "none"]
    command += ["--request-count", str(requests), "--concurrency", str(concurrency)]
    command += ["--synthetic-input-tokens-mean", "40", "--output-tokens-mean", str(tokens)]
    command += ["--artifact-dir", str(directory)]
    # AIPerf accepts a tokenizer directory only if the hub is online.
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run(command, check=True, timeout=RUN_S, env=environment, stdout=sys.stderr)
    return directory / "profile_export_aiperf.json"


if __name__ == "__main__":
    sys.exit(main())
