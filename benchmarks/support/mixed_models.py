"""A real Triton with models that take turns, behind the real gateway, and traffic over both protocols."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from bare_triton import HOST, bare_triton
from gateway_rig import a_gateway
from model_files import NUMBER, timed, write
from sleeping_triton import ahead_of_others

from controlplane.control.order import order_of
from controlplane.domain.fleet import Backend, Route
from controlplane.domain.plan import (
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Prediction,
    Rule,
    ServedModel,
)
from controlplane.files.rendered import write_tree
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.render.repository import render_partition


@dataclass(frozen=True)
class Mixed:
    """A model that keeps the partition for fixed + k x each ms a batch of k, and its planned rate."""

    name: str
    fixed_ms: float
    each_ms: float
    rate_rps: float
    slo_ms: float = 1000.0

    def batch_ms(self, batch: int) -> float:
        return self.fixed_ms + self.each_ms * batch


@dataclass(frozen=True)
class Answers:
    """Of one model: latencies in ms by protocol, refused requests, and failures.

    `seconds` passed until the last answer to any model.
    """

    latencies: Mapping[str, Sequence[float]]
    refused: int
    failures: tuple[str, ...]
    seconds: float

    @property
    def all_ms(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([ms for those in self.latencies.values() for ms in those])

    def quantile(self, of: float) -> float:
        return float(np.quantile(self.all_ms, of))


def plan_of(models: Sequence[Mixed], batch: int) -> Plan:
    partition = Partition(
        "P1",
        100.0,
        tuple(ServedModel(m.name, batch) for m in models),
        tuple(
            Placement(
                *(m.name, m.name, m.name, m.rate_rps, m.slo_ms),
                predicted=Prediction(execution_ms=m.batch_ms(batch)),
            )
            for m in models
        ),
    )
    return Plan("by-hand", Rule.P99, "ours", (PlannedGpu("cpu-0", "cpu", (partition,)),))


@contextlib.contextmanager
def triton(directory: Path, plan: Plan, models: Sequence[Mixed]) -> Iterator[Backend]:
    """The server of the plan's one partition, without a share."""
    for model in models:
        write(directory / "source", model.name, timed(model.fixed_ms, model.each_ms), NUMBER)
    ((_, partition),) = plan.partitions()
    rendered = render_partition(partition, gpu_type="cpu", repository=directory / "source")
    write_tree(directory / "models", rendered)
    with (
        ahead_of_others(),
        bare_triton(directory / "models", directory / "log", "--rate-limit=execution_count") as running,
    ):
        yield Backend("fleet.P1.active.r", HOST, running.http_port, running.grpc_port)


@dataclass(frozen=True)
class Front:
    """A running gateway."""

    gateway: HaproxyGateway
    http: str
    grpc: str


@contextlib.contextmanager
def gateway(
    directory: Path, plan: Plan, backend: Backend, *, late_binding: bool, overtake_ms: int = 0
) -> Iterator[Front]:
    """A gateway that leads to the server; what it starts runs ahead of others."""
    with contextlib.ExitStack() as stack:
        with ahead_of_others():
            started = a_gateway(directory, late_binding=late_binding, overtake_ms=overtake_ms)
            front, ports = stack.enter_context(started)
        front.arrange(order_of(plan, overtake_ms))
        front.commit({placed.endpoint: Route((backend,)) for _, _, placed in plan.placements()})
        yield Front(front, f"{HOST}:{ports.http}", f"{HOST}:{ports.grpc}")


def due(rates: Mapping[str, float], seconds: float, seed: int) -> list[tuple[float, str]]:
    """Poisson requests: when, and of which model."""
    random = np.random.default_rng(seed)
    found = [
        (float(at), model)
        for model, rate in rates.items()
        for at in random.uniform(0.0, seconds, random.poisson(rate * seconds))
    ]
    return sorted(found)


def sent(http: str, grpc: str, requests: Sequence[tuple[float, str]]) -> dict[str, Answers]:
    """Send these, over HTTP and gRPC in turn; the answers by model."""
    with ahead_of_others():
        return asyncio.run(_sent(http, grpc, requests))


async def _sent(http: str, grpc: str, requests: Sequence[tuple[float, str]]) -> dict[str, Answers]:
    models = sorted({model for _, model in requests})
    latencies: dict[str, dict[str, list[float]]] = {m: {"http": [], "grpc": []} for m in models}
    failures: dict[str, list[str]] = {m: [] for m in models}
    refused = dict.fromkeys(models, 0)
    loop = asyncio.get_running_loop()
    async with (
        http_aio.InferenceServerClient(http, conn_limit=1024) as over_http,
        grpc_aio.InferenceServerClient(grpc) as over_grpc,
    ):
        clients: tuple[tuple[str, Any, Any], ...] = (
            ("http", over_http, http_aio),
            ("grpc", over_grpc, grpc_aio),
        )

        async def one(number: int, model: str) -> None:
            protocol, client, module = clients[number % 2]
            tensor = module.InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
            began = loop.time()
            try:
                await client.infer(model, [tensor])
                latencies[model][protocol].append(1e3 * (loop.time() - began))
            except Exception as error:
                if "overloaded" in str(error):
                    refused[model] += 1
                else:
                    failures[model].append(f"{protocol}: {error!r}")

        for number, model in enumerate((*models, *models, models[0])):
            await one(number, model)  # opens connections
        for of_model in latencies.values():
            for those in of_model.values():
                those.clear()
        begin, running = loop.time(), []
        for number, (at, model) in enumerate(requests):
            await asyncio.sleep(max(0.0, begin + at - loop.time()))
            running.append(asyncio.create_task(one(number, model)))
        await asyncio.gather(*running)
        seconds = loop.time() - begin
    return {m: Answers(latencies[m], refused[m], tuple(failures[m]), seconds) for m in models}
