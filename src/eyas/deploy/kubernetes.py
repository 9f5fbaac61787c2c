"""Builds the Kubernetes manifests of a recipe. `eyas deploy` writes them, one file for each object.

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

from eyas.deploy.config import KubernetesConfig
from eyas.deploy.launch import PORT, Json, Launch, http_probe, startup_attempts
from eyas.deploy.manifests import app_labels, render_manifest

SERVING = "serving"


def build_serving(config: KubernetesConfig, launch: Launch) -> dict[str, Json]:
    """Returns file name -> object of serving/. Raises UsageError if the engine cannot run on the recipe's GPUs."""
    environment = {**launch.environment, "AIP_HTTP_PORT": str(PORT), "AIP_HEALTH_ROUTE": launch.health_route}
    if launch.engine != "eyas":  # deploy/gate.py reads it
        environment["EYAS_DRAIN_S"] = str(config.drain_s)
        if config.metrics_key is not None:
            environment["EYAS_METRICS_KEY_ENV"] = config.metrics_key
    if launch.artifacts:
        environment["AIP_STORAGE_URI"] = launch.artifact_uri
    values = {
        "arguments": _arguments(config, launch),
        "environment": sorted(environment.items()),
        "gpus": config.accelerator_count,
        "probe": http_probe({"path": launch.health_route, "port": "http"}),
        "startup_attempts": startup_attempts(config.startup_s),
        "launch": launch,
        "port": PORT,
    }
    labels = app_labels(launch.name, "serving")
    objects = render_manifest("serving", config, launch.name, labels, app=launch.name, **values)
    return {f"{SERVING}/{name}.yaml": value for name, value in objects.items()}


def _arguments(config: KubernetesConfig, launch: Launch) -> list[str]:
    """Returns the arguments of the container. The user's own come last and win."""
    arguments = launch.build_arguments("kubernetes", config.accelerator_count)
    if launch.engine != "eyas":
        return list(arguments)
    verb, *rest = arguments
    # Kubernetes replaces $(NAME) by the variable from the Secret.
    key = [] if config.metrics_key is None else [f"--metrics-key=$({config.metrics_key})"]
    return [verb, "--drain-s", str(config.drain_s), *key, *rest]
