"""Puts the digest behind each tag of deploy/images.env, so that a build tomorrow starts from the same bytes.

    SGLANG_IMAGE=docker.io/lmsysorg/sglang:v0.5.23   ->   SGLANG_IMAGE=docker.io/lmsysorg/sglang:v0.5.23@sha256:...

Asked is the registry itself (OCI distribution specification: HEAD /v2/NAME/manifests/TAG, with the token that its 401
names). Nothing is written unless every image was found. `make pin`
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import httpx

IMAGES = Path(__file__).parents[1] / "deploy" / "images.env"
LINE = re.compile(
    r"(?P<key>[A-Z_]+)=(?P<registry>[^/@]+)/(?P<name>[^:@]+):(?P<tag>[^@\s]+)(?:@(?P<digest>sha256:\w+))?"
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# An index first: its digest stands for the image on every architecture.
ACCEPT = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)
HOSTS = {"docker.io": "registry-1.docker.io"}  # where Docker Hub answers
TIMEOUT_S = 20.0


class Unresolved(Exception):
    """Why a tag has no digest."""


def digest_of(client: httpx.Client, registry: str, name: str, tag: str) -> str:
    """The digest that the registry has for a tag now. Unresolved."""
    host = HOSTS.get(registry, registry)
    scheme = "http" if host.startswith(("127.0.0.1:", "localhost:")) else "https"
    url = f"{scheme}://{host}/v2/{name}/manifests/{tag}"
    headers = {"Accept": ACCEPT}
    try:
        reply = client.head(url, headers=headers)
        if reply.status_code == 401:
            headers["Authorization"] = f"Bearer {_token(client, reply.headers.get('www-authenticate', ''))}"
            reply = client.head(url, headers=headers)
    except httpx.HTTPError as error:
        raise Unresolved(f"{host} is not reached ({type(error).__name__})") from None
    digest = reply.headers.get("docker-content-digest", "")
    if reply.status_code != 200 or not DIGEST.fullmatch(digest):
        raise Unresolved(f"{host} answers {reply.status_code} for {name}:{tag}")
    return digest


def _token(client: httpx.Client, challenge: str) -> str:
    """What `WWW-Authenticate: Bearer realm=...,service=...,scope=...` leads to, without an account."""
    told = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if "realm" not in told:
        raise Unresolved("the registry asks for an account")
    reply = client.get(told.pop("realm"), params=told)
    if reply.status_code != 200:
        raise Unresolved(f"no token for {told.get('scope')} ({reply.status_code})")
    body = reply.json()
    return str(body.get("token") or body.get("access_token"))


def pinned(text: str, client: httpx.Client) -> str:
    """The file with today's digests. Unresolved; ValueError for a line that names no image."""
    lines = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            found = LINE.fullmatch(line)
            if found is None:
                raise ValueError(line)
            key, registry, name, tag = found["key"], found["registry"], found["name"], found["tag"]
            line = f"{key}={registry}/{name}:{tag}@{digest_of(client, registry, name, tag)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main(path: Path = IMAGES) -> int:
    """0, and the file is pinned; 1, and it is as it was."""
    try:
        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as client:
            text = pinned(path.read_text(), client)
    except Unresolved as error:
        print(f"found {error}; expected a digest for every tag; do try again, or correct {path}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"found {error} in {path}; expected NAME_IMAGE=REGISTRY/NAME:TAG; do correct it", file=sys.stderr)
        return 1
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
