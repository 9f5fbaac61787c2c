"""Everything runs with sockets refused, loopback aside."""

import os
import subprocess
import sys

import pytest

# Every way out of a Python process goes through one of these audit events.
GUARD = """
import sys

LOOPBACK = ("127.", "::1", "localhost")
EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname")
tried = []


def refuse(event, arguments):
    if event not in EVENTS:
        return
    place = arguments[0] if event.startswith("socket.get") else arguments[1]
    host = place[0] if isinstance(place, tuple) else place
    # A path is a socket of this machine, no host is "any"; neither leaves it.
    if host is None or isinstance(host, bytes) or str(host).startswith(("/", *LOOPBACK)):
        return
    tried.append((event, host))
    raise PermissionError(f"{event} {host} is refused")


sys.addaudithook(refuse)
"""
WORK = """
import torch
from eyas.cli import main
torch.set_num_threads(1)
for arguments in {commands!r}:
    code = main(arguments)
    if code:
        sys.exit(code)
if tried:
    sys.exit(f"tried to reach {{tried}}")
"""
TRIES = [
    "import socket; socket.create_connection(('192.0.2.1', 80), 1)",
    "import socket; socket.getaddrinfo('example.com', 80)",
    "import urllib.request; urllib.request.urlopen('http://192.0.2.1/')",
    "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))",
]


def guarded(code: str) -> "subprocess.CompletedProcess[str]":
    # Without the switches that tests set: eyas itself must not ask.
    env = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    return subprocess.run([sys.executable, "-c", GUARD + code], capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize("code", TRIES)
def test_the_guard_refuses(code):
    done = guarded(code)
    assert done.returncode == 1
    assert "is refused" in done.stderr


def test_the_guard_lets_loopback_pass():
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname(), 1)"
    assert guarded(code).returncode == 0


def test_every_stage_runs_without_network(recipe, target, tmp_path):
    out = ["--out", str(tmp_path / "run")]
    commands = [["plan", str(recipe), *out], ["run", str(recipe), *out]]
    commands.append(["generate", "--target", str(target), "--head", str(tmp_path / "run" / "head"), "hello"])
    commands.append(["doctor", str(tmp_path / "run")])
    commands.append(["show", str(recipe), *out])
    done = guarded(WORK.format(commands=commands))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report" / "report.html").is_file()
