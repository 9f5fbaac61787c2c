"""Runs the benchmarks of what clients need of `eyas serve`. `make prove-clients` calls it.

    python benchmarks/prove_clients.py [--data DIR] [--only PART] [--env-dir DIR]

    tools      tool calls: read back from others' text, enforced, equal with and without drafts
    clients    OpenAI's client, LangChain, LiteLLM, agents, AIPerf and others run a task each
    schema     schemathesis asks the server with random bodies made from its /openapi.json
    metrics    Prometheus scrapes the server under load; the expressions of dashboards return data
    overhead   what parsing, metrics and digests cost

Each part is a script in benchmarks/, which explains its method and prints one JSON object for each row. Exits 1 if a
row misses its target.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = {
    "tools": "tool_calls.py",
    "clients": "interop.py",
    "schema": "clients_schema.py",
    "metrics": "clients_prometheus.py",
    "overhead": "clients_overhead.py",
}
INPUTS = {"tools": ("--env-dir", "--data"), "clients": ("--env-dir",)}


def main() -> int:
    """Runs the chosen parts, which print their rows. Returns 1 if a part fails, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parser.add_argument("--data", type=Path, help="directory of BFCL's cases, for the part tools")
    parsed = parser.parse_args()
    chosen = [name for name in PARTS if parsed.only in (None, name)]
    values = {"--env-dir": parsed.env_dir, "--data": parsed.data}
    if "tools" in chosen and parsed.data is None:
        parser.error("The part tools needs --data DIR.")
    codes = []
    for name in chosen:
        words = [word for option in INPUTS.get(name, ()) for word in (option, values[option])]
        codes.append(subprocess.run([sys.executable, HERE / PARTS[name], *words], check=False).returncode)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
