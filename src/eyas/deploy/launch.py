"""Describes how the container of an engine is started, for every platform: image, arguments, environment, artifacts.

    deploy.storage/NAME/<digest>/head/     where there is a head
                                /target/   where the target is a local directory

All three images read the environment variables of Vertex AI, so the Kubernetes manifests set them as well.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from eyas.base import provenance
from eyas.base.errors import InputError, UsageError
from eyas.base.progress import Progress
from eyas.base.storage import StoragePath, to_json, write_atomic
from eyas.deploy.config import NAME, NAME_RULE, DeployConfig

PORT = 8080
PROBE_PERIOD_S, PROBE_TIMEOUT_S = 10, 5
OWNER_LABELS = {"managed_by": "eyas"}
"""The labels of all cloud resources that eyas creates. It changes and deletes no resource without them."""

Json = dict[str, Any]
Log = Callable[[str], None]
"""Receives the progress, one line each."""


def http_probe(request: Json) -> Json:
    """Returns a Kubernetes probe that sends an HTTP GET request. The caller must add `failureThreshold`."""
    return {"httpGet": request, "periodSeconds": PROBE_PERIOD_S, "timeoutSeconds": PROBE_TIMEOUT_S}


def startup_attempts(startup_s: int) -> int:
    """Returns the number of probes that must fail before a container counts as not started."""
    return -(-startup_s // PROBE_PERIOD_S)


@dataclass(frozen=True)
class ServedModel:
    """The target and the head of a run.

    Attributes:
        recipe: The name of the recipe.
        target: The target: a hub id or URL as text, or a local directory as a Path.
        head: The head directory; None to serve the target alone.
        head_digest: The digest of the head.
        parsers: The arguments that choose the engine's parsers of tool calls and reasoning.
    """

    recipe: str
    target: str | Path
    head: Path | None
    head_digest: str | None
    parsers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """The image, arguments and environment of one container, and the files that it loads.

    Attributes:
        name: The name of the endpoint, the Service and the model.
        engine: "eyas", "sglang" or "vllm".
        image: The image of the engine.
        arguments: The arguments of the engine.
        environment: The environment variables of the container. deploy/entrypoint.sh reads them; {} for eyas.
        artifact_uri: The URL of the directory in the bucket that holds the artifacts.
        artifacts: Name below `artifact_uri` -> local directory to upload.
        head_digest: The digest of the head; None without a head.
        health_route: The route that answers 200 when the server accepts requests, in the image of every engine.
    """

    name: str
    engine: str
    image: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    artifact_uri: str
    artifacts: Mapping[str, Path]
    head_digest: str | None
    health_route: ClassVar[str] = "/health"

    @property
    def predict_route(self) -> str:
        """The route of predictions. eyas accepts `instances` or OpenAI chat there; SGLang and vLLM OpenAI chat."""
        return "/predict" if self.engine == "eyas" else "/v1/chat/completions"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every cloud resource of this launch."""
        return {**OWNER_LABELS, "eyas_name": self.name, "eyas_head": _short(self.head_digest or "none", 16)}

    @property
    def parents(self) -> dict[str, str]:
        """The digest of the head, for provenance.json; {} without a head."""
        return {} if self.head_digest is None else {"head": self.head_digest}

    def version_name(self, value: Json, digits: int) -> str:
        """Returns the name followed by the first digits of the digest of `value`."""
        return f"{self.name}-{_short(provenance.digest_json(value), digits)}"

    def build_arguments(self, platform: str, num_gpus: int) -> tuple[str, ...]:
        """Returns the arguments of the container on machines with this number of GPUs.

        Raises:
            UsageError: SGLang and vLLM need a GPU, and eyas serves on one GPU.
        """
        key = f"deploy.{platform}.accelerator_count is {num_gpus}"
        if self.engine != "eyas":
            if num_gpus == 0:
                raise UsageError(f"{key}, but {self.engine} needs a GPU", 'Raise it, or set deploy.engine="eyas"')
            return self.arguments
        if num_gpus > 1:
            raise UsageError(f"{key}, but eyas serves on one GPU", "Set it to 1, or choose SGLang or vLLM")
        verb, *rest = self.arguments
        # With the device named, a machine whose driver is missing fails instead of serving slowly.
        return (verb, "--device", "cuda", *rest) if num_gpus == 1 else self.arguments


