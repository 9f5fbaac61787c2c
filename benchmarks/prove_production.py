"""`make prove-production`: the rows of proof and production, one JSON object a row on stdout; exit 1 if one misses.

    python benchmarks/prove_production.py [--only PART] [--env-dir DIR]

    charts     TPOT, throughput and TTFT against streams, `eyas serve` measured by `eyas bench --url`
    formats    vLLM and OpenVINO load the export: the same tokens, the same acceptance
    client     what the bench client itself costs
    clients    its figures beside those of AIPerf, guidellm and vLLM's of the same run
    lessons    the lessons of the post, with and without
    drafters   the head beside prompt lookup and a small model, on the same engine

Every part is a script of its own in benchmarks/ that says how it measures. Progress goes to stderr; an hour and a half.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WITH_PEERS = ("formats", "clients")  # are told where the peers' environments are
PARTS = {
    "charts": "served_charts.py",
    "formats": "peer_formats.py",
    "client": "client_overhead.py",
    "clients": "clients.py",
    "lessons": "lessons.py",
    "drafters": "drafters.py",
}


def main() -> int:
    """Run the parts; each prints its rows."""
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
