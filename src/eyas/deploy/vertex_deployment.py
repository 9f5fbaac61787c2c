"""`eyas deploy vertex`: writes the requests to Vertex AI, and carries them out with --apply, --status and --delete.

    model.json        UploadModelRequest       image, routes, artifacts, probes
    endpoint.json     CreateEndpointRequest    a dedicated endpoint and its time limit
    deployment.json   DeployModelRequest       machine, accelerator, replicas, autoscaling

The files hold the JSON of the REST API, and their content is sent unchanged. The id of the endpoint is deploy.name. The
id of the model is deploy.name and a digest of the request. So a repeated request does not create a second resource.

    upload ─> model ─> endpoint ─> deployed model ─> older deployed models are removed

Each step of `apply` first checks whether it is done. After an interruption, the same command continues, on any machine.
If a deployment is running (it takes up to half an hour), the command waits for it and does not start another one.
"""

import re
from collections.abc import Callable
from typing import Any

from eyas.base.errors import InputError
from eyas.deploy.config import VertexConfig
from eyas.deploy.launch import PORT, Json, Launch, http_probe, startup_attempts, upload_artifacts
from eyas.deploy.manifests import render_template
from eyas.deploy.vertex_client import RetryPolicy, VertexClient

MODEL, ENDPOINT, DEPLOYMENT = "model.json", "endpoint.json", "deployment.json"
DIGEST_CHARS = 12  # characters of the digest in a model id

Log = Callable[[str], None]

# --- requests --------------------------------------------------------------------------------------------------------


def build_requests(config: VertexConfig, launch: Launch) -> dict[str, Json]:
    """Returns file name -> request. Raises UsageError without a project, or if the GPUs do not fit the engine."""
    parent = config.parent
    values = {
        "arguments": launch.build_arguments("vertex", config.accelerator_count),
        "probe": http_probe({"path": launch.health_route, "port": PORT, "scheme": "HTTP"}),
        "startup_attempts": startup_attempts(config.startup_s),
        "endpoint_labels": {key: value for key, value in launch.labels.items() if key != "eyas_head"},
    }
    parts = render_template("vertex", config=config, launch=launch, port=PORT, **values)
    model, resources = parts["model"], parts["resources"]
    model_id = launch.version_name(model, DIGEST_CHARS)
    account = {} if config.service_account is None else {"serviceAccount": config.service_account}
    deployed = {"model": f"{parent}/models/{model_id}", "dedicatedResources": resources, **account}
    # A deployed model keeps its name while only its replicas change.
    fixed = {**deployed, "dedicatedResources": resources["machineSpec"], "spot": config.spot}
    deployed["displayName"] = launch.version_name(fixed, DIGEST_CHARS)
    return {
        MODEL: {"parent": parent, "modelId": model_id, "model": model},
        ENDPOINT: {"parent": parent, "endpointId": launch.name, "endpoint": parts["endpoint"]},
        DEPLOYMENT: {
            "endpoint": f"{parent}/endpoints/{launch.name}",
            "deployedModel": deployed,
            "trafficSplit": {"0": 100},  # 0 stands for the model of this request
        },
    }


# --- sending the requests --------------------------------------------------------------------------------------------


class DesiredState:
    """The endpoint, the model and the deployed model that the requests of a recipe describe.

    Attributes:
        requests: The requests of `build_requests`.
        name: The id of the endpoint.
        endpoint: The resource name of the endpoint.
        deployed: The deployed model.
    """

    def __init__(self, requests: dict[str, Json]) -> None:
        """Takes the requests of `build_requests`."""
        self.requests, self.name = requests, requests[ENDPOINT]["endpointId"]
        self.endpoint, self.deployed = requests[DEPLOYMENT]["endpoint"], requests[DEPLOYMENT]["deployedModel"]

    def is_version(self, deployed: Any) -> bool:
        """Returns True if a deployed model has a name that `build_requests` gives to versions of this endpoint."""
        return re.fullmatch(rf"{re.escape(self.name)}-[0-9a-f]{{{DIGEST_CHARS}}}", deployed.display_name) is not None

    def is_wanted(self, deployed: Any) -> bool:
        """Returns True if a deployed model is this version. The API names a project by its number, eyas by its id."""
        same_model = deployed.model.rpartition("/")[2].partition("@")[0] == self.deployed["model"].rpartition("/")[2]
        return same_model and deployed.display_name == self.deployed["displayName"]


def apply(config: VertexConfig, launch: Launch, log: Log, retry_policy: RetryPolicy | None = None) -> Json:
    """Deploys the recipe's version, removes older versions, and returns `status`. Raises EyasError."""
    desired, client = _open(config, launch, retry_policy)
    # A wrong accelerator is found before anything is created.
    client.parse_request("DeployModelRequest", desired.requests[DEPLOYMENT])
    _require_owned_endpoint(desired, client.get_endpoint(desired.endpoint))
    upload_artifacts(launch.artifact_uri, launch.artifacts)
    log(f"model {desired.requests[MODEL]['modelId']}")
    client.create_model(desired.requests[MODEL])
    log(f"endpoint {desired.name}")
    client.create_endpoint(desired.requests[ENDPOINT])
    _deploy_model(client, desired, log)
    endpoint = client.get_endpoint(desired.endpoint)
    for deployed in [] if endpoint is None else endpoint.deployed_models:
        if desired.is_version(deployed) and not desired.is_wanted(deployed):
            log(f"removing deployed model {deployed.display_name}")
            client.undeploy(desired.endpoint, deployed.id)
    return status(config, launch, retry_policy)


