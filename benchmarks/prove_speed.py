"""Runs the benchmarks of speed on a CPU. `make prove-speed` calls it.

    python benchmarks/prove_speed.py [--only PART] [--target DIR --head DIR] [--prompts FILE] [--env-dir DIR]

    forward    plain decoding beside the speed at which the CPU reads memory
    budget     the budget's choices beside plain decoding and beside every fixed arm
    peers      eyas beside other engines, in process
    served     `eyas serve` beside itself without a head and beside other servers, over HTTP

`benchmarks/smollm2_target.py` writes a published target; `eyas run` trains a head for it. Without --target, all parts
run on the embedded pair. Each part is a script in benchmarks/, which explains its method and prints one JSON object for
each row. Exits 1 if a row misses its target. Progress goes to stderr. Takes two hours on two idle cores.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from eyas.bench.workload import BUILTIN
from eyas.model.target_dir import EMBEDDED

HERE = Path(__file__).resolve().parent
PARTS = {
    "forward": ("forward_speed.py", ("target", "prompts")),
    "budget": ("budget_speed.py", ("target", "head", "prompts")),
    "peers": ("compare_peers.py", ("target", "head", "prompts", "env_dir")),
    "served": ("served_speed.py", ("target", "head", "prompts", "env_dir")),
}
"""The script of each part and the options that it takes."""


def main() -> int:
    """Runs the chosen parts, which print their rows. Returns 1 if a part fails, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--prompts", default=BUILTIN)
    parser.add_argument("--env-dir", default=str(Path.home() / ".cache" / "eyas" / "peers"))
    options = vars(parser.parse_args())
    only, codes = options.pop("only"), []
    for name, (script, taken) in PARTS.items():
        if only in (None, name):
            words = [word for option in taken for word in (f"--{option.replace('_', '-')}", options[option])]
            codes.append(subprocess.run([sys.executable, HERE / script, *words], check=False).returncode)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
