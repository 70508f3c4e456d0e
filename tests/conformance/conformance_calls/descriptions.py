"""What a server says of itself and of its models, over gRPC and HTTP."""

import json
import re
from functools import partial
from typing import Any

import tritonclient.grpc as tg
from conformance_zoo import INNER, MODELS
from tritonclient.grpc import service_pb2

from conformance_calls.case import SERVICE, Cases, Target

CASES = Cases()
_PLANNED = ("instance_group", "dynamic_batching", "max_batch_size")


@CASES.case("grpc: index")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        said = client.get_model_repository_index(as_json=True)["models"]
        return sorted((one for one in said if one["name"] not in INNER), key=str)


_HEALTH = "grpc.health.v1.Health"
_OF_TRITON = """ServerLive ServerReady ServerMetadata ModelReady ModelMetadata ModelInfer Nothing
    SystemSharedMemoryStatus CudaSharedMemoryStatus"""
for _method in (
    *(f"{_HEALTH}/Check", f"{_HEALTH}/Watch", "a.B/C"),
    *(f"{SERVICE}/{method}" for method in _OF_TRITON.split()),
):
    CASES.add(f"grpc: {_method}", partial(Target.rpc, method=_method))


def _named(target: Target, method: str, name: str, version: str) -> Any:
    message = getattr(service_pb2, f"{method}Request")(name=name, version=version).SerializeToString()
    return target.rpc(f"{SERVICE}/{method}", message)


for _method in ("ModelReady", "ModelMetadata", "ModelConfig"):
    for _of in ("sees", "sees 9", "sees x", "nosuch"):
        _name, _, _version = _of.partition(" ")
        if (_method, _of) != ("ModelConfig", "sees"):  # whose instances are the plan's
            _call = partial(_named, method=_method, name=_name, version=_version)
            CASES.add(f"grpc: {_method} of {_of}", _call)


def _counters(models: list[dict[str, Any]]) -> Any:
    """Whose there are, and which."""
    return sorted((one["name"], one["version"], sorted(one)) for one in models if one["name"] not in INNER)


@CASES.case("grpc: whose statistics there are")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        return _counters(client.get_inference_statistics(as_json=True)["model_stats"])


@CASES.case("http: whose statistics there are")
def _(target: Target) -> Any:
    return _counters(json.loads(target.raw("GET", "/v2/models/stats")[2])["model_stats"])


CASES.add("grpc: a service's health", lambda t: t.rpc(f"{_HEALTH}/Check", b"\x0a\x04nope"))
for _verb in ("Load", "Unload"):
    _loading = getattr(service_pb2, f"RepositoryModel{_verb}Request")(model_name="plain").SerializeToString()
    _call = partial(Target.rpc, method=f"{SERVICE}/RepositoryModel{_verb}", message=_loading)
    CASES.add(f"grpc: {_verb.lower()}ing", _call, "loading")
_NO_MESSAGE = partial(Target.rpc, method=f"{SERVICE}/ModelInfer", message=b"\xff\xff")
CASES.add("grpc: a message that is none", lambda t: _NO_MESSAGE(t)[0], "malformed-messages")


def _raised(target: Target) -> Any:
    """What a client reads of an exception in a model's code, which cannot decode this."""
    request = service_pb2.ModelInferRequest(model_name="about", raw_input_contents=[bytes(4)])
    request.inputs.add(name="X", datatype="FP32", shape=[1])
    return target.rpc(f"{SERVICE}/ModelInfer", request.SerializeToString(), metadata=[("x-a-bin", b"\xff")])


CASES.add("grpc: an exception of a model", lambda t: re.sub(r"/\S+(?=/about/1/)", "", str(_raised(t))))
CASES.add("grpc: the files of a traceback", _raised, "tracebacks")


def _configuration(target: Target, model: str) -> Any:
    found = json.loads(target.raw("GET", f"/v2/models/{model}/config")[2])
    return {key: value for key, value in found.items() if key not in _PLANNED}


for _model in MODELS:
    if _model not in INNER:
        CASES.add(f"http: metadata of {_model}", lambda t, m=_model: t.raw("GET", f"/v2/models/{m}"))
        CASES.add(f"http: configuration of {_model}", partial(_configuration, model=_model))


@CASES.case("http: planned batches and instances", "planned-configuration")
def _(target: Target) -> Any:
    config = json.loads(target.raw("GET", "/v2/models/batched/config")[2])
    return {key: config.get(key) for key in _PLANNED}


@CASES.case("http: the platform of a shared queue", "shared-queue")
def _(target: Target) -> Any:
    return json.loads(target.raw("GET", "/v2/models/twin")[2])["platform"]


def _counted(target: Target, model: str) -> Any:
    """Return all counters of a model but those of times."""
    models = json.loads(target.raw("GET", f"/v2/models/{model}/stats")[2])["model_stats"]
    return json.loads(json.dumps(models), object_hook=_without_times)


def _without_times(counters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in counters.items() if key not in ("ns", "last_inference")}


@CASES.case("statistics: what counts")
def _(target: Target) -> Any:
    return {model: _counted(target, model) for model in ("ticks", "nested", "types", "versioned", "oldest")}


CASES.add("statistics: warm-ups", partial(_counted, model="warmed"), "warmup-statistics")