def _open(config: VertexConfig, launch: Launch, retry_policy: RetryPolicy | None) -> tuple[DesiredState, VertexClient]:
    desired = DesiredState(build_requests(config, launch))
    return desired, VertexClient(config, retry_policy or RetryPolicy())


def _require_owned_endpoint(desired: DesiredState, endpoint: Any | None) -> None:
    models = [] if endpoint is None else endpoint.deployed_models
    foreign = [deployed.display_name or deployed.id for deployed in models if not desired.is_version(deployed)]
    if foreign:
        problem = f"The endpoint {desired.name} has the deployed model {foreign[0]}, which is not from eyas"
        raise InputError(problem, "Choose another deploy.name, or undeploy that model yourself")


def _deploy_model(client: VertexClient, desired: DesiredState, log: Log) -> None:
    """Deploys the model, if it is not yet deployed. If it is, updates its minimum and maximum number of replicas."""
    if client.wait_for_operations(desired.endpoint):
        log("the operation of an earlier command has finished")
    endpoint = client.get_endpoint(desired.endpoint)
    assert endpoint is not None, "it was created just now"
    running = next((deployed for deployed in endpoint.deployed_models if desired.is_wanted(deployed)), None)
    if running is None:
        name = desired.deployed["displayName"]
        log(f"deployed model {name}: takes minutes, while machines start and the model loads")
        client.deploy(desired.requests[DEPLOYMENT])
        return
    wanted, current = desired.deployed["dedicatedResources"], running.dedicated_resources
    replicas = (wanted["minReplicaCount"], wanted["maxReplicaCount"])
    targets = [(spec["metricName"], spec["target"]) for spec in wanted["autoscalingMetricSpecs"]]
    current_targets = [(spec.metric_name, spec.target) for spec in current.autoscaling_metric_specs]
    if ((current.min_replica_count, current.max_replica_count), current_targets) != (replicas, targets):
        log(f"replicas {replicas[0]} to {replicas[1]}")
        client.scale(desired.endpoint, running.id, wanted)


def status(config: VertexConfig, launch: Launch, retry_policy: RetryPolicy | None = None) -> Json:
    """Returns the deployment on Vertex AI. `state` is absent, model, endpoint (nothing deployed on it) or serving."""
    desired, client = _open(config, launch, retry_policy)
    model = client.get_model(desired.deployed["model"])
    endpoint = client.get_endpoint(desired.endpoint)
    models = [] if endpoint is None else list(endpoint.deployed_models)
    state = "absent" if model is None else "model"
    state = state if endpoint is None else "endpoint"
    dns = None if endpoint is None else endpoint.dedicated_endpoint_dns or None
    deployed_states = []
    for deployed in models:
        resources, is_wanted = deployed.dedicated_resources, desired.is_wanted(deployed)
        row = {"id": deployed.id, "name": deployed.display_name, "is_wanted": is_wanted}
        row["traffic"] = 0 if endpoint is None else endpoint.traffic_split.get(deployed.id, 0)
        replicas = [resources.min_replica_count, resources.max_replica_count]
        deployed_states.append({**row, "machine": resources.machine_spec.machine_type, "replicas": replicas})
    return {
        "state": "serving" if any(map(desired.is_wanted, models)) else state,
        "model": desired.deployed["model"] if model is not None else None,
        "endpoint": desired.endpoint if endpoint is not None else None,
        "dns": dns,
        **_build_urls(config, desired.endpoint, dns),
        "deployed": deployed_states,
    }


def _build_urls(config: VertexConfig, endpoint: str, dns: str | None) -> Json:
    """Returns the addresses of an endpoint. Only its own host (dns) answers, not that of the API.

    base_url: for OpenAI clients, with all routes of the container. predict, stream: take one body of an OpenAI route.
    """
    if dns is None:
        return {}
    root = f"https://{dns}/v1/{endpoint}"
    if config.invoke_routes:
        return {"base_url": f"{root}/invoke/v1"}
    return {"predict": f"{root}:rawPredict", "stream": f"{root}:streamRawPredict"}


def delete(config: VertexConfig, launch: Launch, log: Log, retry_policy: RetryPolicy | None = None) -> Json:
    """Removes the deployed models, the endpoint and the models of this name, and returns `status`. Raises EyasError.

    Resources that eyas did not create stay and raise InputError. Artifacts stay in the bucket, which has rules of its
    own for old objects.
    """
    desired, client = _open(config, launch, retry_policy)
    endpoint = client.get_endpoint(desired.endpoint)
    if endpoint is not None and client.wait_for_operations(desired.endpoint):
        endpoint = client.get_endpoint(desired.endpoint)
    _require_owned_endpoint(desired, endpoint)
    if endpoint is not None:
        for deployed in endpoint.deployed_models:
            log(f"removing deployed model {deployed.display_name}")
            client.undeploy(desired.endpoint, deployed.id)
        log(f"deleting endpoint {desired.name}")
        client.delete_endpoint(desired.endpoint)
    for model in client.list_models(desired.requests[MODEL]["parent"], desired.name):
        log(f"deleting model {model.name.rpartition('/')[2]}")
        client.delete_model(model.name)
    return status(config, launch, retry_policy)
