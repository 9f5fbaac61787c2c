"""An image's files, laid out as its Dockerfile copies them, with a double for the engine that records its call."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
LONGEST_S = 120.0


@dataclass
class Container:
    """The directory of an image. `start` runs its entrypoint."""

    engine: str
    home: Path
    seen: Path

    @staticmethod
    def of(engine: str, place: Path) -> "Container":
        home, double = place / "opt", ROOT / "tests" / "doubles" / "engine.py"
        (home / "lib" / "eyas").mkdir(parents=True)
        for name in ("gate.py", "entrypoint.sh"):
            shutil.copy(ROOT / "deploy" / name, home / name)
        shutil.copy(ROOT / "deploy" / engine / "entrypoint.sh", home / f"{engine}.sh")
        shutil.copy(ROOT / "src" / "eyas" / "__init__.py", home / "lib" / "eyas")
        shutil.copytree(ROOT / "src" / "eyas" / "base", home / "lib" / "eyas" / "base")
        binaries = place / "bin"
        binaries.mkdir()
        _script(binaries / "python3", f'exec {sys.executable} "$@"')
        if engine == "vllm":
            _script(binaries / "vllm", f'exec {sys.executable} {double} "$@"')
        else:
            package = place / "engine" / "sglang"
            package.mkdir(parents=True)
            (package / "__init__.py").touch()
            shutil.copy(double, package / "launch_server.py")
        return Container(engine, home, place / "seen.json")

    def environment(self, **more: str) -> dict[str, str]:
        place = self.home.parent
        return {
            "PATH": f"{place / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(place / "engine"),
            "XDG_CACHE_HOME": str(place / "cache"),
            "EYAS_HOME": str(self.home),
            "EYAS_LIB": str(self.home / "lib"),
            "EYAS_TEST_SEEN": str(self.seen),
            **more,
        }

    def refused(self, *arguments: str, **environment: str) -> str:
        """Returns the error of an entrypoint that does not start the engine; it must exit with 2."""
        command = [str(self.home / f"{self.engine}.sh"), *arguments]
        done = subprocess.run(
            command, env=self.environment(**environment), capture_output=True, text=True, timeout=LONGEST_S
        )
        assert done.returncode == 2, (done.returncode, done.stderr)
        assert not self.seen.exists(), "the engine was started"
        return done.stderr

    def start(self, *arguments: str, **environment: str) -> "Running":
        port = environment.setdefault("AIP_HTTP_PORT", str(free_port()))
        environment.setdefault("EYAS_INNER_PORT", str(free_port()))  # tests run side by side
        command = [str(self.home / f"{self.engine}.sh"), *arguments]
        process = subprocess.Popen(command, env=self.environment(**environment), stderr=subprocess.PIPE, text=True)
        running = Running(process, f"http://127.0.0.1:{port}", self.seen)
        end_s = time.monotonic() + LONGEST_S
        try:
            while not self.seen.exists():
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                assert time.monotonic() < end_s
                time.sleep(0.02)
        except AssertionError:
            running.kill()
            raise
        return running


@dataclass
class Running:
    """A running container."""

    process: "subprocess.Popen[str]"
    url: str
    seen: Path

    @property
    def call(self) -> dict[str, Any]:
        """The call of the engine: arguments and environment."""
        return json.loads(self.seen.read_text())

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=LONGEST_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LONGEST_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
            self.process.wait(LONGEST_S)


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
