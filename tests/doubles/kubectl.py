"""What of kubectl our commands ask for, `apply -f` and `wait`: https://kubernetes.io/docs/reference/kubectl/generated/.

A cluster is a file that says of each Job whether it runs or is complete. A Job ends when it is waited for; one that
begins beside another fails, as its stage would for want of a finished parent.
"""

import json
import os
import sys
from pathlib import Path

import yaml

SUFFIXES = (".json", ".yaml", ".yml")  # what it reads of a directory, and not of those below it


def main(words: list[str]) -> int:
    cluster = Path(os.environ["KUBECTL_DOUBLE"])
    jobs: dict[str, str] = json.loads(cluster.read_text()) if cluster.exists() else {}
    if words[:2] == ["apply", "-f"]:
        path = Path(words[2])
        files = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES) if path.is_dir() else [path]
        for file in files:
            one = yaml.safe_load(file.read_text())
            if not isinstance(one, dict) or "kind" not in one:
                print(f"error validating {file}: kind not set", file=sys.stderr)
                return 1
            if one["kind"] == "Job":
                if "running" in jobs.values():
                    print(f"{file} begins beside {jobs}", file=sys.stderr)
                    return 1
                jobs[f"{one['metadata']['namespace']}/{one['metadata']['name']}"] = "running"
            print(f"{one['kind']}/{one['metadata']['name']}")
    elif words[0] == "wait":
        namespace, kind, name = words[words.index("-n") + 1], *words[-1].split("/")
        if kind != "job" or f"{namespace}/{name}" not in jobs or "--for=condition=complete" not in words:
            print(f"nothing to wait for: {words}", file=sys.stderr)
            return 1
        jobs[f"{namespace}/{name}"] = "complete"
    else:
        print(f"unknown: {words}", file=sys.stderr)
        return 1
    cluster.write_text(json.dumps(jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
