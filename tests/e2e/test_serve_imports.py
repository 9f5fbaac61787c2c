"""`eyas serve` gets ready with the packages that it needs, and without those of data, training and measurement."""

import json
import signal
import subprocess
import sys
import urllib.request

from tests.e2e.serving import READY

FORBIDDEN = {"train", "data", "features", "evaluation", "monitoring", "bench", "recipe"}
PROGRAM = """
import json, os, sys, threading
from eyas.cli import main

def report():
    sys.stdin.read()  # until the test has seen /ready
    print(json.dumps(sorted(name for name in sys.modules if name.startswith("eyas."))), flush=True)
    os._exit(0)

threading.Thread(target=report, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


def test_a_ready_server_has_imported_no_other_stage(finished, target):
    arguments = ["serve", "--target", str(target), "--head", str(finished / "head"), "--port", "0", "--context", "512"]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready = READY.fullmatch(process.stdout.readline())
        assert ready is not None
        with urllib.request.urlopen(f"{ready[2]}/ready") as reply:
            assert reply.status == 200
        process.stdin.close()
        modules = json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert {"eyas.engine.engine", "eyas.server.routes"} <= set(modules)
    assert not [name for name in modules if name.split(".")[1] in FORBIDDEN]
