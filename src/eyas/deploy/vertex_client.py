"""Calls Vertex AI's REST API with retries, for `vertex_deployment` and `vertex_jobs`.

It uses the low-level clients of google-cloud-aiplatform. They accept requests as JSON, so the content of the written
files is sent unchanged. The transport is REST, because REST works behind proxies that block gRPC.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

from eyas.base.errors import EyasError, InputError, StageError, UsageError
from eyas.deploy.config import VertexConfig
from eyas.deploy.launch import OWNER_LABELS, Json

Result = TypeVar("Result")

TIMEOUT_S = 60.0  # of one request
MAX_QUOTED_CHARS = 120
RERUN = "Run the same command again: it continues where it stopped"
REPLICA_KEYS = ("minReplicaCount", "maxReplicaCount", "autoscalingMetricSpecs")


@dataclass(frozen=True)
class RetryPolicy:
    """The waits of a client in seconds.

    Attributes:
        backoff_s: The wait before each retry; its length is the number of retries.
        poll_interval_s: The wait between two polls of a long operation.
        timeout_s: The time limit of a long operation.
    """

    backoff_s: tuple[float, ...] = (1.0, 4.0, 16.0)
    poll_interval_s: float = 10.0
    timeout_s: float = 9000.0


class VertexClient:
    """A client of one location of one project. Every method can be called again after an error.

    All methods raise EyasError: InputError and UsageError for what the user can correct, StageError for a failure after
    which the user can run the same command again.
    """

    def __init__(self, config: VertexConfig, retry_policy: RetryPolicy) -> None:
        """Creates the clients. Raises UsageError without google-cloud-aiplatform, InputError without credentials."""
        try:
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import aiplatform_v1
            from google.cloud.aiplatform_v1 import types
        except ImportError:
            problem = "Calling Vertex AI needs the package google-cloud-aiplatform"
            raise UsageError(problem, "Run: pip install 'eyas[vertex]'") from None
        self.types = types
        self.retry_policy = retry_policy
        address = config.api_endpoint or f"{config.location}-aiplatform.googleapis.com"
        # No token is ever sent unencrypted: requests over plain HTTP carry no credentials.
        credentials = AnonymousCredentials() if address.startswith("http://") else None
        options: Any = {"transport": "rest", "credentials": credentials, "client_options": {"api_endpoint": address}}
        with translate_errors():
            self.models = aiplatform_v1.ModelServiceClient(**options)
            self.endpoints = aiplatform_v1.EndpointServiceClient(**options)
            self.jobs = aiplatform_v1.JobServiceClient(**options)

    # --- reading -----------------------------------------------------------------------------------------------------

    def get_model(self, name: str) -> Any | None:
        """Returns the model with this name; None if missing. Raises InputError if eyas did not create the model."""
        return self._get_owned(lambda: self.models.get_model(name=name, retry=None, timeout=TIMEOUT_S))

    def get_endpoint(self, name: str) -> Any | None:
        """Returns the endpoint with this resource name; None if missing. Raises InputError if it is not from eyas."""
        return self._get_owned(lambda: self.endpoints.get_endpoint(name=name, retry=None, timeout=TIMEOUT_S))

    def list_models(self, parent: str, name: str) -> list[Any]:
        """Returns all models that eyas created under a name."""
        wanted = {**OWNER_LABELS, "eyas_name": name}
        request = {"parent": parent, "filter": " AND ".join(f'labels.{key}="{value}"' for key, value in wanted.items())}
        listed = self.retry(lambda: list(self.models.list_models(request=request, retry=None, timeout=TIMEOUT_S)))
        return [model for model in listed if _has_labels(model.labels, wanted)]

    def _get_owned(self, get: Callable[[], Any]) -> Any | None:
        resource = self.retry(_none_if_missing(get))
        if resource is not None and not _has_labels(resource.labels, OWNER_LABELS):
            problem = f"{resource.name} exists and was not created by eyas (it has no label managed_by=eyas)"
            raise InputError(problem, "Choose another deploy.name, or delete that resource")
        return resource

    # --- changing ----------------------------------------------------------------------------------------------------

    def create_model(self, request: Json) -> None:
        """Uploads a model unless it exists."""
        name = f"{request['parent']}/models/{request['modelId']}"
        self._create("UploadModelRequest", request, lambda: self.get_model(name), self.models.upload_model)

    def create_endpoint(self, request: Json) -> None:
        """Creates an endpoint unless it exists."""
        name = f"{request['parent']}/endpoints/{request['endpointId']}"
        get, create = self.get_endpoint, self.endpoints.create_endpoint
        self._create("CreateEndpointRequest", request, lambda: get(name), create)

    def _create(self, kind: str, request: Json, get: Callable[[], Any | None], create: Callable[..., Any]) -> None:
        message = self.parse_request(kind, request)
        # A request whose answer was lost may have created the resource, so each attempt looks for it first.
        operation = self.retry(lambda: None if get() is not None else create(request=message, timeout=TIMEOUT_S))
        if operation is not None:
            self.wait_for_operation(operation.operation)

    def deploy(self, request: Json) -> None:
        """Deploys a model and waits until it is done. If the endpoint has a running deployment, only waits for it."""
        message = self.parse_request("DeployModelRequest", request)

        def attempt() -> Any:
            pending = self._pending_operations(request["endpoint"])
            return pending[0] if pending else self.endpoints.deploy_model(request=message, timeout=TIMEOUT_S).operation

        self.wait_for_operation(self.retry(attempt))

    def wait_for_operations(self, endpoint: str) -> int:
        """Waits for the operations that an earlier command started on an endpoint, and returns their number."""
        pending = self.retry(lambda: self._pending_operations(endpoint))
        for operation in pending:
            self.wait_for_operation(operation)
        return len(pending)

    def _pending_operations(self, endpoint: str) -> list[Any]:
        listed = self._operations.list_operations(name=endpoint, filter_="", retry=None, timeout=TIMEOUT_S)
        return [operation for operation in listed if not operation.done]

    def scale(self, endpoint: str, deployed_id: str, resources: Json) -> None:
        """Changes the range of replicas of a deployed model in place."""
        body = {
            "endpoint": endpoint,
            "deployedModel": {"id": deployed_id, "dedicatedResources": {key: resources[key] for key in REPLICA_KEYS}},
            "updateMask": ",".join(f"dedicatedResources.{key}" for key in REPLICA_KEYS),
        }
        message = self.parse_request("MutateDeployedModelRequest", body)
        self._run(lambda: self.endpoints.mutate_deployed_model(request=message, timeout=TIMEOUT_S))

    def undeploy(self, endpoint: str, deployed_id: str) -> None:
        """Removes a deployed model from an endpoint; its machines are released."""
        request = {"endpoint": endpoint, "deployed_model_id": deployed_id}
        self._run(lambda: self.endpoints.undeploy_model(request=request, timeout=TIMEOUT_S))

    def delete_endpoint(self, name: str) -> None:
        """Deletes an endpoint that has no deployed model."""
        self._run(lambda: self.endpoints.delete_endpoint(name=name, timeout=TIMEOUT_S))

    def delete_model(self, name: str) -> None:
        """Deletes a model that is not deployed on any endpoint."""
        self._run(lambda: self.models.delete_model(name=name, timeout=TIMEOUT_S))

    def _run(self, call: Callable[[], Any]) -> None:
        # A missing resource was already removed, so there is nothing to do.
        operation = self.retry(_none_if_missing(call))
        if operation is not None:
            self.wait_for_operation(operation.operation)

    @property
    def _operations(self) -> Any:
        return self.endpoints.transport.operations_client  # type: ignore[attr-defined]  # the REST transport has it

    def wait_for_operation(self, operation: Any) -> None:
        """Waits for a long operation. Raises StageError if it fails or takes longer than `timeout_s`."""
        deadline_s = time.monotonic() + self.retry_policy.timeout_s
        name = operation.name
        while not operation.done:
            if time.monotonic() > deadline_s:
                raise StageError(f"{name} has not finished within {self.retry_policy.timeout_s:.0f} s", RERUN)
            time.sleep(self.retry_policy.poll_interval_s)
            operation = self.retry(lambda: self._operations.get_operation(name, retry=None, timeout=TIMEOUT_S))
        if operation.HasField("error"):
            raise to_eyas_error(operation.error.code, operation.error.message)

    # --- jobs --------------------------------------------------------------------------------------------------------

    def find_job(self, request: Json) -> Any | None:
        """Returns the newest CustomJob with the display name of a CreateCustomJobRequest that eyas created, or None."""
        return self.retry(lambda: self._newest_job(request))

    def _newest_job(self, request: Json) -> Any | None:
        query = {"parent": request["parent"], "filter": f'display_name="{request["customJob"]["displayName"]}"'}
        listed = self.jobs.list_custom_jobs(request=query, retry=None, timeout=TIMEOUT_S)
        owned = [job for job in listed if _has_labels(job.labels, OWNER_LABELS)]
        return max(owned, key=lambda job: cast(datetime, job.create_time), default=None)

    def create_job(self, request: Json, running: Sequence[str]) -> Any:
        """Starts a CustomJob and returns it. running: the states of a job that is returned instead of a second one."""
        message = self.parse_request("CreateCustomJobRequest", request)

        def attempt() -> Any:  # a request whose answer was lost may have started it
            job = self._newest_job(request)
            if job is not None and job.state.name in running:
                return job
            return self.jobs.create_custom_job(request=message, retry=None, timeout=TIMEOUT_S)

        return self.retry(attempt)

    def get_job(self, name: str) -> Any:
        """Returns a CustomJob."""
        return self.retry(lambda: self.jobs.get_custom_job(name=name, retry=None, timeout=TIMEOUT_S))

    def cancel_job(self, name: str) -> None:
        """Asks Vertex AI to stop a CustomJob."""
        self.retry(lambda: self.jobs.cancel_custom_job(name=name, retry=None, timeout=TIMEOUT_S))

    # --- requests ----------------------------------------------------------------------------------------------------

    def parse_request(self, kind: str, request: Json) -> Any:
        """Returns a request as an object of the client. Raises UsageError for a value that the API does not define.

        Args:
            kind: The type of the request, such as "DeployModelRequest".
            request: The JSON of the request.
        """
        try:
            return getattr(self.types, kind).from_json(json.dumps(request))
        except Exception as error:  # protobuf's own ParseError, which its interface does not promise
            problem = f"Vertex AI does not define a value of this request: {_quote(str(error))}"
            raise UsageError(problem, "Correct [deploy.vertex], for example accelerator_type") from None

    def retry(self, attempt: Callable[[], Result]) -> Result:
        """Returns the result of `attempt`. Repeats it if the service is busy or its answer was lost."""
        from google.api_core import exceptions
        from requests.exceptions import RequestException

        temporary = (exceptions.TooManyRequests, exceptions.ServerError, exceptions.Conflict, RequestException)
        for wait_s in self.retry_policy.backoff_s:
            try:
                with translate_errors(passed_through=temporary):
                    return attempt()
            except temporary:
                time.sleep(wait_s)
        with translate_errors():
            return attempt()


def _none_if_missing(call: Callable[[], Any]) -> Callable[[], Any | None]:
    from google.api_core.exceptions import NotFound

    def attempt() -> Any | None:
        with suppress(NotFound):
            return call()
        return None

    return attempt


def _has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())


@contextmanager
def translate_errors(passed_through: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raises the errors of Google's packages as EyasError; those of `passed_through` stay as they are."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except GoogleAuthError as error:
        raise to_eyas_error(401, str(error)) from None
    except passed_through:
        raise
    except GoogleAPICallError as error:
        raise to_eyas_error(int(error.code or 500), error.message) from None
    except RequestException as error:
        raise StageError(f"Vertex AI does not answer ({type(error).__name__})", RERUN) from None


def to_eyas_error(code: int, message: str) -> EyasError:
    """Returns the error for a code of the API: an HTTP status, or a google.rpc code of a long operation."""
    quoted = _quote(message)
    if code in (401, 16):
        fix = "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
        return InputError(f"Google Cloud rejects the credentials: {quoted}", fix)
    if code in (403, 7):
        fix = "Give the account roles/aiplatform.user, or set another deploy.vertex.project"
        return InputError(f"Vertex AI denies permission: {quoted}", fix)
    if code in (429, 8):
        fix = "Raise the quota at console.cloud.google.com/iam-admin/quotas, or set another machine_type or location"
        return StageError(f"The quota of Google Cloud is used up: {quoted}", fix)
    if code in (400, 404, 3, 5, 9):
        return InputError(f"Vertex AI rejects the request: {quoted}", "Correct [deploy.vertex]")
    return StageError(f"Vertex AI failed with {code}: {quoted}", RERUN)


def _quote(text: str) -> str:
    """Returns a message of the API on one line, shortened, without its final full stop."""
    return " ".join(text.split())[:MAX_QUOTED_CHARS].rstrip(".")
