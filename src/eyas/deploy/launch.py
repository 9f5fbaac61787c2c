"""How a container is started, for any platform: image, arguments, environment, and what lies in the bucket for it.

    STORAGE/NAME/<digest>/head/     always, where there is a head
                         /target/   where the target is a directory of this machine

All three images read Vertex AI's variables, so a cluster sets them as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eyas.base.errors import InputError, UsageError
from eyas.base.progress import Progress
from eyas.base.provenance import digest_directory, digest_json
from eyas.base.storage import StoragePath
from eyas.deploy.config import NAME, DeployConfig

PORT = 8080
OWNER_LABELS = {"managed_by": "eyas"}
"""What everything of ours carries: nothing without it is changed or deleted."""


@dataclass(frozen=True)
class ServedModel:
    """What a run gives. target: a hub id, a URL, or a directory of this machine. head: a directory; digest: its own."""

    recipe: str
    target: str | Path
    head: Path
    head_digest: str


@dataclass(frozen=True)
class Launch:
    """artifacts: directories of this machine, by their name below `artifact_uri`."""

    name: str
    engine: str
    image: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    artifact_uri: str
    artifacts: Mapping[str, Path]
    head_digest: str

    @property
    def health_route(self) -> str:
        """200 when requests are welcome, in all three images."""
        return "/health"

    @property
    def predict_route(self) -> str:
        """eyas's own takes instances, too; the others' is OpenAI's chat, for rawPredict."""
        return "/predict" if self.engine == "eyas" else "/v1/chat/completions"

    @property
    def labels(self) -> dict[str, str]:
        """For everything that is made of this launch."""
        return {**OWNER_LABELS, "eyas_name": self.name, "eyas_head": self.head_digest.removeprefix("sha256:")[:16]}


def build_launch(config: DeployConfig, model: ServedModel) -> Launch:
    """UsageError where the recipe leaves out what cannot be guessed."""
    name = config.name or model.recipe
    if not NAME.fullmatch(name):
        found = f"a recipe named {name!r}, which is no name on the platform"
        raise UsageError(found, "at most 40 small letters, digits and dashes", 'add deploy.name = "..."')
    if config.image is None:
        what = "deploy/Dockerfile" if config.engine == "eyas" else f"deploy/{config.engine}/Dockerfile"
        raise UsageError(
            "no deploy.image", f"where {what} was pushed to", f"`make image-{config.engine}`, push, add it"
        )
    if config.storage is None:
        raise UsageError("no deploy.storage", "a bucket for the head, gs://BUCKET/PREFIX", "add it")
    target = config.target or model.target
    artifacts = {"head": model.head} if config.speculation != "off" else {}
    digests = {"head": model.head_digest}
    if isinstance(target, Path):
        artifacts["target"] = target
        digests["target"] = digest_directory(target)
    uri = f"{config.storage.rstrip('/')}/{name}/{digest_json(digests).removeprefix('sha256:')[:16]}"
    return Launch(
        name=name,
        engine=config.engine,
        image=config.image,
        arguments=_arguments(config, name, None if isinstance(target, Path) else target),
        environment={} if config.engine == "eyas" else _environment(config, name, target),
        artifact_uri=uri,
        artifacts=artifacts,
        head_digest=model.head_digest,
    )


def _arguments(config: DeployConfig, name: str, target: str | None) -> tuple[str, ...]:
    """target: None where it comes with the artifacts."""
    if config.engine != "eyas":
        return config.arguments
    words = ["serve", "--no-compile", "--served-name", name]
    words += [] if target is None else ["--target", target]
    words += ["--no-head"] if config.speculation == "off" else []
    return (*words, *config.arguments)


def _environment(config: DeployConfig, name: str, target: str | Path) -> dict[str, str]:
    """As deploy/entrypoint.sh reads it."""
    told = {"EYAS_SERVED_NAME": name}
    if not isinstance(target, Path):
        told["EYAS_TARGET"] = target
    if config.speculation is not None:
        told["EYAS_SPECULATION"] = config.speculation
    return told


def upload_artifacts(launch: Launch, progress: bool = True) -> None:
    """Put the artifacts into the bucket, as far as they are not there. InputError, StorageError.

    The directory is named after its contents and an object appears whole, so one of the right size is the right one.
    """
    place = StoragePath(launch.artifact_uri)
    files = {
        f"{name}/{path.relative_to(directory).as_posix()}": path
        for name, directory in launch.artifacts.items()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    if not launch.artifacts:
        return
    if not files:
        raise InputError("no file in head or target", "a head directory", "run `eyas train` first")
    there = {name: int(detail["size"]) for name, detail in place.list_details().items()}
    with Progress(f"upload to {place}", len(files), "files", enabled=progress) as bar:
        for name, path in files.items():
            if there.get(name) != path.stat().st_size:
                place.join(*name.split("/")).upload_file(path)
            bar.advance()
