"""`eyas deploy vertex --apply | --status | --delete`: from what was written down to what runs, and back.

    upload ─> model ─> endpoint ─> deployment ─> older deployments go

Each step looks whether it was done. Stopped anywhere, the same command goes on there, on any machine: a deployment that
takes half an hour and was asked for already is waited for, not asked for twice.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eyas.base.errors import InputError
from eyas.deploy.config import VertexConfig
from eyas.deploy.launch import Launch, upload_artifacts
from eyas.deploy.vertex_client import RetryPolicy, VertexClient
from eyas.deploy.vertex_requests import DEPLOYMENT, DIGEST_CHARS, ENDPOINT, MODEL, Json, build_requests

Log = Callable[[str], None]


@dataclass(frozen=True)
class DesiredState:
    """What is to be."""

    requests: dict[str, Json]

    @property
    def name(self) -> str:
        return self.requests[ENDPOINT]["endpointId"]

    @property
    def parent(self) -> str:
        return self.requests[ENDPOINT]["parent"]

    @property
    def endpoint(self) -> str:
        return self.requests[DEPLOYMENT]["endpoint"]

    @property
    def deployed(self) -> Json:
        return self.requests[DEPLOYMENT]["deployedModel"]

    def is_version(self, deployed: Any) -> bool:
        """Whether something deployed is a version of this name: what `requests_of` calls one, to the letter."""
        return re.fullmatch(rf"{re.escape(self.name)}-[0-9a-f]{{{DIGEST_CHARS}}}", deployed.display_name) is not None

    def is_wanted(self, deployed: Any) -> bool:
        """Whether it is this very one. The API names a project by its number, so only a model's last part is equal."""
        same_model = deployed.model.rpartition("/")[2].partition("@")[0] == self.deployed["model"].rpartition("/")[2]
        return same_model and deployed.display_name == self.deployed["displayName"]


def desired_state(config: VertexConfig, launch: Launch) -> DesiredState:
    """UsageError where the recipe leaves something out."""
    return DesiredState(build_requests(config, launch))


def apply(config: VertexConfig, launch: Launch, log: Log, retry_policy: RetryPolicy | None = None) -> Json:
    """Have it run; what `status` says then. EyasError."""
    plan = desired_state(config, launch)
    api = VertexClient(config, retry_policy or RetryPolicy())
    api.parse_request(
        "DeployModelRequest", plan.requests[DEPLOYMENT]
    )  # a wrong accelerator shows before anything is made
    endpoint = api.get_endpoint(plan.endpoint)
    _require_owned_endpoint(plan, endpoint)
    upload_artifacts(launch)
    log(f"model {plan.requests[MODEL]['modelId']}")
    api.create_model(plan.requests[MODEL])
    log(f"endpoint {plan.name}")
    api.create_endpoint(plan.requests[ENDPOINT])
    _deploy(api, plan, log)
    endpoint = api.get_endpoint(plan.endpoint)
    for one in [] if endpoint is None else endpoint.deployed_models:
        if plan.is_version(one) and not plan.is_wanted(one):
            log(f"{one.display_name} goes")
            api.undeploy(plan.endpoint, one.id)
    return status(config, launch, retry_policy)


def _require_owned_endpoint(plan: DesiredState, endpoint: Any | None) -> None:
    foreign = [] if endpoint is None else [one for one in endpoint.deployed_models if not plan.is_version(one)]
    if foreign:
        found = f"{foreign[0].display_name or foreign[0].id} on the endpoint {plan.name}, which eyas did not deploy"
        raise InputError(
            found, "an endpoint with eyas's own alone", "choose another deploy.name, or undeploy it yourself"
        )


def _deploy(api: VertexClient, plan: DesiredState, log: Log) -> None:
    """Deploy, unless it is deployed or being deployed; the number of replicas follows the recipe."""
    if api.wait_for_operations(plan.endpoint):
        log("what an earlier command began has ended")
    endpoint = api.get_endpoint(plan.endpoint)
    assert endpoint is not None, "it was made just now"
    running = next((one for one in endpoint.deployed_models if plan.is_wanted(one)), None)
    if running is None:
        log(f"deployment {plan.deployed['displayName']}: minutes, while machines start and the model loads")
        api.deploy(plan.requests[DEPLOYMENT])
        return
    wanted, now = plan.deployed["dedicatedResources"], running.dedicated_resources
    range_now = (now.min_replica_count, now.max_replica_count)
    target_now = [(one.metric_name, one.target) for one in now.autoscaling_metric_specs]
    targets = [(one["metricName"], one["target"]) for one in wanted["autoscalingMetricSpecs"]]
    if (range_now, target_now) != ((wanted["minReplicaCount"], wanted["maxReplicaCount"]), targets):
        log(f"replicas {wanted['minReplicaCount']} to {wanted['maxReplicaCount']}")
        api.scale(plan.endpoint, running.id, wanted)


def status(config: VertexConfig, launch: Launch, retry_policy: RetryPolicy | None = None) -> Json:
    """What is there now: state is absent, model, endpoint (nothing deployed on it), or serving."""
    plan, api = desired_state(config, launch), VertexClient(config, retry_policy or RetryPolicy())
    model = api.get_model(plan.deployed["model"])
    endpoint = api.get_endpoint(plan.endpoint)
    deployed = [] if endpoint is None else list(endpoint.deployed_models)
    state = "absent" if model is None else "model"
    state = state if endpoint is None else "endpoint"
    return {
        "state": "serving" if any(map(plan.is_wanted, deployed)) else state,
        "model": plan.deployed["model"] if model is not None else None,
        "endpoint": plan.endpoint if endpoint is not None else None,
        "dns": None if endpoint is None else endpoint.dedicated_endpoint_dns or None,
        "deployed": [
            {
                "id": one.id,
                "name": one.display_name,
                "is_wanted": plan.is_wanted(one),
                "traffic": endpoint.traffic_split.get(one.id, 0) if endpoint is not None else 0,
                "machine": one.dedicated_resources.machine_spec.machine_type,
                "replicas": [one.dedicated_resources.min_replica_count, one.dedicated_resources.max_replica_count],
            }
            for one in deployed
        ],
    }


def delete(config: VertexConfig, launch: Launch, log: Log, retry_policy: RetryPolicy | None = None) -> Json:
    """Remove deployments, endpoint and models of this name; what eyas did not make stays, and is told. EyasError.

    Artifacts stay in their bucket: a bucket has rules of its own for what is old.
    """
    plan, api = desired_state(config, launch), VertexClient(config, retry_policy or RetryPolicy())
    endpoint = api.get_endpoint(plan.endpoint)
    if endpoint is not None and api.wait_for_operations(plan.endpoint):
        endpoint = api.get_endpoint(plan.endpoint)
    _require_owned_endpoint(plan, endpoint)
    if endpoint is not None:
        for one in endpoint.deployed_models:
            log(f"{one.display_name} goes")
            api.undeploy(plan.endpoint, one.id)
        log(f"endpoint {plan.name} goes")
        api.delete_endpoint(plan.endpoint)
    for model in api.list_models(plan.parent, plan.name):
        log(f"model {model.name.rpartition('/')[2]} goes")
        api.delete_model(model.name)
    return status(config, launch, retry_policy)
