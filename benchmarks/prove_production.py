"""Runs the benchmarks of serving, export formats and clients. `make prove-production` calls it.

    python benchmarks/prove_production.py [--only PART] [--env-dir DIR]

    charts     TPOT, throughput and TTFT over streams: `eyas serve` measured by `eyas bench --url`
    formats    vLLM and OpenVINO load the export and give the same tokens and acceptance length
    client     the TPOT that the client of `eyas bench --url` adds
    clients    its figures against those of AIPerf, guidellm and `vllm bench serve`
    lessons    the recommendations of the post "From research to production: EAGLE-3", each with and without
    drafters   the head against prompt lookup and a small model, on the same engine

Each part is a script in benchmarks/, which explains its method and prints one JSON object for each row. Exits 1 if a
row misses its target. Progress goes to stderr. Takes an hour and a half.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WITH_PEERS = ("formats", "clients")  # the parts that take --env-dir
PARTS = {
    "charts": "served_charts.py",
    "formats": "check_peer_formats.py",
    "client": "client_overhead.py",
    "clients": "compare_clients.py",
    "lessons": "training_ablations.py",
    "drafters": "compare_drafters.py",
}


def main() -> int:
    """Runs the chosen parts, which print their rows. Returns 1 if a part fails, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parsed = parser.parse_args()
    peers = ["--env-dir", parsed.env_dir]
    codes = [
        subprocess.run([sys.executable, HERE / script, *(peers if name in WITH_PEERS else [])], check=False).returncode
        for name, script in PARTS.items()
        if parsed.only in (None, name)
    ]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
