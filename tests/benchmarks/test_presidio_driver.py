"""Presidio's recognizers answer with eyas's kinds. Runs where `make peers-privacy` has installed Presidio."""

import json
import subprocess
from pathlib import Path

import pytest

PYTHON = Path("~/.cache/eyas/peers/presidio/bin/python").expanduser()
DRIVER = Path(__file__).parents[2] / "benchmarks" / "peer_drivers" / "run_presidio.py"
# Text with braces around the expected values, language, kinds.
TEXTS = [
    ("SSN {536-22-1234}, mail {anna@web.de}, card {4111 1111 1111 1111}", "en", ["GOVERNMENT_ID", "EMAIL", "CARD"]),
    ("my passport number is {123456789}", "en", ["GOVERNMENT_ID"]),  # the word before it raises the score
    ("orders 1699999999 and 4000000000000", "en", []),  # a number with a valid check digit and no such word
    ("Kennzeichen {B-AB 1234}, IBAN {DE89 3704 0044 0532 0130 00}", "de", ["VEHICLE", "ACCOUNT"]),
    ("MAC {00:1B:44:11:3A:B7} и +7", "ru", ["DEVICE_ID"]),
    ("x " * 6_000 + "{anna@web.de}", "fr", ["EMAIL"]),
]


@pytest.mark.skipif(not PYTHON.exists(), reason="Presidio is not installed (make peers-privacy)")
def test_spans_and_kinds():
    records, expected = [], []
    for index, (marked, language, kinds) in enumerate(TEXTS):
        parts = marked.replace("}", "{").split("{")
        at, spans = 0, []
        for number, part in enumerate(parts):
            if number % 2:
                spans.append([at, at + len(part), kinds[number // 2]])
            at += len(part)
        records.append(json.dumps({"id": str(index), "text": "".join(parts), "language": language}))
        expected.append({"id": str(index), "spans": spans})
    command = [str(PYTHON), str(DRIVER)]
    done = subprocess.run(command, input="\n".join(records), capture_output=True, text=True, timeout=300, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
