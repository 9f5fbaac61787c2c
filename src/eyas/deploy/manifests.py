"""Renders the YAML templates in `templates/`: Kubernetes objects, and requests to Vertex AI."""

import json
from functools import cache, partial
from typing import Any

import jinja2
import yaml

from eyas.base.templates import template_environment
from eyas.deploy.config import KubernetesConfig
from eyas.deploy.launch import Json


def app_labels(app: str, component: str) -> dict[str, str]:
    """Returns the labels by which selectors find the pods of an application."""
    return {"app.kubernetes.io/name": app, "app.kubernetes.io/component": component}


def render_manifest(template: str, config: KubernetesConfig, name: str, labels: dict[str, str], **values: Any) -> Json:
    """Renders a template of one or more Kubernetes objects.

    Args:
        template: The name of its file, without `.yaml.jinja`.
        config: The recipe's table [deploy.kubernetes].
        name: The name of the objects in the cluster.
        labels: The labels of the objects and their pods, from `app_labels`.
        values: The other variables of the template.
    """
    all_labels = {"app.kubernetes.io/managed-by": "eyas", **labels}
    metadata = {"name": name, "namespace": config.namespace, "labels": all_labels}
    return render_template(template, config=config, labels=labels, metadata=metadata, **values)


def render_template(name: str, **values: Any) -> Json:
    """Renders a template of `templates/` and reads it as YAML."""
    return yaml.safe_load(_environment().get_template(f"{name}.yaml.jinja").render(values))


@cache
def _environment() -> jinja2.Environment:
    to_yaml = partial(json.dumps, ensure_ascii=False)  # JSON is YAML: no value needs quotes there
    environment = template_environment("eyas.deploy", keep_trailing_newline=True, finalize=to_yaml)
    environment.filters["combine"] = lambda table, **more: {**table, **more}
    return environment
