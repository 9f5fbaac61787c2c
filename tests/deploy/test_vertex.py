"""`eyas deploy vertex`: Google's own client against a loopback server of the REST API, which counts the requests."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from tests.doubles.gcs import Fault

from eyas.base.config import build
from eyas.base.errors import EyasError, InputError, StageError, UsageError
from eyas.cli import main
from eyas.deploy.config import DeployConfig, VertexConfig
from eyas.deploy.launch import Launch, ServedModel, build_launch, write_objects
from eyas.deploy.vertex_client import RetryPolicy, VertexClient
from eyas.deploy.vertex_deployment import DEPLOYMENT, ENDPOINT, MODEL, VertexDeployment, build_requests

PARENT = "projects/my-project/locations/europe-west4"
FAST = RetryPolicy(backoff_s=(0.01, 0.01, 0.01), poll_interval_s=0.01, timeout_s=20.0)


def silent(_: str) -> None:
    pass


@pytest.fixture
def head(tmp_path) -> Path:
    directory = tmp_path / "head"
    directory.mkdir()
    (directory / "config.json").write_bytes(b"{}")
    (directory / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    return directory


@pytest.fixture
def config(api) -> VertexConfig:
    return VertexConfig(project="my-project", location="europe-west4", replicas=(1, 3), api_endpoint=api.url)


def launch(head: Path, digest: str = "a", **more: object) -> Launch:
    told = {"image": "europe-docker.pkg.dev/my-project/eyas/sglang:1", "storage": "gs://bucket/eyas", **more}
    return build_launch(DeployConfig(**told), ServedModel("scout", "org/model", head, f"sha256:{digest * 64}"))  # type: ignore[arg-type]


def apply(config: VertexConfig, what: Launch) -> dict:
    return VertexDeployment(config, what, silent, FAST).apply()


def delete(config: VertexConfig, what: Launch) -> dict:
    return VertexDeployment(config, what, silent, FAST).delete()


# --- requests ---------------------------------------------------------------------------------------------------------


def test_requests_hold_every_setting_of_the_recipe(head):
    config = VertexConfig(
        project="my-project", location="europe-west4", service_account="s@x", machine_type="a3-highgpu-8g",
        accelerator_type="NVIDIA_H100_80GB", accelerator_count=8, replicas=(2, 5), target_busy=70, startup_s=3605,
        inference_s=1800, shared_memory_mb=65536, spot=True,
    )  # fmt: skip
    requests = build_requests(config, launch(head, speculation="6,4,16", arguments=("--tp=8",)))
    model, endpoint, deployment = (requests[name] for name in (MODEL, ENDPOINT, DEPLOYMENT))
    container = model["model"]["containerSpec"]
    assert container["imageUri"] == "europe-docker.pkg.dev/my-project/eyas/sglang:1"
    assert container["args"] == ["--tp=8"]
    assert {one["name"]: one["value"] for one in container["env"]} == {
        "EYAS_SERVED_NAME": "scout", "EYAS_TARGET": "org/model", "EYAS_SPECULATION": "6,4,16",
    }  # fmt: skip
    assert (container["healthRoute"], container["predictRoute"]) == ("/health", "/v1/chat/completions")
    assert container["deploymentTimeout"] == "3605s"
    assert container["sharedMemorySizeMb"] == "65536"
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3605
    assert model["model"]["artifactUri"].startswith("gs://bucket/eyas/scout/")
    assert model["model"]["labels"]["managed_by"] == "eyas"
    assert endpoint["endpointId"] == "scout"
    assert endpoint["endpoint"]["dedicatedEndpointEnabled"] is True
    assert endpoint["endpoint"]["clientConnectionConfig"] == {"inferenceTimeout": "1800s"}
    deployed = deployment["deployedModel"]
    assert deployed["model"] == f"{PARENT}/models/{model['modelId']}"
    assert deployed["serviceAccount"] == "s@x"
    resources = deployed["dedicatedResources"]
    assert resources["machineSpec"] == {
        "machineType": "a3-highgpu-8g", "acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": 8,
    }  # fmt: skip
    assert (resources["minReplicaCount"], resources["maxReplicaCount"], resources["spot"]) == (2, 5, True)
    assert resources["autoscalingMetricSpecs"][0]["target"] == 70
    assert "accelerator/duty_cycle" in resources["autoscalingMetricSpecs"][0]["metricName"]


def test_ids_change_with_the_content_and_not_with_replicas(head):
    config = VertexConfig(project="my-project")

    def ids(config: VertexConfig, what: Launch) -> tuple[str, str, str]:
        requests = build_requests(config, what)
        deployed = requests[DEPLOYMENT]["deployedModel"]["displayName"]
        return requests[ENDPOINT]["endpointId"], requests[MODEL]["modelId"], deployed

    first = ids(config, launch(head))
    assert first == ids(config, launch(head))
    assert first == ids(dataclasses.replace(config, replicas=(2, 9)), launch(head)), "replicas change in place"
    other_machine = ids(dataclasses.replace(config, machine_type="g2-standard-48"), launch(head))
    assert [a == b for a, b in zip(first, other_machine, strict=True)] == [True, True, False]
    for changed in (launch(head, "b"), launch(head, image="r/x:2"), launch(head, speculation="3,1,4")):
        assert [a == b for a, b in zip(first, ids(config, changed), strict=True)] == [True, False, False]


def test_googles_client_parses_the_written_requests(head, config, tmp_path):
    out = tmp_path / "vertex"
    requests = build_requests(config, launch(head))
    first = write_objects(out, "vertex", requests, {"head": "sha256:a"})
    assert write_objects(out, "vertex", requests, {"head": "sha256:a"}) == first, "the files are written once"
    api = VertexClient(config, FAST)
    for kind, name in (
        ("UploadModelRequest", MODEL),
        ("CreateEndpointRequest", ENDPOINT),
        ("DeployModelRequest", DEPLOYMENT),
    ):
        raw = json.loads((out / name).read_bytes())
        message = api.parse_request(kind, raw)
        kinds = type(message)
        again = json.loads(
            kinds.to_json(message, use_integers_for_enums=False, always_print_fields_with_no_presence=False)
        )
        assert _without_defaults(raw) == again, "nothing is lost between file and API"


def _without_defaults(value):
    if isinstance(value, dict):
        told = {key: _without_defaults(item) for key, item in value.items()}
        return {key: item for key, item in told.items() if item not in (False, [], {}, "")}
    return [_without_defaults(item) for item in value] if isinstance(value, list) else value


WRONG = [
    ({"project": None}, {}, "no deploy.vertex.project"),
    ({"accelerator_count": 0}, {}, "accelerator_count is 0, but sglang needs a GPU"),
    ({}, {"image": None}, "no deploy.image"),
    ({}, {"storage": None}, "no deploy.storage"),
]


@pytest.mark.parametrize(("vertex", "deploy", "said"), WRONG)
def test_a_missing_setting_is_an_error(head, config, vertex, deploy, said):
    with pytest.raises(UsageError, match=said):
        build_requests(dataclasses.replace(config, **vertex), launch(head, **deploy))


@pytest.mark.parametrize(
    "wrong",
    [{"project": "My Project"}, {"location": "moon"}, {"replicas": (3, 1)}, {"replicas": (0, 1)}, {"inference_s": 3601},
     {"target_busy": 0}, {"startup_s": 0}, {"startup_s": 7201}],
)  # fmt: skip
def test_wrong_vertex_settings_are_rejected(wrong):
    with pytest.raises(UsageError, match=r"deploy\.vertex\."):
        build(VertexConfig, wrong, "deploy.vertex")


@pytest.mark.parametrize(
    "wrong",
    [{"name": "Scout"}, {"name": "a" * 41}, {"storage": "bucket"}, {"speculation": "3"},
     {"engine": "vllm", "speculation": "6,4,16"}, {"engine": "eyas", "speculation": "6,4,16"}],
)  # fmt: skip
def test_wrong_deploy_settings_are_rejected(wrong):
    with pytest.raises(UsageError, match=r"deploy\."):
        build(DeployConfig, wrong, "deploy")


@pytest.mark.parametrize("engine", ["eyas", "vllm", "sglang"])
def test_replicas_follow_waiting_requests_where_the_engine_counts_them(head, engine):
    config = VertexConfig(project="my-project", target_waiting=3, target_busy=70)
    deployed = build_requests(config, launch(head, engine=engine))[DEPLOYMENT]["deployedModel"]
    (spec,) = deployed["dedicatedResources"]["autoscalingMetricSpecs"]
    waiting = {"metricName": "prometheus.googleapis.com/vertex_vllm_num_requests_waiting", "target": 3}
    busy = {"metricName": "aiplatform.googleapis.com/prediction/online/accelerator/duty_cycle", "target": 70}
    assert spec == (busy if engine == "sglang" else waiting)


def test_the_status_names_the_addresses_of_the_dedicated_host(head, config, api, bucket):
    told = apply(config, launch(head))
    root = f"https://7.prediction.example/v1/{PARENT}/endpoints/scout"
    assert (told["predict"], told["stream"]) == (f"{root}:rawPredict", f"{root}:streamRawPredict")
    other = dataclasses.replace(config, invoke_routes=True)
    told = apply(other, launch(head))
    assert told["base_url"] == f"{root}/invoke/v1"
    assert "predict" not in told
    sent = [body for _, path, body in api.requests if path.endswith("models:upload")]
    assert [sorted(body["model"]["containerSpec"].keys() & {"predictRoute", "invokeRoutePrefix"}) for body in sent] == [
        ["predictRoute"], ["invokeRoutePrefix"],
    ]  # fmt: skip
    assert len(api.models) == 2, "the container changed"


# --- apply, status, delete------------------------------------------------------------------------------------------


def test_apply_deploys_and_a_second_apply_changes_nothing(head, config, api, bucket):
    what = launch(head, arguments=("--tp=1",))
    told = apply(config, what)
    assert api.asked() == ["POST models:upload", "POST endpoints", "POST scout:deployModel"]
    written = build_requests(config, what)
    assert api.body("models:upload")["model"]["containerSpec"]["args"] == ["--tp=1"]
    assert api.body("models:upload")["modelId"] == written[MODEL]["modelId"]
    assert api.body(":deployModel")["trafficSplit"] == {"0": 100}
    assert told["state"] == "serving"
    assert told["dns"] == "7.prediction.example"
    (deployed,) = told["deployed"]
    assert (deployed["traffic"], deployed["replicas"], deployed["machine"]) == (100, [1, 3], "g2-standard-12")
    uri = written[MODEL]["model"]["artifactUri"].removeprefix("gs://")
    assert {name: bucket.objects[name] for name in bucket.objects} == {
        f"{uri}/head/{path.name}": path.read_bytes() for path in head.iterdir()
    }
    asked = len(api.asked())
    bucket.requests.clear()
    assert apply(config, what) == told
    assert len(api.asked()) == asked, "no request is sent twice"
    assert not [path for method, path in bucket.requests if method == "POST"], "nothing is uploaded twice"


def test_another_number_of_replicas_is_changed_in_place(head, config, api, bucket):
    apply(config, launch(head))
    api.requests.clear()
    told = apply(dataclasses.replace(config, replicas=(2, 8)), launch(head))
    assert api.asked() == ["POST scout:mutateDeployedModel"]
    assert told["deployed"][0]["replicas"] == [2, 8]


def test_a_new_head_gets_the_traffic_and_the_old_version_is_removed(head, config, api, bucket):
    apply(config, launch(head))
    api.requests.clear()
    told = apply(config, launch(head, "b"))
    assert api.asked() == ["POST models:upload", "POST scout:deployModel", "POST scout:undeployModel"]
    assert [(one["is_wanted"], one["traffic"]) for one in told["deployed"]] == [(True, 100)]


def test_a_local_target_is_uploaded_with_the_head(head, config, api, bucket, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_bytes(b'{"a": 1}')
    told = DeployConfig(engine="eyas", image="r/x:1", storage="gs://bucket")
    what = build_launch(told, ServedModel("scout", target, head, "sha256:" + "a" * 64))
    config = dataclasses.replace(config, accelerator_count=0, machine_type="n2-standard-8")
    apply(config, what)
    names = {name.split("/", 3)[3] for name in bucket.objects}
    assert names == {"head/config.json", "head/model.safetensors", "target/config.json"}
    spec = api.body("models:upload")["model"]["containerSpec"]
    assert spec["args"] == ["serve", "--no-compile", "--served-name", "scout"]
    assert spec["predictRoute"] == "/predict"
    resources = api.body(":deployModel")["deployedModel"]["dedicatedResources"]
    assert resources["machineSpec"] == {"machineType": "n2-standard-8"}
    metric = {"metricName": "prometheus.googleapis.com/vertex_vllm_num_requests_waiting", "target": 8}
    assert resources["autoscalingMetricSpecs"] == [metric]


def test_eyas_serves_on_one_gpu(head, config, api, bucket):
    eyas = launch(head, engine="eyas", image="r/eyas-gpu:1")
    apply(config, eyas)
    spec = api.body("models:upload")["model"]["containerSpec"]
    assert spec["args"] == [
        "serve", "--device", "cuda", "--no-compile", "--served-name", "scout", "--target", "org/model",
    ]  # fmt: skip
    assert (spec["healthRoute"], spec["predictRoute"]) == ("/health", "/predict")
    resources = build_requests(config, eyas)[DEPLOYMENT]["deployedModel"]["dedicatedResources"]
    gpu = {"machineType": "g2-standard-12", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
    assert resources["machineSpec"] == gpu
    assert resources["autoscalingMetricSpecs"][0]["metricName"].endswith("vertex_vllm_num_requests_waiting")
    with pytest.raises(UsageError, match=r"deploy\.vertex\.accelerator_count is 2, but eyas serves on one GPU"):
        build_requests(dataclasses.replace(config, accelerator_count=2), eyas)


def test_status_at_each_stage_and_deletion(head, config, api, bucket):
    what = launch(head)

    def state() -> str:
        return VertexDeployment(config, what, silent, FAST).status()["state"]

    assert state() == "absent"
    api.fails["deploy"] = {"code": 8, "message": "The following quota metrics exceed quota limits: nvidia_l4_gpus"}
    with pytest.raises(StageError, match="quota of Google Cloud is used up: The following quota metrics"):
        apply(config, what)
    assert state() == "endpoint", "half created"
    apply(config, what)
    assert api.asked().count("POST endpoints") == 1, "the existing endpoint is used"
    assert state() == "serving"
    apply(config, launch(head, "b"))
    api.requests.clear()
    assert delete(config, what)["state"] == "absent"
    assert (api.models, api.endpoints) == ({}, {}), "older models are deleted as well"
    assert sorted(one.split(" ")[0] for one in api.asked()) == ["DELETE", "DELETE", "DELETE", "POST"]
    api.requests.clear()
    assert delete(config, what)["state"] == "absent"
    assert api.asked() == []


def test_a_running_deployment_is_waited_for(head, config, api, bucket):
    """The first command stops while machines start; a second one, on another machine, waits for the same deployment."""
    api.polls = 10_000
    impatient = RetryPolicy(poll_interval_s=0.01, timeout_s=0.2)
    endpoint = build_requests(config, launch(head))
    api.polls = 0
    vertex = VertexClient(config, FAST)
    vertex.create_model(endpoint[MODEL])
    vertex.create_endpoint(endpoint[ENDPOINT])
    api.polls = 10_000
    with pytest.raises(StageError, match="has not finished within"):
        VertexDeployment(config, launch(head), silent, impatient).apply()
    (running,) = [one for one in api.operations.values() if one["left"] > 0]
    running["left"] = 3
    assert apply(config, launch(head))["state"] == "serving"
    assert api.asked().count("POST scout:deployModel") == 1


# --- faults -----------------------------------------------------------------------------------------------------------

RETRIED = [
    ("POST", "models:upload", 503), ("POST", "models:upload", "lost"), ("POST", "endpoints$", 500),
    ("POST", "endpoints$", "lost"), ("POST", ":deployModel", 429), ("POST", ":deployModel", "lost"),
    ("GET", "endpoints/scout$", 502), ("GET", "/operations", 504),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "what"), RETRIED)
def test_busy_services_and_lost_answers_are_retried_without_duplicates(head, config, api, bucket, method, path, what):
    api.faults.append(Fault(method, path, what, times=2 if isinstance(what, int) else 1))
    assert apply(config, launch(head))["state"] == "serving"
    assert (len(api.models), len(api.endpoints)) == (1, 1)
    (endpoint,) = api.endpoints.values()
    assert len(endpoint["deployedModels"]) == 1


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [(401, InputError, "gcloud auth application-default login"), (403, InputError, "roles/aiplatform.user"),
     (429, StageError, "quota of Google Cloud is used up"), (500, StageError, "Run the same command again"),
     (400, InputError, r"Correct \[deploy.vertex\]")],
)  # fmt: skip
def test_a_lasting_error_names_the_fix(head, config, api, bucket, status, kind, said):
    api.faults.append(Fault("POST", ":deployModel", status, times=99))
    with pytest.raises(kind, match=said) as raised:
        apply(config, launch(head))
    assert isinstance(raised.value, EyasError)
    assert len([one for one in api.asked() if "deployModel" in one]) == (4 if status in (429, 500) else 1)


def test_an_address_without_a_server(head, config):
    elsewhere = dataclasses.replace(config, api_endpoint="http://127.0.0.1:9")
    with pytest.raises(StageError, match="Vertex AI does not answer"):
        VertexDeployment(elsewhere, launch(head), silent, FAST).status()


def test_without_credentials_no_request_is_sent(head, config, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="rejects the credentials"):
        VertexDeployment(dataclasses.replace(config, api_endpoint=None), launch(head), silent, FAST).status()


def test_an_unknown_accelerator_is_found_before_any_request(head, config, api):
    with pytest.raises(UsageError, match=r"Correct \[deploy.vertex\], for example accelerator_type"):
        apply(dataclasses.replace(config, accelerator_type="NVIDIA_L5"), launch(head))
    assert api.asked() == []


def test_resources_of_others_are_not_touched(head, config, api, bucket):
    name = f"{PARENT}/endpoints/scout"
    foreign = {"name": name, "displayName": "x", "labels": {}, "deployedModels": [], "trafficSplit": {}}
    api.endpoints[name] = foreign
    for verb in (apply, delete):
        with pytest.raises(InputError, match="endpoints/scout exists and was not created by eyas"):
            verb(config, launch(head))
    assert (api.asked(), bucket.objects) == ([], {}), "nothing was created, uploaded or deleted"
    del api.endpoints[name]
    apply(config, launch(head))
    api.models[f"{PARENT}/models/theirs"] = {"name": f"{PARENT}/models/theirs", "labels": {"eyas_name": "scout"}}
    api.requests.clear()
    # Names that somebody chose after the endpoint, and a version of another endpoint whose name begins alike.
    for foreign in ("theirs", "scout-legacy", "scout-2-0123456789ab", "scout-0123456789abc"):
        deployed = {"id": "5", "displayName": foreign, "model": f"{PARENT}/models/theirs"}
        api.endpoints[name]["deployedModels"].append(deployed)
        for verb in (apply, delete):
            with pytest.raises(
                InputError, match=f"endpoint scout has the deployed model {foreign}, which is not from eyas"
            ):
                verb(config, launch(head))
        assert api.asked() == []
        api.endpoints[name]["deployedModels"].pop()
    delete(config, launch(head))
    assert list(api.models) == [f"{PARENT}/models/theirs"]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_from_writing_to_deletion(api, bucket, tmp_path, capsys):
    recipe = tmp_path / "pair.toml"
    recipe.write_text(
        '[target]\nhead = "embedded"\n[deploy]\nengine = "eyas"\nimage = "r/eyas:1"\nstorage = "gs://bucket/eyas"\n'
        f'[deploy.vertex]\nproject = "my-project"\naccelerator_count = 0\napi_endpoint = "{api.url}"\n'
    )
    api.polls = 0
    command = ["deploy", "vertex", str(recipe), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    assert {path.name for path in (tmp_path / "run" / "deploy" / "vertex").iterdir()} == {
        MODEL, ENDPOINT, DEPLOYMENT, "provenance.json",
    }  # fmt: skip
    assert api.requests == []
    assert "--apply" in capsys.readouterr().err
    assert bucket.objects == {}
    assert main([*command, "--upload"]) == 0
    assert {name.split("/")[4] for name in bucket.objects} == {"head", "target"}, "the embedded pair is uploaded"
    assert api.requests == []
    assert "head and target uploaded to gs://bucket/eyas/pair/" in capsys.readouterr().err
    bucket.objects.clear()
    assert main([*command, "--apply"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("serving\nendpoint: projects/my-project/locations/us-central1/endpoints/pair\n")
    assert "100 % of traffic, 1 to 1 replicas on g2-standard-12" in said.out
    assert {name.split("/")[4] for name in bucket.objects} == {"head", "target"}, "the embedded pair is uploaded"
    assert main([*command, "--status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "serving"
    assert main([*command, "--delete"]) == 0
    assert capsys.readouterr().out == "absent\n"
    assert (api.models, api.endpoints) == ({}, {})
    assert main([*command, "--apply", "--delete"]) == 2


def test_without_the_package_the_extra_is_named(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.aiplatform_v1", None)
    monkeypatch.delattr("google.cloud.aiplatform_v1", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'eyas\[vertex\]'"):
        VertexClient(config, FAST)
