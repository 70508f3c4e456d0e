"""What is rendered, on a real Triton: it loads, and the batcher does what the plan says."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from background import until
from bare_triton import ROOT, BareTriton, bare_triton
from tritonclient.utils import np_to_triton_dtype

from controlplane.domain.plan import Partition, Placement, ServedModel
from controlplane.files.rendered import write_tree
from controlplane.profiler.load import ClosedLoop
from controlplane.profiler.requests import requests_for
from controlplane.render.repository import render_partition
from controlplane.render.source import read_source

REPOSITORY = ROOT / "model_repository"
BATCH = {"alexnet_tiny": 4, "resnet_tiny": 1, "transformer_tiny": 6}
LARGE = 16
"""A client's own batch, larger than any dynamic one."""
ENDPOINTS = {**{f"of-{model}": model for model in BATCH}, "twin": "alexnet_tiny"}


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareTriton]:
    """All sample models in one partition, each under an endpoint's name and with a batch of its own.

    One of them under a second name too: `twin` shares the queue of `of-alexnet_tiny`.
    """
    directory = tmp_path_factory.mktemp("rendered")
    subprocess.run([sys.executable, REPOSITORY / "make.py"], check=True)
    partition = Partition(
        "P1",
        100,
        models=tuple(ServedModel(model, batch) for model, batch in BATCH.items()),
        workloads=tuple(Placement(e, e, m, rate_rps=1, slo_ms=1) for e, m in ENDPOINTS.items()),
    )
    tree = render_partition(partition, gpu_type="cpu", repository=REPOSITORY)
    write_tree(directory / "models", tree)
    with bare_triton(directory / "models", directory / "log") as running:
        yield running


def an_input(model: str, batch: int) -> triton_grpc.InferInput:
    random = np.random.default_rng(batch)
    if model == "transformer_tiny":
        return tensor_of(random.integers(0, 4096, (batch, 32)))
    return tensor_of(random.standard_normal((batch, 3, 64, 64), dtype=np.float32))


def tensor_of(values: np.ndarray) -> triton_grpc.InferInput:
    tensor = triton_grpc.InferInput("INPUT", values.shape, np_to_triton_dtype(values.dtype))
    return tensor.set_data_from_numpy(values)


def batch_sizes(triton: BareTriton, endpoint: str) -> dict[int, int]:
    answer = httpx.get(f"http://{triton.http}/v2/models/{endpoint}/stats", trust_env=False).json()
    [model] = answer["model_stats"]
    return {int(b["batch_size"]): int(b["compute_infer"]["count"]) for b in model.get("batch_stats", [])}


def counted(triton: BareTriton, endpoint: str, model: str) -> dict[int, int]:
    """How many batches of each size have run, without those of a client's own sixteen.

    A Triton counts a batch after it has answered it and before the next one runs: one more is waited for.
    """
    before = batch_sizes(triton, endpoint).get(LARGE, 0)
    with triton_grpc.InferenceServerClient(triton.grpc) as client:
        assert client.infer(endpoint, [an_input(model, LARGE)]).as_numpy("OUTPUT").shape[0] == LARGE
    until(lambda: batch_sizes(triton, endpoint).get(LARGE, 0) > before)
    now = batch_sizes(triton, endpoint)
    del now[LARGE]
    return now


def since(before: dict[int, int], now: dict[int, int]) -> dict[int, int]:
    return {b: n - before.get(b, 0) for b, n in now.items() if n > before.get(b, 0)}


@pytest.mark.parametrize("model", BATCH)
def test_a_sample_model_answers_each_request_of_a_batch_with_its_own_rows(
    triton: BareTriton, model: str
) -> None:
    with triton_grpc.InferenceServerClient(triton.grpc) as client:

        def answer(batch: int) -> np.ndarray:
            return client.infer(f"of-{model}", [an_input(model, batch)]).as_numpy("OUTPUT")

        alone = {batch: answer(batch) for batch in (1, 2, 3)}
        with ThreadPoolExecutor(6) as pool:
            together = list(pool.map(answer, [1, 2, 3, 3, 2, 1]))
    assert np.ptp(alone[3]) > 0
    for batch, found in zip([1, 2, 3, 3, 2, 1], together, strict=True):
        np.testing.assert_allclose(found, alone[batch], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model", BATCH)
def test_the_preferred_size_caps_the_dynamic_batch_and_takes_a_clients_larger_one(
    triton: BareTriton, model: str
) -> None:
    endpoint, batch = f"of-{model}", BATCH[model]
    request = requests_for(read_source(REPOSITORY, model))[0]
    request.model_name = endpoint
    before = counted(triton, endpoint, model)
    with ClosedLoop(triton.grpc, [request.SerializeToString()], 4 * batch + 8) as loop:
        loop.wait_for(40 * batch, deadline_s=60)
    seen = since(before, counted(triton, endpoint, model))
    assert sum(b * n for b, n in seen.items()) == loop.answered
    assert max(seen) == batch
    # More than a batch always waits, so nearly all run in full ones.
    assert batch * seen[batch] >= loop.answered // 2


def test_two_endpoints_of_one_model_are_one_queue(triton: BareTriton) -> None:
    model, alias = "of-alexnet_tiny", "twin"
    with triton_grpc.InferenceServerClient(triton.grpc) as client:
        given = [an_input("alexnet_tiny", 3)]
        np.testing.assert_array_equal(
            client.infer(alias, given).as_numpy("OUTPUT"), client.infer(model, given).as_numpy("OUTPUT")
        )
        own_shown, shown = (client.get_model_metadata(name) for name in (model, alias))
        for what in ("versions", "inputs", "outputs"):
            assert getattr(shown, what) == getattr(own_shown, what)
    before = counted(triton, model, "alexnet_tiny")
    bodies = {}
    for endpoint in (model, alias):
        request = requests_for(read_source(REPOSITORY, "alexnet_tiny"))[0]
        request.model_name = endpoint
        bodies[endpoint] = request.SerializeToString()
    answered, seen, deadline = 0, dict[int, int](), time.monotonic() + 60
    # Three in flight on each: a batch of four holds both. Three and three may run in turn for a while.
    while max(seen, default=0) < BATCH["alexnet_tiny"]:
        assert time.monotonic() < deadline, seen
        with (
            ClosedLoop(triton.grpc, [bodies[model]], 3) as own,
            ClosedLoop(triton.grpc, [bodies[alias]], 3) as other,
        ):
            own.wait_for(60, deadline_s=60)
            other.wait_for(60, deadline_s=60)
        answered += own.answered + other.answered
        seen = since(before, counted(triton, model, "alexnet_tiny"))
        assert sum(b * n for b, n in seen.items()) == answered
    assert max(seen) == BATCH["alexnet_tiny"]
