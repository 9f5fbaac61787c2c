"""Builds the parts that all Kubernetes objects of a recipe share: metadata, and the pod of an engine or a data stage.

Every pod fits the Pod Security Standard "restricted": it runs as a user without rights, and its image is read-only. It
writes only to the volumes of `volumes` and mounts no token of its account; Workload Identity needs none.
"""

from collections.abc import Mapping

from eyas.deploy.config import KubernetesConfig
from eyas.deploy.launch import Json

USER_ID = 10001  # in all images of deploy/
SCRATCH = "/scratch"
MOUNTS = {"shm": "/dev/shm", "scratch": SCRATCH, "tmp": "/tmp"}
SCRATCH_ENV = {"HF_HOME": f"{SCRATCH}/huggingface", "XDG_CACHE_HOME": SCRATCH, "HOME": SCRATCH}
"""Engines and their compilers write caches below these."""


def build_object(config: KubernetesConfig, version: str, kind: str, name: str, labels: Mapping[str, str]) -> Json:
    """Returns the head of an object: its kind, name, namespace and labels."""
    labels = {"app.kubernetes.io/managed-by": "eyas", **labels}
    metadata = {"name": name, "namespace": config.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def app_labels(app: str, component: str) -> dict[str, str]:
    """Returns the labels by which selectors find the pods of an application."""
    return {"app.kubernetes.io/name": app, "app.kubernetes.io/component": component}


def build_container(config: KubernetesConfig, app: str, has_gpu: bool, environment: Mapping[str, str]) -> Json:
    """Returns the fields of a container that the Deployment and the Jobs share. The caller adds its own mounts."""
    limits: Json = {"memory": f"{config.memory_gb}Gi"}
    if has_gpu:
        limits["nvidia.com/gpu"] = str(config.accelerator_count)
    variables = {**SCRATCH_ENV, **environment}
    rights = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    return {
        "env": [{"name": name, "value": value} for name, value in sorted(variables.items())],
        "envFrom": [{"secretRef": {"name": f"{app}-secrets", "optional": True}}],
        "resources": {"requests": {"cpu": str(config.cpu), **limits}, "limits": limits},
        "securityContext": rights,
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in MOUNTS.items()],
    }


def build_pod(config: KubernetesConfig, has_gpu: bool) -> Json:
    """Returns the account, the node selection and the volumes of a pod."""
    user = {"runAsNonRoot": True, "runAsUser": USER_ID, "runAsGroup": USER_ID, "fsGroup": USER_ID}
    pod: Json = {
        "serviceAccountName": config.service_account,
        "automountServiceAccountToken": False,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "scratch", "emptyDir": {"sizeLimit": f"{config.volume_gb}Gi"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if has_gpu:
        pod["nodeSelector"] = {"cloud.google.com/gke-accelerator": config.accelerator}
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return pod
