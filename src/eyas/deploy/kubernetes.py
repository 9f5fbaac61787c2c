"""Builds the Kubernetes manifests of a recipe and writes them, one file for each object. `eyas deploy` calls it.

    serving/    Deployment (engine, probes, scratch), Service, PodDisruptionBudget, NetworkPolicy; a scaler by waiting
                requests (HorizontalPodAutoscaler or KEDA's ScaledObject); what scrapes the metrics (PodMonitoring or
                ServiceMonitor); an InferencePool if `deploy.kubernetes.endpoint_picker` is set
    jobs/       the stages before the head, see `kubernetes_jobs`

`kubectl apply -f serving` applies all objects of serving/. A pod that ends keeps its answers:

    0 s                10 s                            10 s + drain_s        20 s + drain_s
    preStop: sleep     SIGTERM: running answers        engine ends           SIGKILL
    Service forgets    finish, new requests get 503
    the pod

The Deployment and the Jobs read the Secret NAME-secrets as environment variables, if it exists: HF_TOKEN for gated
models, the key that `respond.api_key_env` names, and EYAS_PRIVACY_KEY, which must be equal in all pods of `prompts`.
"""

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import yaml

from eyas.base.provenance import Provenance
from eyas.deploy.config import KubernetesConfig
from eyas.deploy.kubernetes_pod import app_labels, build_container, build_object, build_pod
from eyas.deploy.launch import PORT, PROBE_PERIOD_S, Json, Launch, http_probe, startup_attempts, write_objects

QUEUE_METRICS = dict.fromkeys(("eyas", "vllm"), "vllm:num_requests_waiting") | {"sglang": "sglang:num_queue_reqs"}
"""The gauge of waiting requests of each engine. eyas uses vLLM's name."""
MONITORS = {
    "gmp": ("monitoring.googleapis.com/v1", "PodMonitoring"),
    "operator": ("monitoring.coreos.com/v1", "ServiceMonitor"),
}
SCRAPE_PERIOD_S = 15
PRE_STOP_S, EXIT_S = 10, 10
SCALE_DOWN = {"scaleDown": {"stabilizationWindowSeconds": 600}}
"""A new replica loads the model for minutes, so replicas are removed late."""
PICKER_PORT = 9002  # of the endpoint pickers that llm-d and the Gateway API project publish
SERVING = "serving"
METADATA_SERVER = "169.254.169.0/24"  # of GKE, on the node: Workload Identity fetches its tokens there
DNS_PORTS = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]


def build_serving(config: KubernetesConfig, launch: Launch) -> dict[str, Json]:
    """Returns file name -> object of serving/. Raises UsageError if the engine cannot run on the recipe's GPUs."""

    def labels() -> dict[str, str]:  # a new one each time: YAML would write a repeated one as an alias
        return app_labels(launch.name, "serving")

    selector = {"matchLabels": labels()}
    port = {"name": "http", "port": 80, "targetPort": "http"}
    service = {"type": "ClusterIP", "selector": labels(), "ports": [port]}
    objects = {
        "deployment": ("apps/v1", "Deployment", _deployment_spec(config, launch)),
        "service": ("v1", "Service", service),
        "disruption": ("policy/v1", "PodDisruptionBudget", {"maxUnavailable": 1, "selector": selector}),
        "network": ("networking.k8s.io/v1", "NetworkPolicy", _network_spec(config, labels())),
    }
    if config.autoscaler == "hpa":
        objects["autoscaler"] = ("autoscaling/v2", "HorizontalPodAutoscaler", _autoscaler_spec(config, launch))
    else:
        objects["autoscaler"] = ("keda.sh/v1alpha1", "ScaledObject", _scaled_object_spec(config, launch))
    if config.monitoring != "none":
        spec = {"selector": {"matchLabels": labels()}, "endpoints": [_scrape_endpoint(config, launch)]}
        version, kind = MONITORS[config.monitoring]
        objects[kind.lower()] = (version, kind, spec)
    if config.endpoint_picker is not None:
        picker = {"name": config.endpoint_picker, "port": {"number": PICKER_PORT}}
        pool = {"selector": {"matchLabels": labels()}, "targetPorts": [{"number": PORT}], "endpointPickerRef": picker}
        objects["inferencepool"] = ("inference.networking.k8s.io/v1", "InferencePool", pool)
    return {
        f"{SERVING}/{name}.yaml": build_object(config, version, kind, launch.name, labels()) | {"spec": spec}
        for name, (version, kind, spec) in objects.items()
    }


