"""The recipe keys `deploy.*`."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from eyas.base.config import NonNegativeFloat, NonNegativeInt, PositiveInt
from eyas.base.errors import UsageError

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # valid on Vertex AI and on Kubernetes, with space for a suffix
NAME_RULE = "at most 40 lower-case letters, digits and dashes, starting with a letter"
PROJECT_ID = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")


def _require(is_valid: object, problem: str, fix: str) -> None:
    if not is_valid:
        raise UsageError(problem, fix)


def _require_replicas(table: str, replicas: tuple[int, int]) -> None:
    problem = f"{table}.replicas is {list(replicas)}"
    _require(1 <= replicas[0] <= replicas[1], problem, "Give the fewest replicas, at least 1, and then the most")


@dataclass(frozen=True)
class VertexJobsConfig:
    """The recipe keys `deploy.vertex.jobs.*`: the machines of the stages before the head, which run as CustomJobs.

    Attributes:
        machine_type: The machine type of the stages that load the target or train.
        accelerator_type: The GPU of such a machine, by its name on Vertex AI.
        accelerator_count: The number of GPUs of such a machine; 0 uses a CPU.
        train_machines: The number of machines that train together.
        cpu_machine_type: The machine type of `respond` if respond.url is set.
        spot: Uses spot machines for all stages but `respond`. A stage continues after its machine was stopped.
        disk_gb: The disk of a machine in gigabytes.
        timeout_s: The time limit of a job, in seconds.
        secrets: Secrets of Secret Manager that each job reads when it starts, as VARIABLE=NAME, such as
            HF_TOKEN=hub-token. The service account needs roles/secretmanager.secretAccessor.
        price_per_hour: The price of an hour of machine_type with its GPUs, in the currency of `plan.price_per_hour`.
            With it, and with `plan.hardware` and rates for one such machine, `eyas plan` prices the jobs.
        spot_price_per_hour: The same for a spot machine.
        cpu_price_per_hour: The price of an hour of cpu_machine_type. If respond.url is set, the hours of `respond` also
            cost `plan.price_per_hour`, for the server.
    """

    machine_type: str = "a3-highgpu-1g"
    accelerator_type: str = "NVIDIA_H100_80GB"
    accelerator_count: NonNegativeInt = 1
    train_machines: PositiveInt = 1
    cpu_machine_type: str = "n2-standard-8"
    spot: bool = False
    disk_gb: PositiveInt = 500
    timeout_s: PositiveInt = 604800
    secrets: tuple[str, ...] = ()
    price_per_hour: NonNegativeFloat | None = None
    spot_price_per_hour: NonNegativeFloat | None = None
    cpu_price_per_hour: NonNegativeFloat | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a secret of another form."""
        table = "deploy.vertex.jobs"
        for text in self.secrets:
            is_secret = re.fullmatch(r"[A-Z][A-Z0-9_]*=[-\w]+", text)
            _require(is_secret, f"{table}.secrets has {text[:40]!r}", "Write VARIABLE=NAME, never the value")


@dataclass(frozen=True)
class VertexConfig:
    """The recipe keys `deploy.vertex.*`: the endpoint on Vertex AI and the machines behind it.

    Attributes:
        project: The id of the Google Cloud project.
        location: The Google Cloud region.
        service_account: The Google Cloud service account of the container; it needs access to the bucket.
        machine_type: The machine type of a replica.
        accelerator_type: The GPU of a replica, by its name on Vertex AI.
        accelerator_count: The number of GPUs of a replica; 0 uses a CPU.
        spot: Uses spot machines, which are cheaper and may be stopped at any time.
        replicas: The minimum and the maximum number of replicas.
        target_waiting: The number of waiting requests of a replica above which one more starts (eyas and vLLM).
        target_busy: The use of the GPU (or CPU) in percent above which one more replica starts (SGLang).
        invoke_routes: Makes all routes of the container reachable below .../invoke, for OpenAI clients. Predict,
            rawPredict and streamRawPredict then do not work.
        startup_s: The time limit for loading the model in seconds, at most 7200.
        inference_s: The time limit of an answer in seconds, at most 3600.
        shared_memory_mb: The size of /dev/shm in megabytes, for tensors between processes.
        api_endpoint: The address of the Vertex AI API; by default the address for `deploy.vertex.location`.
    """

    project: str | None = None
    location: str = "us-central1"
    service_account: str | None = None
    machine_type: str = "g2-standard-12"
    accelerator_type: str = "NVIDIA_L4"
    accelerator_count: NonNegativeInt = 1
    spot: bool = False
    replicas: tuple[int, int] = (1, 1)
    target_waiting: PositiveInt = 8
    target_busy: Annotated[int, Field(ge=1, le=100)] = 60
    invoke_routes: bool = False
    startup_s: Annotated[int, Field(ge=1, le=7200)] = 7200
    inference_s: Annotated[int, Field(ge=1, le=3600)] = 600
    shared_memory_mb: PositiveInt = 16384
    api_endpoint: str | None = None
    jobs: VertexJobsConfig = field(default_factory=VertexJobsConfig)

    @property
    def parent(self) -> str:
        """The resource name of project and location. Raises UsageError without a project."""
        if self.project is None:
            raise UsageError("The recipe has no deploy.vertex.project", "Set it to the id of a Google Cloud project")
        return f"projects/{self.project}/locations/{self.location}"

    def __post_init__(self) -> None:
        """Raises UsageError for a value that Vertex AI does not accept."""
        table = "deploy.vertex"
        is_project = self.project is None or PROJECT_ID.fullmatch(self.project)
        _require(is_project, f"{table}.project={self.project!r} is not a project id", "Use the id, not the title")
        is_region = REGION.fullmatch(self.location)
        _require(is_region, f"{table}.location={self.location!r} is not a region", "Use one such as us-central1")
        _require_replicas(table, self.replicas)


