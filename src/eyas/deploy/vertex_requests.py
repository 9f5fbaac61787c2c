"""What Vertex AI is asked for, as the JSON of its REST API: written down first, sent as it stands.

    model.json        UploadModelRequest       image, routes, artifacts, probes
    endpoint.json     CreateEndpointRequest    a dedicated endpoint, with its longest answer
    deployment.json   DeployModelRequest       machine, accelerator, replicas, autoscaling

Models and endpoints have ids that we choose, so that asking twice makes one: the endpoint is called by the name, the
model by the name and a digest of all that it is.
"""

import time
from pathlib import Path
from typing import Any

from eyas.base.errors import UsageError
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
)
from eyas.base.storage import write_json_atomic
from eyas.deploy.config import VertexConfig
from eyas.deploy.launch import PORT, Launch

MODEL, ENDPOINT, DEPLOYMENT = "model.json", "endpoint.json", "deployment.json"
PROBE_PERIOD_S, PROBE_TIMEOUT_S = 10, 5
DIGEST_CHARS = 12  # of a digest, behind the name
METRIC_PREFIX = "aiplatform.googleapis.com/prediction/online/"

Json = dict[str, Any]


def build_requests(config: VertexConfig, launch: Launch) -> dict[str, Json]:
    """File name -> request. UsageError without a project, and for an engine on a machine that it cannot use."""
    if config.project is None:
        raise UsageError("no deploy.vertex.project", "the id of a Google Cloud project", "add it to the recipe")
    if launch.engine != "eyas" and config.accelerator_count == 0:
        found = f"deploy.vertex.accelerator_count = 0 for {launch.engine}"
        raise UsageError(found, "at least 1: it runs on GPUs", 'raise it, or take deploy.engine = "eyas"')
    parent = f"projects/{config.project}/locations/{config.location}"
    model = _model(config, launch)
    model_id = _versioned_name(launch, model)
    account = {} if config.service_account is None else {"serviceAccount": config.service_account}
    deployed = {
        "model": f"{parent}/models/{model_id}",
        "dedicatedResources": _resources(config),
        **account,
    }
    # What a running deployment is known by: one that differs in more than its replicas is another one.
    fixed = {**deployed, "dedicatedResources": _resources(config)["machineSpec"], "spot": config.spot}
    deployed["displayName"] = _versioned_name(launch, fixed)
    return {
        MODEL: {"parent": parent, "modelId": model_id, "model": model},
        ENDPOINT: {"parent": parent, "endpointId": launch.name, "endpoint": _endpoint(config, launch)},
        DEPLOYMENT: {
            "endpoint": f"{parent}/endpoints/{launch.name}",
            "deployedModel": deployed,
            "trafficSplit": {"0": 100},  # 0 stands for the model of this request
        },
    }


def _versioned_name(launch: Launch, what: Json) -> str:
    """The name and a digest."""
    return f"{launch.name}-{digest_json(what).removeprefix('sha256:')[:DIGEST_CHARS]}"


def _model(config: VertexConfig, launch: Launch) -> Json:
    probe = {
        "httpGet": {"path": launch.health_route, "port": PORT, "scheme": "HTTP"},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": PROBE_TIMEOUT_S,
    }
    environment = [{"name": name, "value": value} for name, value in sorted(launch.environment.items())]
    artifacts = {"artifactUri": launch.artifact_uri} if launch.artifacts else {}
    return {
        "displayName": launch.name,
        "labels": launch.labels,
        **artifacts,
        "containerSpec": {
            "imageUri": launch.image,
            "args": list(launch.arguments),
            "env": environment,
            "ports": [{"containerPort": PORT}],
            "healthRoute": launch.health_route,
            "predictRoute": launch.predict_route,
            "deploymentTimeout": f"{config.startup_s}s",
            "sharedMemorySizeMb": str(config.shared_memory_mb),
            "startupProbe": {**probe, "failureThreshold": -(-config.startup_s // PROBE_PERIOD_S)},
            "healthProbe": {**probe, "failureThreshold": 3},
        },
    }


def _endpoint(config: VertexConfig, launch: Launch) -> Json:
    return {
        "displayName": launch.name,
        "labels": {key: value for key, value in launch.labels.items() if key != "eyas_head"},
        "dedicatedEndpointEnabled": True,
        "clientConnectionConfig": {"inferenceTimeout": f"{config.inference_s}s"},
    }


def _resources(config: VertexConfig) -> Json:
    machine: Json = {"machineType": config.machine_type}
    metric = f"{METRIC_PREFIX}cpu/utilization"
    if config.accelerator_count > 0:
        machine |= {"acceleratorType": config.accelerator_type, "acceleratorCount": config.accelerator_count}
        metric = f"{METRIC_PREFIX}accelerator/duty_cycle"
    return {
        "machineSpec": machine,
        "minReplicaCount": config.replicas[0],
        "maxReplicaCount": config.replicas[1],
        "autoscalingMetricSpecs": [{"metricName": metric, "target": config.target_busy}],
        "spot": config.spot,
    }


def write_requests(config: VertexConfig, launch: Launch, directory: Path) -> Provenance:
    """Write the requests. Idempotent. UsageError."""
    started_s = time.time()
    requests = build_requests(config, launch)
    origin = StageInputs("deploy-vertex", digest_json(requests), {"head": launch.head_digest})
    if is_finished(directory, origin):
        return read_provenance(directory)
    mark_unfinished(directory)
    for name, request in requests.items():
        write_json_atomic(directory / name, request)
    return finish_stage(directory, origin, started_s)