def _deployment_spec(config: KubernetesConfig, launch: Launch) -> Json:
    has_gpu = config.accelerator_count > 0
    environment = {**launch.environment, "AIP_HTTP_PORT": str(PORT), "AIP_HEALTH_ROUTE": launch.health_route}
    if launch.engine != "eyas":  # deploy/gate.py reads it
        environment["EYAS_DRAIN_S"] = str(config.drain_s)
        if config.metrics_key is not None:
            environment["EYAS_METRICS_KEY_ENV"] = config.metrics_key
    if launch.artifacts:
        environment["AIP_STORAGE_URI"] = launch.artifact_uri
    probe = http_probe({"path": launch.health_route, "port": "http"})
    container = {
        "name": "engine",
        "image": launch.image,
        "args": _arguments(config, launch),
        **build_container(config, launch.name, has_gpu, environment),
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": {**probe, "failureThreshold": startup_attempts(config.startup_s)},
        "readinessProbe": {**probe, "failureThreshold": 1},
        # A busy engine answers late. It is restarted only when it accepts no connections any more.
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": PROBE_PERIOD_S, "failureThreshold": 4},
        # The Service still sends requests for a moment after the pod is told to end.
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
    }
    labels = app_labels(launch.name, "serving")
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod = {
        **build_pod(config, has_gpu),
        "terminationGracePeriodSeconds": PRE_STOP_S + config.drain_s + EXIT_S,
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": dict(labels)}}],
        "containers": [container],
    }
    # Without `replicas`: they belong to the autoscaler, also when the Deployment is applied again.
    template = {"metadata": {"labels": dict(labels)}, "spec": pod}
    return {"selector": {"matchLabels": labels}, "template": template}


def _arguments(config: KubernetesConfig, launch: Launch) -> list[str]:
    """Returns the arguments of the container. The user's own come last and win."""
    arguments = launch.build_arguments("kubernetes", config.accelerator_count)
    if launch.engine != "eyas":
        return list(arguments)
    verb, *rest = arguments
    # Kubernetes replaces $(NAME) by the variable from the Secret.
    key = [] if config.metrics_key is None else [f"--metrics-key=$({config.metrics_key})"]
    return [verb, "--drain-s", str(config.drain_s), *key, *rest]


def _network_spec(config: KubernetesConfig, labels: Json) -> Json:
    """Returns a policy: clients and scrapers reach the port; the engine reaches DNS, HTTPS and the metadata server."""
    names = ["gmp-system", "gke-gmp-system", "monitoring", *config.client_namespaces]
    by_name = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}
    clients: list[Json] = [{"podSelector": {}}, {"namespaceSelector": {"matchExpressions": [by_name]}}]
    return {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": clients, "ports": [{"protocol": "TCP", "port": "http"}]}],
        "egress": [
            {"ports": DNS_PORTS},
            {"ports": [{"protocol": "TCP", "port": 443}]},  # buckets and the hub
            {"to": [{"ipBlock": {"cidr": METADATA_SERVER}}]},
        ],
    }


def _scrape_endpoint(config: KubernetesConfig, launch: Launch) -> Json:
    endpoint: Json = {"port": "http", "path": "/metrics", "interval": f"{SCRAPE_PERIOD_S}s"}
    if config.metrics_key is not None:
        secret = {"name": f"{launch.name}-secrets", "key": config.metrics_key}
        credentials = {"secret": secret} if config.monitoring == "gmp" else secret
        endpoint["authorization"] = {"type": "Bearer", "credentials": credentials}
    return endpoint


def _autoscaler_spec(config: KubernetesConfig, launch: Launch) -> Json:
    # The name that GKE's adapter for Managed Prometheus gives a metric: prometheus.googleapis.com|NAME|gauge
    metric = {"name": f"prometheus.googleapis.com|{QUEUE_METRICS[launch.engine]}|gauge"}
    target = {"type": "AverageValue", "averageValue": str(config.target_waiting)}
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": launch.name},
        "minReplicas": config.replicas[0],
        "maxReplicas": config.replicas[1],
        "metrics": [{"type": "Pods", "pods": {"metric": metric, "target": target}}],
        "behavior": SCALE_DOWN,
    }


def _scaled_object_spec(config: KubernetesConfig, launch: Launch) -> Json:
    labels = f'namespace="{config.namespace}",pod=~"{launch.name}-[a-z0-9]+-[a-z0-9]+"'
    trigger = {
        "serverAddress": config.prometheus,
        "query": f"sum({QUEUE_METRICS[launch.engine]}{{{labels}}})",
        "threshold": str(config.target_waiting),
    }
    return {
        "scaleTargetRef": {"name": launch.name},
        "minReplicaCount": config.replicas[0],
        "maxReplicaCount": config.replicas[1],
        "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": trigger}],
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": SCALE_DOWN}},
    }


# --- files -----------------------------------------------------------------------------------------------------------


def apply_command(directory: Path) -> str:
    """Returns the command that applies the objects of `build_serving`."""
    return f"kubectl apply -f {shlex.quote(str(directory / SERVING))}"


def write_manifests(objects: Mapping[str, Json], parents: Mapping[str, str], directory: Path) -> Provenance:
    """Writes the objects as YAML. parents: {"head": digest} of the served head; {} for Jobs only."""
    dump = partial(yaml.safe_dump, sort_keys=False, width=120)
    return write_objects(directory, "kubernetes", objects, parents, dump)
