"""Writes the digest of each tag into deploy/images.env, so that later builds use the same images. `make pin` calls it.

    python tools/pin_images.py [FILE]

    SGLANG_IMAGE=docker.io/lmsysorg/sglang:v0.5.23   ->   SGLANG_IMAGE=docker.io/lmsysorg/sglang:v0.5.23@sha256:...

The digests come from the registries (OCI distribution specification: HEAD /v2/NAME/manifests/TAG, with a token from
the realm that the answer 401 names). The file is written only if every image was found.
"""

import argparse
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
# The index comes first: its digest stands for the image on every architecture.
ACCEPT = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)
HOSTS = {"docker.io": "registry-1.docker.io"}  # the host of Docker Hub's registry
TIMEOUT_S = 20.0


class RegistryError(Exception):
    """A tag without a digest; the text says why."""


def get_digest(client: httpx.Client, registry: str, name: str, tag: str) -> str:
    """Returns the digest that the registry has for a tag now. Raises RegistryError."""
    host = HOSTS.get(registry, registry)
    scheme = "http" if host.startswith(("127.0.0.1:", "localhost:")) else "https"
    url = f"{scheme}://{host}/v2/{name}/manifests/{tag}"
    headers = {"Accept": ACCEPT}
    try:
        reply = client.head(url, headers=headers)
        if reply.status_code == 401:
            headers["Authorization"] = f"Bearer {_get_token(client, reply.headers.get('www-authenticate', ''))}"
            reply = client.head(url, headers=headers)
    except httpx.HTTPError as error:
        raise RegistryError(f"{host} cannot be reached ({type(error).__name__})") from None
    digest = reply.headers.get("docker-content-digest", "")
    if reply.status_code != 200 or not DIGEST.fullmatch(digest):
        raise RegistryError(f"{host} answers {reply.status_code} for {name}:{tag}")
    return digest


def _get_token(client: httpx.Client, challenge: str) -> str:
    """Returns an anonymous token from the realm of `WWW-Authenticate: Bearer realm=...,service=...,scope=...`."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if "realm" not in fields:
        raise RegistryError("The registry requires an account")
    reply = client.get(fields.pop("realm"), params=fields)
    if reply.status_code != 200:
        raise RegistryError(f"The registry gives no token for {fields.get('scope')} ({reply.status_code})")
    body = reply.json()
    return str(body.get("token") or body.get("access_token"))


def pin_digests(text: str, client: httpx.Client) -> str:
    """Returns the text with today's digests. Raises RegistryError, and ValueError for a line without an image."""
    lines = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            found = LINE.fullmatch(line)
            if found is None:
                raise ValueError(line)
            key, registry, name, tag = found["key"], found["registry"], found["name"], found["tag"]
            line = f"{key}={registry}/{name}:{tag}@{get_digest(client, registry, name, tag)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main(path: Path = IMAGES) -> int:
    """Pins the file and returns 0; returns 1 and leaves the file as it was if a digest is missing."""
    try:
        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as client:
            text = pin_digests(path.read_text(), client)
    except RegistryError as error:
        print(f"eyas: error: {error}. Try again, or correct {path}.", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"eyas: error: {path} has the line {error}. Write it as NAME_IMAGE=REGISTRY/NAME:TAG.", file=sys.stderr)
        return 1
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
    print(text, end="")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=IMAGES, metavar="FILE", help="default: deploy/images.env")
    sys.exit(main(parser.parse_args().file))