@dataclass(frozen=True)
class KubernetesConfig:
    """The recipe keys `deploy.kubernetes.*`: the pods of the Deployment and of the Jobs.

    Attributes:
        namespace: The namespace of every object.
        service_account: The Kubernetes service account. It must be bound to a Google Cloud account with access to the
            bucket (Workload Identity).
        accelerator: The GPU of a pod, by its name on GKE, such as nvidia-l4 or nvidia-h100-80gb.
        accelerator_count: The number of GPUs of a pod; 0 uses a CPU.
        cpu: The number of CPU cores of a pod.
        memory_gb: The memory of a pod in gigabytes.
        replicas: The minimum and the maximum number of pods.
        target_waiting: The number of waiting requests per pod above which one more pod starts.
        volume_claim: A ReadWriteMany volume claim that holds run directories, for the data stages.
        storage_class: The storage class of this claim; by default the claim exists already and is not written.
        runs_gb: The size of this claim in gigabytes.
        volume_gb: The scratch space for the fetched target and head, in gigabytes.
        startup_s: The time limit for loading the model, in seconds.
        drain_s: The time in seconds in which running answers may finish before a pod ends.
        autoscaler: "hpa" writes a HorizontalPodAutoscaler (GKE's Managed Prometheus), "keda" writes a ScaledObject.
        prometheus: The address of the Prometheus server that KEDA queries.
        monitoring: "gmp" writes a PodMonitoring (GKE), "operator" a ServiceMonitor (Prometheus Operator).
        metrics_key: The key of the Secret NAME-secrets that holds the Bearer token of /metrics, such as METRICS_KEY; by
            default /metrics needs none.
        endpoint_picker: The Service of an endpoint picker; if set, an InferencePool is written.
        client_namespaces: Further namespaces whose pods may send requests, such as that of a Gateway.
    """

    namespace: str = "default"
    service_account: str = "default"
    accelerator: str = "nvidia-l4"
    accelerator_count: NonNegativeInt = 1
    cpu: PositiveInt = 4
    memory_gb: PositiveInt = 16
    replicas: tuple[int, int] = (1, 4)
    target_waiting: PositiveInt = 8
    volume_claim: str = "eyas-runs"
    storage_class: str | None = None
    runs_gb: PositiveInt = 1024
    volume_gb: PositiveInt = 100
    startup_s: PositiveInt = 3600
    drain_s: PositiveInt = 600
    autoscaler: Literal["hpa", "keda"] = "hpa"
    prometheus: str = "http://prometheus-operated.monitoring:9090"
    monitoring: Literal["gmp", "operator", "none"] = "gmp"
    metrics_key: str | None = None
    endpoint_picker: str | None = None
    client_namespaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for a value that Kubernetes does not accept."""
        table = "deploy.kubernetes"
        for key in ("namespace", "service_account", "volume_claim"):
            name = getattr(self, key)
            _require(NAME.fullmatch(name), f"{table}.{key}={name!r} is not a valid name", f"Use {NAME_RULE}")
        is_variable = self.metrics_key is None or re.fullmatch(r"[A-Z][A-Z0-9_]*", self.metrics_key)
        _require(is_variable, f"{table}.metrics_key={self.metrics_key!r} is not a variable", "Use one as METRICS_KEY")
        _require_replicas(table, self.replicas)


@dataclass(frozen=True)
class DeployConfig:
    """The recipe keys `deploy.*`: the container and how it is started.

    Attributes:
        engine: The engine in the container: eyas (a CPU or one GPU), SGLang or vLLM, each in the image that deploy/
            builds.
        image: The engine's image in your registry, with a tag or a digest.
        jobs_image: The image of eyas in your registry, for the stages before the head; for GPUs that of Dockerfile.gpu.
        name: The name of the endpoint, the Service and the model; by default the name of the recipe.
        storage: The URL of a bucket directory. `eyas deploy` uploads the head to it, and also the target if the target
            is a local directory.
        target: A hub id or a URL from which the container loads the target; by default target.model.
        speculation: The draft tree as DEPTH,TOP_K,NODES, such as the tree that `eyas tune` prints, or "off". By default
            eyas chooses the tree of each round, and SGLang and vLLM use 3,1,4.
        arguments: Further arguments for the engine, such as --tp=4.
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
        """Raises UsageError for a value that no platform accepts, and for a tree that the engine cannot run."""
        is_name = self.name is None or NAME.fullmatch(self.name)
        _require(is_name, f"deploy.name={self.name!r} is not a valid name", f"Use {NAME_RULE}")
        for key in ("image", "jobs_image", "target"):
            _require(getattr(self, key) != "", f"deploy.{key} is empty", "Give its name, or leave the key out")
        is_url = self.storage is None or "://" in self.storage
        _require(is_url, f"deploy.storage={self.storage!r} is not a URL", "Use one such as gs://BUCKET/PREFIX")
        if self.speculation in (None, "off"):
            return
        given = f"deploy.speculation={self.speculation}"
        tree = re.fullmatch(r"\d+,(\d+),\d+", self.speculation)
        _require(tree, f"{given} is not a tree", "Use DEPTH,TOP_K,NODES as `eyas tune` prints it, or off")
        _require(self.engine != "eyas", f"{given}, but eyas chooses a tree each round", "Use off, or leave it out")
        is_chain = self.engine != "vllm" or (tree is not None and tree[1] == "1")
        _require(is_chain, f"{given}, but vLLM runs only chains (TOP_K 1)", "Use the chain that `eyas tune` prints")