def build_launch(config: DeployConfig, model: ServedModel) -> Launch:
    """Returns the launch of a recipe's container. Raises UsageError if deploy.image or deploy.storage is not set."""
    name = config.name or model.recipe
    if not NAME.fullmatch(name):
        raise UsageError(f"The recipe's name {name!r} is not valid on the platform", f"Set deploy.name to {NAME_RULE}")
    if config.image is None:
        image = f"make image-{config.engine} TAG=REGISTRY/NAME:TAG"
        raise UsageError("The recipe has no deploy.image", f"Run `{image}`, push the image and set deploy.image")
    if config.storage is None:
        raise UsageError("The recipe has no deploy.storage", "Set it to a bucket, such as gs://BUCKET/PREFIX")
    target = config.target or model.target
    artifacts = {} if model.head is None else {"head": model.head}
    digests = {"head": model.head_digest or "none"}
    if isinstance(target, Path):
        artifacts["target"] = target
        digests["target"] = provenance.digest_directory(target)
    remote_target = None if isinstance(target, Path) else target
    variables = {"EYAS_SERVED_NAME": name, "EYAS_TARGET": remote_target, "EYAS_SPECULATION": config.speculation}
    return Launch(
        name=name,
        engine=config.engine,
        image=config.image,
        arguments=_build_arguments(config, model, name, remote_target),
        environment={key: value for key, value in variables.items() if value is not None and config.engine != "eyas"},
        artifact_uri=f"{config.storage.rstrip('/')}/{name}/{_short(provenance.digest_json(digests), 16)}",
        artifacts=artifacts,
        head_digest=model.head_digest,
    )


def _short(digest: str, digits: int) -> str:
    return digest.removeprefix("sha256:")[:digits]


def _build_arguments(config: DeployConfig, model: ServedModel, name: str, target: str | None) -> tuple[str, ...]:
    """Returns the engine's arguments. target: None if the target is one of the uploaded artifacts."""
    if config.engine != "eyas":
        return (*model.parsers, *config.arguments)
    arguments = ["serve", "--no-compile", "--served-name", name]
    arguments += [] if target is None else ["--target", target]
    arguments += ["--no-head"] if model.head is None else []
    return (*arguments, *config.arguments)


def upload_artifacts(url: str, artifacts: Mapping[str, Path]) -> None:
    """Uploads the files of local directories that are not yet below a URL. Raises InputError and StorageError.

    An upload is atomic, so a file that exists with the right size is not uploaded again. Requirement: the URL contains
    a digest of the content.

    Args:
        url: The URL of a directory in the bucket.
        artifacts: Name below `url` -> local directory.
    """
    root = StoragePath(url)
    files = {
        f"{name}/{path.relative_to(directory).as_posix()}": path
        for name, directory in artifacts.items()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    if not artifacts:
        return
    if not files:
        raise InputError(f"{' and '.join(map(str, artifacts.values()))} hold no file", "Run `eyas train` first")
    sizes = {name: int(detail["size"]) for name, detail in root.list_details().items()}
    with Progress(f"upload to {root}", len(files), "files") as bar:
        for name, path in files.items():
            if sizes.get(name) != path.stat().st_size:
                root.join(*name.split("/")).upload_file(path)
            bar.advance()


def write_objects(
    directory: Path, platform: str, objects: Mapping[str, Json], parents: Mapping[str, str]
) -> provenance.Provenance:
    """Writes one file of YAML or JSON for each object, then provenance.json, which marks the directory as finished.

    Does nothing if the directory is finished with the same objects. Removes files of an earlier recipe.

    Args:
        directory: The directory of the files.
        platform: "vertex" or "kubernetes".
        objects: File name, which ends in .yaml or .json -> object.
        parents: The digest of the served head as {"head": digest}; {} if the objects serve no head.
    """
    started_s = time.time()
    inputs = provenance.StageInputs(f"deploy-{platform}", provenance.digest_json(dict(objects)), parents)
    if provenance.is_finished(directory, inputs):
        return provenance.read_provenance(directory)
    provenance.mark_unfinished(directory)
    for suffix in {Path(name).suffix for name in objects}:
        for path in list(directory.rglob(f"*{suffix}")):
            if path.relative_to(directory).as_posix() not in objects:  # of an earlier recipe
                path.unlink()
    for name, value in objects.items():
        is_yaml = name.endswith(".yaml")
        write_atomic(directory / name, yaml.safe_dump(value, sort_keys=False, width=120) if is_yaml else to_json(value))
    return provenance.finish_stage(directory, inputs, started_s)
