"""eyas's own image: the server starts here with the command and the variables of its Dockerfile."""

import json
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest
from tests.deploy.container import ROOT, free_port
from tests.e2e.serving import start_server

TEXT = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
FINAL = TEXT[TEXT.rindex("\nFROM ") :]
PORT = "AIP_HTTP_PORT"


GPU = (ROOT / "deploy" / "Dockerfile.gpu").read_text().replace("\\\n", " ")


def instruction(name: str, among: str = FINAL) -> list[str]:
    """Returns the words of an instruction in JSON form. The last one counts, as in Docker."""
    return json.loads(re.findall(rf"^{name} .*?(\[.+\])$", among, re.MULTILINE)[-1])


def variables() -> dict[str, str]:
    """Returns the AIP_ variables, which set the port."""
    return dict(re.findall(r"\b(AIP_\w+)=(\S+)", "\n".join(re.findall(r"^ENV (.+)$", FINAL, re.MULTILINE))))


@pytest.fixture
def port() -> str:
    return str(free_port())


def test_the_jobs_find_their_packages():
    """Checks the extras: Jobs read prompts from buckets, screen them, and may call Google's detector."""
    extras = set(re.findall(r"pip install '\.\[([\w,]+)\]'", TEXT)[0].split(","))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"data", "gcs", "s3", "dlp"} <= extras <= set(known)


def test_server_and_health_check_use_the_port_of_the_platform(tmp_path: Path, port):
    assert variables()[PORT] == re.findall(r"^EXPOSE (\d+)$", FINAL, re.MULTILINE)[0]
    assert instruction("ENTRYPOINT") == ["eyas"]
    server = start_server(tmp_path / "server", instruction("CMD"), {**variables(), PORT: port, "OMP_NUM_THREADS": "1"})
    try:
        assert server.wait_ready() == f"http://0.0.0.0:{port}"
        assert httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60).status_code == 200
        check = [sys.executable, *instruction("HEALTHCHECK")[1:]]
        for told, code in ((port, 0), (str(free_port()), 1)):
            done = subprocess.run(check, env={PORT: told}, capture_output=True, timeout=60)
            assert done.returncode == code, done.stderr
        assert server.stop(signal.SIGTERM) == 0
    finally:
        server.process.kill()


def test_the_gpu_image_has_what_triton_and_the_stages_need():
    build, final = GPU[: GPU.rindex("\nFROM ")], GPU[GPU.rindex("\nFROM ") :]
    assert re.search(r"apt-get install [^&]*\bgcc\b[^&]*\blibc6-dev\b", final), "Triton compiles its launcher"
    assert "--index-url" in build
    assert "whl/cu" in build, "torch with CUDA"
    extras = set(re.findall(r"pip install '\.\[([\w,]+)\]'", build)[0].split(","))
    assert {"data", "gcs", "large"} <= extras, "prompts, gs:// and --device auto"
    assert instruction("CMD", final) == ["serve", "--device", "cuda"]
    for name in ("ENTRYPOINT", "HEALTHCHECK"):
        assert instruction(name, final) == instruction(name), "as in the image for CPUs"
    assert "USER 10001" in final
    names = dict(re.findall(r"\b(\w+_(?:HOME|DIR))=(\S+)", final))
    assert {names[name].split("/")[1] for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR")} == {"tmp"}, "writable"
