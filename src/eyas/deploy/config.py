"""The recipe keys `deploy.*`."""

import re
from dataclasses import dataclass, field
from typing import Literal

from eyas.base.errors import UsageError

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # what Vertex AI and Kubernetes both take as a name, with room
PROJECT_ID = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")


def require_minimum(table: str, values: dict[str, int], minimum: int = 1) -> None:
    """UsageError for a number that is too small."""
    for name, value in values.items():
        if value < minimum:
            raise UsageError(f"{table}.{name} = {value}", f"at least {minimum}", f"raise {table}.{name}")


@dataclass(frozen=True)
class VertexConfig:
    """Where on Vertex AI, and on what.

    project, location   of Google Cloud; service_account: whom the container acts as, so that it may read buckets
    machine_type        with accelerator_type and accelerator_count; 0: a CPU
    replicas            the fewest and the most; between them one more is started when the target's accelerator (or CPU)
                        is busier than target_busy percent
    startup_s           within which the model must be loaded. inference_s: the longest answer, at most 3600
    shared_memory_mb    of /dev/shm, for tensors between processes
    api_endpoint        another address of the API; None: that of the location
    """

    project: str | None = None
    location: str = "us-central1"
    service_account: str | None = None
    machine_type: str = "g2-standard-12"
    accelerator_type: str = "NVIDIA_L4"
    accelerator_count: int = 1
    spot: bool = False
    replicas: tuple[int, int] = (1, 1)
    target_busy: int = 60
    startup_s: int = 7200
    inference_s: int = 600
    shared_memory_mb: int = 16384
    api_endpoint: str | None = None

    def __post_init__(self) -> None:
        if self.project is not None and not PROJECT_ID.fullmatch(self.project):
            raise UsageError(f"deploy.vertex.project = {self.project!r}", "the id of a project", "correct it")
        if not REGION.fullmatch(self.location):
            raise UsageError(f"deploy.vertex.location = {self.location!r}", "a region, us-central1", "correct it")
        sizes = {name: getattr(self, name) for name in ("startup_s", "inference_s", "shared_memory_mb")}
        require_minimum("deploy.vertex", sizes)
        require_minimum("deploy.vertex", {"accelerator_count": self.accelerator_count}, minimum=0)
        require_replica_range("deploy.vertex", self.replicas)
        if self.inference_s > 3600:
            raise UsageError(f"deploy.vertex.inference_s = {self.inference_s}", "at most 3600", "lower it")
        if not 1 <= self.target_busy <= 100:
            raise UsageError(f"deploy.vertex.target_busy = {self.target_busy}", "1 to 100 percent", "correct it")


@dataclass(frozen=True)
class KubernetesConfig:
    """Where in a cluster, and on what.

    service_account     a Kubernetes one, bound to whom may read the bucket (Workload Identity)
    accelerator         GKE's name of the GPU (nvidia-h100-80gb, nvidia-l4). accelerator_count: of a pod; 0: a CPU
    cpu, memory_gb      of a pod
    replicas            the fewest and the most; one more where more than target_waiting requests wait for each
    volume_claim        a ReadWriteMany claim that holds run directories, for the data stages
    volume_gb           of scratch: the fetched target and head. startup_s: within which the model must be loaded
    """

    namespace: str = "default"
    service_account: str = "default"
    accelerator: str = "nvidia-l4"
    accelerator_count: int = 1
    cpu: int = 4
    memory_gb: int = 16
    replicas: tuple[int, int] = (1, 4)
    target_waiting: int = 8
    volume_claim: str = "eyas-runs"
    volume_gb: int = 100
    startup_s: int = 3600

    def __post_init__(self) -> None:
        for name in ("namespace", "service_account", "volume_claim"):
            if not NAME.fullmatch(getattr(self, name)):
                found = f"deploy.kubernetes.{name} = {getattr(self, name)!r}"
                raise UsageError(found, "small letters, digits and dashes", "correct it")
        require_minimum("deploy.kubernetes", {"accelerator_count": self.accelerator_count}, minimum=0)
        names = ("cpu", "memory_gb", "target_waiting", "volume_gb", "startup_s")
        require_minimum("deploy.kubernetes", {name: getattr(self, name) for name in names})
        require_replica_range("deploy.kubernetes", self.replicas)


@dataclass(frozen=True)
class DeployConfig:
    """What is deployed, and how it is started.

    engine       what serves: eyas (CPU), SGLang or vLLM, each in the image that deploy/ builds
    image        of your registry, with a tag or a digest; jobs_image: eyas's own, for the data stages
    name         of endpoint, service and model; None: the recipe's
    storage      a bucket's URL: the head, and a target that is a directory here, are put below it
    target       what the container loads: a hub id or a URL; None: target.model
    speculation  the tree as `eyas tune` finds it, DEPTH,TOP_K,NODES; "off"; None: eyas's own budget, 3,1,4 elsewhere
    arguments    further ones of the engine's, such as --tp=4
    """

    engine: Literal["eyas", "sglang", "vllm"] = "sglang"
    image: str | None = None
    jobs_image: str | None = None
    name: str | None = None
    storage: str | None = None
    target: str | None = None
    speculation: str | None = None
    arguments: tuple[str, ...] = ()
    vertex: VertexConfig = field(default_factory=VertexConfig)
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)

    def __post_init__(self) -> None:
        if self.name is not None and not NAME.fullmatch(self.name):
            found = f"deploy.name = {self.name!r}"
            raise UsageError(found, "at most 40 small letters, digits and dashes, a letter first", "correct it")
        for key in ("image", "jobs_image", "target"):
            if getattr(self, key) == "":
                raise UsageError(f"an empty deploy.{key}", "its name", "correct it, or leave it out")
        if self.storage is not None and "://" not in self.storage:
            raise UsageError(f"deploy.storage = {self.storage!r}", "a URL, gs://BUCKET/PREFIX", "correct it")
        if self.speculation not in (None, "off") and not re.fullmatch(r"\d+,\d+,\d+", self.speculation or ""):
            found = f"deploy.speculation = {self.speculation!r}"
            raise UsageError(found, 'DEPTH,TOP_K,NODES or "off"', "take those of `eyas tune`")
        tree = None if self.speculation in (None, "off") else str(self.speculation).split(",")
        if tree is not None and self.engine == "eyas":
            found = f"deploy.speculation = {self.speculation!r} for eyas, which picks a tree each round"
            raise UsageError(found, '"off" or nothing', "leave it out")
        if tree is not None and self.engine == "vllm" and tree[1] != "1":
            found = f"deploy.speculation = {self.speculation!r} for vLLM"
            raise UsageError(found, "a chain, TOP_K 1: vLLM has no trees", "take the chain of `eyas tune`")


def require_replica_range(table: str, replicas: tuple[int, int]) -> None:
    """UsageError for a range that is none."""
    least, most = replicas
    if not 1 <= least <= most:
        found = f"{table}.replicas = {list(replicas)}"
        raise UsageError(found, "the fewest, at least 1, and the most", "correct it")
