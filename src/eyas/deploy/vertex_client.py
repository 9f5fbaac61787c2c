"""Vertex AI's API as `apply`, `status` and `delete` see it: google-cloud-aiplatform's own clients, over REST.

The clients that its Model and Endpoint classes wrap are called with the requests as they were written down, so that
what was read is what is sent. REST, because it passes proxies that gRPC does not, and a test can listen.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from eyas.base.errors import EyasError, InputError, StageError, UsageError
from eyas.deploy.config import VertexConfig
from eyas.deploy.launch import OWNER_LABELS
from eyas.deploy.vertex_requests import Json

Result = TypeVar("Result")

REQUEST_TIMEOUT_S = 60.0  # of one request
RERUN = "run the same command again: it continues with what is there"


@dataclass(frozen=True)
class RetryPolicy:
    """waits_s: before each further try of what was refused for the moment. poll_s, limit_s: of long operations."""

    backoff_s: tuple[float, ...] = (1.0, 4.0, 16.0)
    poll_interval_s: float = 10.0
    timeout_s: float = 9000.0


class VertexClient:
    """One location of one project. Every call looks first and acts then, so that it may be repeated."""

    def __init__(self, config: VertexConfig, retry_policy: RetryPolicy) -> None:
        try:
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import aiplatform_v1
            from google.cloud.aiplatform_v1 import types
        except ImportError:
            found = "no package google-cloud-aiplatform"
            raise UsageError(found, "the extra `vertex`", "pip install 'eyas[vertex]'") from None
        self.types = types
        self.retry_policy = retry_policy
        address = config.api_endpoint or f"{config.location}-aiplatform.googleapis.com"
        # No token is ever sent in clear: what is asked over plain HTTP is asked without one.
        credentials = AnonymousCredentials() if address.startswith("http://") else None
        options: Any = {"transport": "rest", "credentials": credentials, "client_options": {"api_endpoint": address}}
        with translate_errors():
            self.models = aiplatform_v1.ModelServiceClient(**options)
            self.endpoints = aiplatform_v1.EndpointServiceClient(**options)

    # --- looking -----------------------------------------------------------------------------------------------------

    def get_model(self, name: str) -> Any | None:
        """The model of this resource name; None where there is none. InputError for one that is not ours."""
        return self._get_owned(lambda: self.models.get_model(name=name, retry=None, timeout=REQUEST_TIMEOUT_S))

    def get_endpoint(self, name: str) -> Any | None:
        """Likewise an endpoint, with what is deployed on it."""
        return self._get_owned(lambda: self.endpoints.get_endpoint(name=name, retry=None, timeout=REQUEST_TIMEOUT_S))

    def list_models(self, parent: str, name: str) -> list[Any]:
        """All models of a name that are ours."""
        wanted = {**OWNER_LABELS, "eyas_name": name}
        query = " AND ".join(f'labels.{key}="{value}"' for key, value in wanted.items())

        def listed() -> list[Any]:
            request = {"parent": parent, "filter": query}
            return list(self.models.list_models(request=request, retry=None, timeout=REQUEST_TIMEOUT_S))

        return [one for one in self.retry(listed) if _has_labels(one.labels, wanted)]

    def _get_owned(self, get: Callable[[], Any]) -> Any | None:
        from google.api_core.exceptions import NotFound

        def found() -> Any | None:
            try:
                return get()
            except NotFound:
                return None

        resource = self.retry(found)
        if resource is not None and not _has_labels(resource.labels, OWNER_LABELS):
            raise InputError(
                f"{resource.name}, which eyas did not make",
                f"the label {next(iter(OWNER_LABELS))}={next(iter(OWNER_LABELS.values()))} on it",
                "choose another deploy.name, or remove it yourself",
            )
        return resource

    # --- acting ------------------------------------------------------------------------------------------------------

    def create_model(self, request: Json) -> None:
        """Upload a model that is not there. InputError, StageError."""
        name = f"{request['parent']}/models/{request['modelId']}"
        wanted = self.parse_request("UploadModelRequest", request)
        self._create(
            lambda: self.get_model(name), lambda: self.models.upload_model(request=wanted, timeout=REQUEST_TIMEOUT_S)
        )

    def create_endpoint(self, request: Json) -> None:
        """Create an endpoint that is not there. InputError, StageError."""
        name = f"{request['parent']}/endpoints/{request['endpointId']}"
        wanted = self.parse_request("CreateEndpointRequest", request)
        self._create(
            lambda: self.get_endpoint(name),
            lambda: self.endpoints.create_endpoint(request=wanted, timeout=REQUEST_TIMEOUT_S),
        )

    def _create(self, look: Callable[[], Any | None], make: Callable[[], Any]) -> None:
        """An answer that was lost on the way leaves something behind: so each try looks first."""

        def step() -> Any | None:
            return None if look() is not None else make()

        operation = self.retry(step)
        if operation is not None:
            self.wait_for_operation(operation.operation)

    def deploy(self, request: Json) -> None:
        """Deploy, or wait for the deployment that an answer lost on the way has left. InputError, StageError."""
        wanted = self.parse_request("DeployModelRequest", request)

        def step() -> Any:
            under_way = self._pending_operations(request["endpoint"])
            if under_way:
                return under_way[0]
            return self.endpoints.deploy_model(request=wanted, timeout=REQUEST_TIMEOUT_S).operation

        self.wait_for_operation(self.retry(step))

    def wait_for_operations(self, endpoint: str) -> int:
        """Wait for what an earlier command has begun on an endpoint; how much that was. StageError where it fails."""
        under_way = self.retry(lambda: self._pending_operations(endpoint))
        for operation in under_way:
            self.wait_for_operation(operation)
        return len(under_way)

    def _pending_operations(self, endpoint: str) -> list[Any]:
        client = self.endpoints.transport.operations_client  # type: ignore[attr-defined]  # REST's has it
        listed = client.list_operations(name=endpoint, filter_="", retry=None, timeout=REQUEST_TIMEOUT_S)
        return [operation for operation in listed if not operation.done]

    def scale(self, endpoint: str, deployed_id: str, resources: Json) -> None:
        """Other numbers of replicas, without another deployment."""
        keys = ("minReplicaCount", "maxReplicaCount", "autoscalingMetricSpecs")
        body = {
            "endpoint": endpoint,
            "deployedModel": {"id": deployed_id, "dedicatedResources": {key: resources[key] for key in keys}},
            "updateMask": ",".join(
                f"dedicatedResources.{key}" for key in ("minReplicaCount", "maxReplicaCount", "autoscalingMetricSpecs")
            ),
        }
        wanted = self.parse_request("MutateDeployedModelRequest", body)
        self._run_unless_missing(
            lambda: self.endpoints.mutate_deployed_model(request=wanted, timeout=REQUEST_TIMEOUT_S)
        )

    def undeploy(self, endpoint: str, deployed_id: str) -> None:
        """Take a model off an endpoint; its machines go."""
        request = {"endpoint": endpoint, "deployed_model_id": deployed_id}
        self._run_unless_missing(lambda: self.endpoints.undeploy_model(request=request, timeout=REQUEST_TIMEOUT_S))

    def delete_endpoint(self, name: str) -> None:
        """Remove an endpoint that has nothing deployed."""
        self._run_unless_missing(lambda: self.endpoints.delete_endpoint(name=name, timeout=REQUEST_TIMEOUT_S))

    def delete_model(self, name: str) -> None:
        """Remove a model that is deployed nowhere."""
        self._run_unless_missing(lambda: self.models.delete_model(name=name, timeout=REQUEST_TIMEOUT_S))

    def _run_unless_missing(self, ask: Callable[[], Any]) -> None:
        """What is gone already was removed by an earlier try, or by somebody else: either is as wanted."""
        from google.api_core.exceptions import NotFound

        def step() -> Any | None:
            try:
                return ask()
            except NotFound:
                return None

        operation = self.retry(step)
        if operation is not None:
            self.wait_for_operation(operation.operation)

    def wait_for_operation(self, operation: Any) -> None:
        """Wait for a long operation. StageError where it fails or lasts too long."""
        end_s = time.monotonic() + self.retry_policy.timeout_s
        client = self.endpoints.transport.operations_client  # type: ignore[attr-defined]
        name = operation.name
        while not operation.done:
            if time.monotonic() > end_s:
                raise StageError(f"{name} that lasts longer than {self.retry_policy.timeout_s:.0f} s", "its end", RERUN)
            time.sleep(self.retry_policy.poll_interval_s)
            operation = self.retry(lambda: client.get_operation(name, retry=None, timeout=REQUEST_TIMEOUT_S))
        if operation.HasField("error"):
            raise to_eyas_error(operation.error.code, operation.error.message)

    # --- how it is asked ---------------------------------------------------------------------------------------------

    def parse_request(self, kind: str, request: Json) -> Any:
        """A request as the client takes it. UsageError for what the API has no word for: a wrong accelerator."""
        try:
            return getattr(self.types, kind).from_json(json.dumps(request))
        except Exception as error:  # protobuf's own ParseError, which it does not promise
            raise UsageError(
                f"a request that is none: {error}", "what the API knows", "correct [deploy.vertex]"
            ) from None

    def retry(self, step: Callable[[], Result]) -> Result:
        """A step, again after a while where the service is busy or an answer was lost. EyasError."""
        from google.api_core import exceptions
        from requests.exceptions import RequestException

        later = (exceptions.TooManyRequests, exceptions.ServerError, exceptions.Conflict, RequestException)
        for wait_s in self.retry_policy.backoff_s:
            try:
                with translate_errors(passed_through=later):
                    return step()
            except later:
                time.sleep(wait_s)
        with translate_errors():
            return step()


def _has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())


@contextmanager
def translate_errors(passed_through: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """The errors of Google's packages in the words of ours; those of `but` pass."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except EyasError:
        raise
    except GoogleAuthError as error:
        raise _no_credentials(str(error)) from None
    except passed_through:
        raise
    except GoogleAPICallError as error:
        raise to_eyas_error(int(error.code or 500), error.message) from None
    except RequestException as error:
        raise StageError(f"no answer from Vertex AI ({type(error).__name__})", "a connection", RERUN) from None


def to_eyas_error(code: int, message: str) -> EyasError:
    """What the API says, by its HTTP status, or by the code of google.rpc in a long operation."""
    said = " ".join(message.split())[:300]
    if code in (401, 16):
        return _no_credentials(said)
    if code in (403, 7):
        do = "give the account roles/aiplatform.user, or choose another deploy.vertex.project"
        return InputError(f"a refusal of Vertex AI: {said}", "the right to deploy", do)
    if code in (429, 8):
        do = "ask for more at console.cloud.google.com/iam-admin/quotas, or change machine_type or location"
        return StageError(f"no quota: {said}", "quota for the machines", f"{do}; then {RERUN}")
    if code in (400, 404, 3, 5, 9):
        return InputError(f"a request that Vertex AI refuses: {said}", "one that it takes", "correct [deploy.vertex]")
    return StageError(f"a failure of Vertex AI ({code}): {said}", "an answer", RERUN)


def _no_credentials(said: str) -> InputError:
    do = "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
    return InputError(f"no Google credentials: {said[:200]}", "those of an account that may deploy", do)
