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
from typing import Any

from eyas.base.errors import InputError
from eyas.deploy.config import VertexConfig
from eyas.deploy.launch import PORT, Json, Launch, Log, http_probe, startup_attempts, upload_artifacts
from eyas.deploy.manifests import render_template
from eyas.deploy.vertex_client import RetryPolicy, VertexClient

MODEL, ENDPOINT, DEPLOYMENT = "model.json", "endpoint.json", "deployment.json"
DIGEST_CHARS = 12  # characters of the digest in a model id

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


class VertexDeployment:
    """The deployment of a recipe's version on Vertex AI. All methods raise EyasError, and continue if called again."""

    def __init__(self, config: VertexConfig, launch: Launch, log: Log, retry_policy: RetryPolicy | None = None) -> None:
        """Builds the requests and the client."""
        self.config, self.launch, self.log, self.requests = config, launch, log, build_requests(config, launch)
        self.client = VertexClient(config, retry_policy or RetryPolicy())
        self.endpoint, self.wanted = (self.requests[DEPLOYMENT][key] for key in ("endpoint", "deployedModel"))

    def apply(self) -> Json:
        """Deploys the version, removes older versions, and returns `status`."""
        client, requests = self.client, self.requests
        # A wrong accelerator is found before anything is created.
        client.parse_request("DeployModelRequest", requests[DEPLOYMENT])
        self._require_owned(self._list_deployed())
        upload_artifacts(self.launch.artifact_uri, self.launch.artifacts)
        self.log(f"model {requests[MODEL]['modelId']}")
        client.create_model(requests[MODEL])
        self.log(f"endpoint {self.launch.name}")
        client.create_endpoint(requests[ENDPOINT])
        self._deploy_model()
        for deployed in self._list_deployed():
            if self._is_version(deployed) and not self._is_wanted(deployed):
                self._undeploy(deployed)
        return self.status()

    def status(self) -> Json:
        """Returns the deployment on Vertex AI. `state` is absent, model, endpoint (nothing deployed) or serving."""
        model, endpoint = self.client.get_model(self.wanted["model"]), self.client.get_endpoint(self.endpoint)
        state, dns, rows = "absent" if model is None else "model", None, []
        if endpoint is not None:
            traffic, dns = endpoint.traffic_split, endpoint.dedicated_endpoint_dns or None
            rows = [self._describe(deployed, traffic.get(deployed.id, 0)) for deployed in endpoint.deployed_models]
            state = "serving" if any(row["is_wanted"] for row in rows) else "endpoint"
        return {
            "state": state,
            "model": self.wanted["model"] if model is not None else None,
            "endpoint": self.endpoint if endpoint is not None else None,
            "dns": dns,
            **_build_urls(self.config, self.endpoint, dns),
            "deployed": rows,
        }

    def delete(self) -> Json:
        """Removes the deployed models, the endpoint and the models of this name, and returns `status`.

        Resources that eyas did not create stay and raise InputError. Artifacts stay in the bucket, which has rules of
        its own for old objects.
        """
        if self.client.get_endpoint(self.endpoint) is not None:
            self.client.wait_for_operations(self.endpoint)
            deployed_models = self._list_deployed()
            self._require_owned(deployed_models)
            for deployed in deployed_models:
                self._undeploy(deployed)
            self.log(f"deleting endpoint {self.launch.name}")
            self.client.delete_endpoint(self.endpoint)
        for model in self.client.list_models(self.config.parent, self.launch.name):
            self.log(f"deleting model {model.name.rpartition('/')[2]}")
            self.client.delete_model(model.name)
        return self.status()

    # --- one step ----------------------------------------------------------------------------------------------------

    def _list_deployed(self) -> list[Any]:
        endpoint = self.client.get_endpoint(self.endpoint)
        return [] if endpoint is None else list(endpoint.deployed_models)

    def _is_version(self, deployed: Any) -> bool:
        """Returns True if a deployed model has a name that `build_requests` gives to versions of this endpoint."""
        pattern = rf"{re.escape(self.launch.name)}-[0-9a-f]{{{DIGEST_CHARS}}}"
        return re.fullmatch(pattern, deployed.display_name) is not None

    def _is_wanted(self, deployed: Any) -> bool:
        """Returns True if a deployed model is this version. The API names a project by its number, eyas by its id."""
        same_model = deployed.model.rpartition("/")[2].partition("@")[0] == self.wanted["model"].rpartition("/")[2]
        return same_model and deployed.display_name == self.wanted["displayName"]

    def _require_owned(self, deployed_models: list[Any]) -> None:
        foreign = [model.display_name or model.id for model in deployed_models if not self._is_version(model)]
        if foreign:
            problem = f"The endpoint {self.launch.name} has the deployed model {foreign[0]}, which is not from eyas"
            raise InputError(problem, "Choose another deploy.name, or undeploy that model yourself")

    def _deploy_model(self) -> None:
        """Deploys the model, if it is not yet deployed. If it is, updates its range of replicas."""
        if self.client.wait_for_operations(self.endpoint):
            self.log("the operation of an earlier command has finished")
        running = next(filter(self._is_wanted, self._list_deployed()), None)
        if running is None:
            name = self.wanted["displayName"]
            self.log(f"deployed model {name}: takes minutes, while machines start and the model loads")
            self.client.deploy(self.requests[DEPLOYMENT])
            return
        wanted, current = self.wanted["dedicatedResources"], running.dedicated_resources
        replicas = (wanted["minReplicaCount"], wanted["maxReplicaCount"])
        targets = [(spec["metricName"], spec["target"]) for spec in wanted["autoscalingMetricSpecs"]]
        current_targets = [(spec.metric_name, spec.target) for spec in current.autoscaling_metric_specs]
        if ((current.min_replica_count, current.max_replica_count), current_targets) != (replicas, targets):
            self.log(f"replicas {replicas[0]} to {replicas[1]}")
            self.client.scale(self.endpoint, running.id, wanted)

    def _undeploy(self, deployed: Any) -> None:
        self.log(f"removing deployed model {deployed.display_name}")
        self.client.undeploy(self.endpoint, deployed.id)

    def _describe(self, deployed: Any, traffic: int) -> Json:
        """Returns a deployed model as `status` shows it. traffic: its share of the requests, in percent."""
        resources = deployed.dedicated_resources
        row = {"id": deployed.id, "name": deployed.display_name, "is_wanted": self._is_wanted(deployed)}
        replicas = [resources.min_replica_count, resources.max_replica_count]
        return {**row, "traffic": traffic, "machine": resources.machine_spec.machine_type, "replicas": replicas}


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
