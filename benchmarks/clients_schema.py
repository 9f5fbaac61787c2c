"""Part `schema` of `make prove-clients`: schemathesis asks a server with random bodies made from its /openapi.json.

Runs tests/server/test_schema.py with 200 random bodies for each route that takes one, half of them broken. A route
fails if it answers with a status from 500 on or with a body that does not fit the schema, accepts a broken body, or
rejects a valid one with a code that the schema does not name.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from result_rows import Row, print_rows

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = 200


def schema_rows() -> Iterator[Row]:
    """Yields the number of routes that fail."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "tests/server/test_schema.py"]
    environment = os.environ | {"EYAS_SCHEMA_EXAMPLES": str(EXAMPLES)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (passed|failed)", done.stdout)}
    name = f"schema: checks of /openapi.json that fail (of {sum(counts.values())}, {EXAMPLES} random bodies each)"
    yield Row(name, counts.get("failed", 0), "0", done.returncode == 0)


if __name__ == "__main__":
    sys.exit(print_rows(schema_rows()))
