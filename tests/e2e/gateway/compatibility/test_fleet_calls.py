from __future__ import annotations

import base64
import time
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from background import until
from gateway_clients import CLIENTS, Target, floats, refusal, tensor
from tritonclient.grpc import service_pb2, service_pb2_grpc

pytestmark = pytest.mark.e2e


def test_live_and_ready(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()


def test_server_metadata(client: Any, kind: str) -> None:
    said = client.get_server_metadata()
    said = said if kind == "http" else {"version": said.version, "extensions": list(said.extensions)}
    assert said["version"] == "2.51.0"
    assert {"sequence", "system_shared_memory", "statistics", "trace", "logging"} <= set(said["extensions"])


def test_repository_index(client: Any, kind: str) -> None:
    said = client.get_model_repository_index()
    entries = said if kind == "http" else [{"name": m.name, "state": m.state} for m in said.models]
    assert {e["name"]: e["state"] for e in entries} == dict.fromkeys(
        ("echo", "twin", "slow", "text", "counted", "tally", "repeat", "again", "total", "other"), "READY"
    )


def test_index_of_another_repository_is_refused(target: Target) -> None:
    with grpc.insecure_channel(target.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).RepositoryIndex(
            service_pb2.RepositoryIndexRequest(repository_name="x")
        )
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_loading_is_refused(client: Any) -> None:
    assert refusal(lambda: client.load_model("echo"))[0] in {
        *("403", "503", "StatusCode.PERMISSION_DENIED", "StatusCode.UNAVAILABLE")
    }


@pytest.mark.parametrize("model", ["echo", "repeat"])
def test_model_metadata_config_and_readiness(client: Any, kind: str, model: str) -> None:
    assert client.is_model_ready(model)
    assert client.is_model_ready(model, "1")
    metadata, config = client.get_model_metadata(model), client.get_model_config(model)
    if kind == "http":
        assert (metadata["name"], metadata["versions"]) == (model, ["1"])
        assert (config["name"], config["backend"]) == (model, "python")
    else:
        assert (metadata.name, list(metadata.versions)) == (model, ["1"])
        assert (config.config.name, config.config.backend) == (model, "python")


@pytest.mark.parametrize(("asked", "more"), [("counted", (1, 0)), ("tally", (1, 1))])
def test_statistics_of_one_model_count_its_requests(
    client: Any, kind: str, asked: str, more: tuple[int, int]
) -> None:
    def counts() -> list[int]:
        told = [client.get_inference_statistics(name) for name in ("counted", "tally")]
        return [
            int(one["model_stats"][0]["inference_count"])
            if kind == "http"
            else one.model_stats[0].inference_count
            for one in told
        ]

    before = counts()
    client.infer(asked, tensor(CLIENTS[kind], floats(1)))
    # A Triton counts a request after it has answered.
    until(lambda: counts() == [b + m for b, m in zip(before, more, strict=True)])


def test_statistics_of_all_models(client: Any, kind: str) -> None:
    said = client.get_inference_statistics()
    names = [m["name"] for m in said["model_stats"]] if kind == "http" else [m.name for m in said.model_stats]
    every = ["again", "counted", "echo", "other", "repeat", "slow", "tally", "text", "total", "twin"]
    assert sorted(names) == every


def test_system_shared_memory(client: Any, kind: str) -> None:
    module = CLIENTS[kind]
    key = f"/gw-test-{time.monotonic_ns()}"
    region = shm.create_shared_memory_region("region", key, 32)
    try:
        shm.set_shared_memory_region(region, [floats(1, 2, 3, 4)])
        client.register_system_shared_memory("region", key, 32)
        said = client.get_system_shared_memory_status()
        assert "region" in ([r["name"] for r in said] if kind == "http" else said.regions)
        for model in ("echo", "twin", "other"):
            given = module.InferInput("INPUT", [4], "FP32")
            given.set_shared_memory("region", 16)
            wanted = module.InferRequestedOutput("OUTPUT")
            wanted.set_shared_memory("region", 16, offset=16)
            client.infer(model, [given], outputs=[wanted])
            np.testing.assert_array_equal(
                shm.get_contents_as_numpy(region, np.float32, [4], offset=16), floats(1, 2, 3, 4)
            )
        assert (
            "already in manager"
            in refusal(lambda: client.register_system_shared_memory("region", key, 32))[1]
        )
        client.unregister_system_shared_memory("region")
        said = client.get_system_shared_memory_status()
        assert not (said if kind == "http" else said.regions)
    finally:
        shm.destroy_shared_memory_region(region)


def test_a_region_that_is_not_there(client: Any) -> None:
    assert (
        "Unable to open shared memory region"
        in refusal(lambda: client.register_system_shared_memory("x", "/not-there", 8))[1]
    )
    assert (
        "Unable to find system shared memory region"
        in refusal(lambda: client.get_system_shared_memory_status("x"))[1]
    )
    client.unregister_system_shared_memory("x")
    client.unregister_system_shared_memory()


def test_cuda_shared_memory_without_a_gpu(client: Any, kind: str) -> None:
    said = client.get_cuda_shared_memory_status()
    assert not (said if kind == "http" else said.regions)
    assert refusal(lambda: client.register_cuda_shared_memory("x", base64.b64encode(b"q" * 64), 0, 8))
    client.unregister_cuda_shared_memory()


def test_trace_settings(client: Any, kind: str) -> None:
    def rate(model: str | None = None) -> str:
        said = client.get_trace_settings(model)
        return str(said["trace_rate"] if kind == "http" else said.settings["trace_rate"].value[0])

    try:
        client.update_trace_settings(settings={"trace_rate": "77"})
        assert rate() == rate("repeat") == "77"
        client.update_trace_settings("repeat", {"trace_rate": "55"})
        assert (rate(), rate("echo"), rate("repeat")) == ("77", "77", "55")
        client.update_trace_settings("repeat", {"trace_rate": None})
        assert rate("repeat") == "77"
    finally:
        client.update_trace_settings(settings={"trace_rate": None})
    assert rate() == "1000"


def test_bad_trace_settings_change_nothing(client: Any, kind: str) -> None:
    assert "trace" in refusal(lambda: client.update_trace_settings(settings={"trace_rate": "many"}))[1]
    assert refusal(lambda: client.update_trace_settings("nope", {"trace_rate": "5"}))[0] == (
        "400" if kind == "http" else "StatusCode.INVALID_ARGUMENT"
    )
    said = client.get_trace_settings("echo")
    assert (said["trace_rate"] if kind == "http" else said.settings["trace_rate"].value[0]) == "1000"


def test_log_settings(client: Any, kind: str) -> None:
    def level() -> int:
        said = client.get_log_settings()
        return int(
            said["log_verbose_level"] if kind == "http" else said.settings["log_verbose_level"].uint32_param
        )

    try:
        client.update_log_settings({"log_verbose_level": 1})
        assert level() == 1
    finally:
        client.update_log_settings({"log_verbose_level": 0})
    assert level() == 0
    assert refusal(lambda: client.update_log_settings({"log_format": "nonsense"}))
