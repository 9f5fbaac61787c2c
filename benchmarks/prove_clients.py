"""Runs the benchmarks of what clients need of `eyas serve`. `make prove-clients` calls it.

    python benchmarks/prove_clients.py --data DIR [--only PART] [--env-dir DIR]

    tools      tool calls: read back from others' text, enforced, equal with and without drafts
    metrics    Prometheus scrapes the server under load; the expressions of dashboards return data

Each part is a script in benchmarks/, which explains its method and prints one JSON object for each row. Exits 1 if a
row misses its target.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = {"tools": "tool_calls.py", "metrics": "clients_prometheus.py"}
WITH_DATA = ("tools",)  # the parts that take --env-dir and --data


def main() -> int:
    """Runs the chosen parts, which print their rows. Returns 1 if a part fails, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parser.add_argument("--data", type=Path, required=True)
    parsed = parser.parse_args()
    inputs = ["--env-dir", parsed.env_dir, "--data", parsed.data]
    codes = [
        subprocess.run([sys.executable, HERE / script, *(inputs if name in WITH_DATA else [])], check=False).returncode
        for name, script in PARTS.items()
        if parsed.only in (None, name)
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
