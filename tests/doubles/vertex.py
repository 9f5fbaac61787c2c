"""The part of Vertex AI's REST API that eyas needs, on loopback: it keeps models, endpoints, operations and jobs.

It writes down every request, and can be told to misbehave as `tests.doubles.gcs` can. Written after
https://docs.cloud.google.com/vertex-ai/docs/reference/rest/v1.
"""

import json
import re
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.doubles.gcs import Fault
from tests.doubles.loopback import Loopback, send_json

V1 = "google.cloud.aiplatform.v1."
RESPONSES = {"upload": f"{V1}UploadModelResponse", "create": f"{V1}Endpoint", "deploy": f"{V1}DeployModelResponse"}
RESPONSES |= {"undeploy": f"{V1}UndeployModelResponse", "mutate": f"{V1}MutateDeployedModelResponse"}
RESPONSES |= {"delete": "google.protobuf.Empty"}
PARENT = r"(projects/[^/]+/locations/[^/]+)"


@dataclass
class FakeVertex(Loopback):
    """polls: how often an operation or a job is asked for before it has ended. fails: what ends the next one of a kind.

    on_job: called with a job that ends well, to write what its stage would have written.
    hosts: the dedicated hosts of endpoints, by their ids.
    """

    polls: int = 1
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    operations: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_job: Any = None
    hosts: dict[str, str] = field(default_factory=dict)
    fails: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"store": self})

    def asked(self, *methods: str) -> list[str]:
        """METHOD and last part of the path of every request that changes something, or of these methods."""
        methods = methods or ("POST", "PATCH", "DELETE")
        return [f"{method} {path.rpartition('/')[2]}" for method, path, _ in self.requests if method in methods]

    def body(self, ending: str) -> Any:
        """The body of the one request whose path ends so."""
        (body,) = [body for _, path, body in self.requests if path.endswith(ending)]
        return body

    def begin(self, kind: str, of: str, act: Any) -> dict[str, Any]:
        """A long operation; `act` happens at its end, unless it fails."""
        name = f"{of}/operations/{len(self.operations) + 1}"
        self.operations[name] = {"left": self.polls, "act": act, "error": self.fails.pop(kind, None), "kind": kind}
        return self.look(name)

    def look(self, name: str) -> dict[str, Any]:
        one = self.operations[name]
        one["left"] -= 1
        if one["left"] >= 0:
            return {"name": name, "done": False}
        if one["error"] is not None:
            return {"name": name, "done": True, "error": one["error"]}
        if one["act"] is not None:
            one["act"]()
            one["act"] = None
        return {"name": name, "done": True, "response": {"@type": f"type.googleapis.com/{RESPONSES[one['kind']]}"}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: FakeVertex

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        path = re.sub(r"^/(v1|ui)/", "", url.path)
        body = json.loads(text) if text else None
        store = self.store
        with store.lock:
            store.requests.append((method, path, body))
            fault = next((f for f in store.faults if f.times and f.method == method and re.search(f.path, path)), None)
            if fault is not None:
                fault.times -= 1
                if isinstance(fault.what, int):
                    self._error(fault.what, "as the test asked for")
                    return
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            status, reply = self._do(method, path, body, query)
        if fault is not None and fault.what == "lost":
            self._error(503, "the answer was lost")
        elif status == 200:
            send_json(self, 200, reply)
        else:
            self._error(status, str(reply))

    def _do(self, method: str, path: str, body: Any, query: dict[str, str]) -> tuple[int, Any]:
        store = self.store
        if path.endswith("/operations"):
            of = path.removesuffix("/operations")
            ours = [name for name in store.operations if name.startswith(f"{of}/")]
            return 200, {"operations": [{"name": name, "done": store.operations[name]["left"] < 0} for name in ours]}
        if "/operations/" in path:
            return (200, store.look(path)) if path in store.operations else (404, "no such operation")
        if found := re.fullmatch(rf"{PARENT}/models:upload", path):
            spec = body["model"]["containerSpec"]
            if {"predictRoute", "invokeRoutePrefix"} <= set(spec) or spec.get("invokeRoutePrefix", "/*") != "/*":
                return 400, "only one of predict_route or invoke_route_prefix can be set"
            if float(spec.get("deploymentTimeout", "0s")[:-1]) > 7200:
                return 400, "the limit of deployment_timeout is 2 hours"
            return self._make(store.models, "upload", f"{found[1]}/models/{body['modelId']}", body["model"])
        if re.fullmatch(rf"{PARENT}/models", path):
            pairs = re.findall(r'labels\.([\w-]+)="([^"]*)"', query.get("filter", ""))
            models = store.models.values()
            return 200, {"models": [one for one in models if all(one["labels"].get(k) == v for k, v in pairs)]}
        if found := re.fullmatch(rf"{PARENT}/endpoints", path):
            host = store.hosts.get(query["endpointId"], "7.prediction.example")
            fresh = {**body, "deployedModels": [], "trafficSplit": {}, "dedicatedEndpointDns": host}
            return self._make(store.endpoints, "create", f"{path}/{query['endpointId']}", fresh)
        if "/customJobs" in path:
            return self._do_job(method, path, body, query)
        name, _, verb = path.partition(":")
        place = store.models if "/models/" in name else store.endpoints
        if name not in place:
            return 404, f"{name} is not found"
        if method == "GET":
            return 200, place[name]
        if method == "DELETE":
            return self._delete(place, name)
        return self._change(place[name], name, verb, body)

    def _do_job(self, method: str, path: str, body: Any, query: dict[str, str]) -> tuple[int, Any]:
        """CustomJobs: the first pool has one replica, the others have some. Several jobs may have one display name."""
        jobs, (name, _, verb) = self.store.jobs, path.partition(":")
        if method == "POST" and name.endswith("/customJobs"):
            pools = body["jobSpec"]["workerPoolSpecs"]
            if int(pools[0]["replicaCount"]) != 1 or any(int(pool["replicaCount"]) < 1 for pool in pools):
                return 400, "the first worker pool must have one replica, the others at least one"
            number = len(jobs) + 1
            job = {**body, "name": f"{name}/{number}", "createTime": f"2026-11-23T00:00:{number:02}Z"}
            jobs[job["name"]] = job | {"state": "JOB_STATE_PENDING", "left": self.store.polls}
            return 200, self._look_at_job(job["name"])
        if name.endswith("/customJobs"):
            (wanted,) = re.findall(r'display_name="([^"]*)"', query["filter"])
            return 200, {"customJobs": [self._look_at_job(key) for key in jobs if jobs[key]["displayName"] == wanted]}
        if name not in jobs:
            return 404, f"{name} is not found"
        if verb == "cancel" and jobs[name]["left"] >= 0:
            jobs[name] |= {"state": "JOB_STATE_CANCELLED", "left": -1}
        return 200, {} if verb == "cancel" else self._look_at_job(name, 1)

    def _look_at_job(self, name: str, polls: int = 0) -> dict[str, Any]:
        job, store = self.store.jobs[name], self.store
        if job["left"] >= 0:
            job["left"] -= polls
            job["state"] = "JOB_STATE_RUNNING" if job["left"] < store.polls else job["state"]
            if job["left"] < 0:
                job["error"] = store.fails.pop("job", None)
                job["state"] = "JOB_STATE_FAILED" if job["error"] else "JOB_STATE_SUCCEEDED"
                if store.on_job is not None and not job["error"]:
                    store.on_job(job)
        return {key: value for key, value in job.items() if key != "left" and value is not None}

    def _make(self, place: dict[str, Any], kind: str, name: str, resource: Any) -> tuple[int, Any]:
        if name in place:
            return 409, f"{name} is there already"
        return 200, self.store.begin(kind, name, lambda: place.update({name: {**resource, "name": name}}))

    def _delete(self, place: dict[str, Any], name: str) -> tuple[int, Any]:
        deployed = [one for endpoint in self.store.endpoints.values() for one in endpoint["deployedModels"]]
        if place.get(name, {}).get("deployedModels") or name in [one["model"] for one in deployed]:
            return 400, f"{name} is in use"
        return 200, self.store.begin("delete", name, lambda: place.pop(name))

    def _change(self, endpoint: dict[str, Any], name: str, verb: str, body: Any) -> tuple[int, Any]:
        deployed = endpoint["deployedModels"]
        if verb == "deployModel":
            fresh = {**body["deployedModel"], "id": str(uuid.uuid4().int)[:10]}
            if fresh["model"] not in self.store.models:
                return 404, "there is no such model"

            def act() -> None:
                deployed.append(fresh)
                endpoint["trafficSplit"] = {one["id"]: 100 * (one is fresh) for one in deployed}

            return 200, self.store.begin("deploy", name, act)
        wanted = body["deployedModelId"] if verb == "undeployModel" else body["deployedModel"]["id"]
        one = next((one for one in deployed if one["id"] == wanted), None)
        if one is None:
            return 404, "nothing of this id is deployed"
        if verb == "undeployModel":
            return 200, self.store.begin("undeploy", name, lambda: deployed.remove(one))
        assert verb == "mutateDeployedModel", verb
        told = body["deployedModel"]["dedicatedResources"]
        return 200, self.store.begin("mutate", name, lambda: one["dedicatedResources"].update(told))

    def _error(self, status: int, message: str) -> None:
        send_json(self, status, {"error": {"code": status, "message": message, "status": "FAILED"}})
