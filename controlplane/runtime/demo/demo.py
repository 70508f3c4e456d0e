"""The demo's steps on this host, with real servers.

Profile the sample models, plan, apply, compare the clients' latencies with the predictions, slow one server
down, wait until the guard has redirected its traffic, destroy the fleet.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import numpy as np
from tritonclient.grpc.service_pb2 import ModelInferRequest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from controlplane.domain.errors import EngineError, InfeasibleError, TrisectError
from controlplane.domain.fleet import Role, Server
from controlplane.domain.plan import Partition, Placement, Plan
from controlplane.domain.serving import Serving
from controlplane.files.plans import read_spec, write_plan
from controlplane.ports import Progress
from controlplane.profiler.load import ClosedLoop, poisson_times
from controlplane.profiler.requests import Wishes, request_of, requests_for
from controlplane.profiler.session import Place, Profiler
from controlplane.profiler.sweep import in_flight
from controlplane.profiler.temporary import to_its_end
from controlplane.render.source import read_source
from controlplane.report.tables.demo_table import DemoRow, Repair
from controlplane.runtime import SystemClock
from controlplane.runtime.demo import clients, violation
from controlplane.runtime.fleet import controller_process, preflight
from controlplane.runtime.fleet.execute import Say
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import History
from controlplane.runtime.jobs.plan import Choices, make_plan, mean_execution_ms
from controlplane.runtime.jobs.profile import Failed, error_words, profile_models, read_subjects
from controlplane.triton import statistics
from controlplane.triton.client import TritonClient

_PROFILE_S = 20.0
_WARM_UP_S = 1.0
_SEED = 1
_SLOWER_S = 10.0
_RATES = (1.0, 0.6, 0.35)
"""Parts of the spec's rates, tried in turn: a slow host has room for a larger shadow at low rates only."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The demo's files, how its fleet is served, and durations.

    `slowed_by_request`: its models take the parameter `slower` of a request, a factor of their later batches'
    times. That needs no right over a server's share, which an unprivileged user may lack and a GPU has not.
    """

    spec: Path
    repository: Path
    output: Path
    scratch: Path
    section: Serving
    slowed_by_request: bool = False
    closed_loop_s: float = 6.0
    poisson_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo's steps, and what they run on."""

    scene: Scene
    fleet: Fleet
    place: Place
    progress: Progress
    say: Say

    def plan(self, profiles: Path) -> Plan:
        """Profile the spec's models and plan them. Raises InfeasibleError where this host is too slow."""
        spec, document = read_spec(self.scene.spec)
        models = sorted({w.model for w in spec.workloads})
        self.say(
            f"profile {', '.join(models)} on {self.place.name}: one Triton per share, driven back to back"
        )
        profiler = Profiler(self.fleet.launcher, SystemClock(), self.progress, profiles, self.scene.scratch)
        subjects = read_subjects(self.scene.repository, models, self.place, Wishes(budget_s=_PROFILE_S))
        for one in profile_models(profiler, subjects, self.place, resume=False):
            if isinstance(one, Failed):
                raise EngineError(f"{one.model}: {one.words}")
            profile = one.profile
            alone = next(p for p in profile.points if p.percent == 100 and p.batch == 1)
            self.say(
                f"  {profile.model}: {len(profile.points)} points, {alone.execution_ms:.1f} ms alone at "
                f"batch 1{error_words(profile)}"
            )
        for part in _RATES:
            workloads = tuple(replace(w, rate_rps=part * w.rate_rps) for w in spec.workloads)
            here = tuple(replace(gpu, type=self.place.device.name) for gpu in spec.gpus)
            slower = replace(spec, workloads=workloads, gpus=here)
            plan = make_plan(
                slower, document, Choices("joint"), profiles=profiles, cores=1, clock=SystemClock()
            ).plan
            if not plan.infeasible and any(violation.covered(p) for _, p in plan.partitions()):
                return plan
            self.say(
                f"at {part:.0%} of the rates in {self.scene.spec} this host, as busy as it is now, has no "
                "share to spare for a larger shadow"
            )
        reasons = "; ".join(f"{i.workload}: {i.reason}" for i in plan.infeasible) or "no share to spare"
        raise InfeasibleError(f"this host is too slow, or too busy now, for {self.scene.spec}: {reasons}")

    def apply(self, plan: Plan) -> None:
        """Apply the plan."""
        scene, fleet = self.scene, self.fleet
        settings = preflight.settings(
            plan, fleet, repository=scene.repository, output=scene.output, section=scene.section
        )
        fleet.apply(preflight.ApplyRequest(plan, settings))

    def measure(self, plan: Plan, expected_ms: Mapping[tuple[str, str], float]) -> list[DemoRow]:
        """Compare the running fleet with the predictions, all workloads loaded at once."""
        placed = [(partition, placement) for _, partition, placement in plan.placements()]
        self.say(f"closed loop at the planned batch, all {len(placed)} at once: execution latency")
        execution = self._executions(placed)
        controller_process.start_detached(self.fleet.files)
        history = History(self.fleet.files.history)
        for partition, _ in placed:
            violation.await_event(history, "notice", partition.id, 0.0, "stands by")
        self.say(f"with the guard: Poisson arrivals at the planned rates for {self.scene.poisson_s:g} s: P99")
        seen = self._poisson(placed)
        rows = []
        for partition, placement in placed:
            client = seen[placement.endpoint]
            rows.append(
                DemoRow(
                    workload=placement.name,
                    model=placement.model,
                    percent=partition.percent,
                    batch=_batch(partition, placement),
                    predicted_ms=expected_ms[partition.id, placement.model],
                    observed_ms=execution[placement.endpoint],
                    rate_rps=placement.rate_rps,
                    answered=client.latency_ms.size,
                    failed=len(client.failures),
                    p50_ms=float(np.percentile(client.latency_ms, 50)),
                    p99_ms=float(np.percentile(client.latency_ms, 99)),
                    slo_ms=placement.slo_ms,
                )
            )
        return rows

    def violate(self, plan: Plan, rows: Sequence[DemoRow]) -> Repair:
        """Slow one server down under load and wait for the guard's repair. Raises EngineError."""
        placed = [(partition, placement) for _, partition, placement in plan.placements()]
        busy = {row.workload: row.rate_rps * row.observed_ms / (1000.0 * row.batch) for row in rows}
        hit = violation.victim(placed, self._active(), busy)
        self.say(
            f"forced violation: all workloads loaded, then a fault holds {hit.placement.name}'s server to "
            f"{100 * hit.part:.0f} % of its speed"
        )
        history = History(self.fleet.files.history)
        return violation.force(history, placed, hit, self._load, lambda part: self._slow_down(hit, part))

    def _slow_down(self, hit: violation.Victim, part: float) -> None:
        """Make the server's model slower where it can be, else cut the server's quota."""
        if not self.scene.slowed_by_request:
            self.fleet.launcher.resize(hit.server, hit.server.spec.percent * part)
            return
        request = self._request(hit.placement)
        request.model_name = hit.placement.endpoint
        request.parameters["slower"].string_param = f"{1.0 / part:.2f}"
        try:
            with grpc.insecure_channel(f"{hit.server.host}:{hit.server.grpc_port}") as channel:
                GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=_SLOWER_S)
        except grpc.RpcError as error:
            raise EngineError(f"{hit.server.name} was not made slower: {error.details()}") from error

    def destroy(self) -> None:
        """End the controller and destroy the fleet."""
        self.say("destroy")
        controller_process.stop(self.fleet.files)
        self.fleet.destroy()

    def _executions(self, placed: Sequence[tuple[Partition, Placement]]) -> Mapping[str, float]:
        servers = self._active()
        target = f"{self.scene.section.listen.host}:{self.scene.section.listen.grpc}"
        with ExitStack() as stack:
            readers = {}
            for partition, placement in placed:
                request = self._request(placement)
                request.model_name = placement.endpoint
                together = _batch(partition, placement) // placement.client_batch
                readers[placement.endpoint] = stack.enter_context(TritonClient(servers[partition.id]))
                loop = stack.enter_context(
                    ClosedLoop(target, [request.SerializeToString()], in_flight(together))
                )
            loop.run(_WARM_UP_S)
            before = {endpoint: reader.statistics(endpoint) for endpoint, reader in readers.items()}
            loop.run(self.scene.closed_loop_s)
            after = {endpoint: reader.statistics(endpoint) for endpoint, reader in readers.items()}
        observed = {}
        for partition, placement in placed:
            batch = _batch(partition, placement)
            window = statistics.difference(before[placement.endpoint], after[placement.endpoint])
            if batch not in window.batches:
                raise EngineError(f"{placement.name}: no batch of {batch} was formed under load")
            observed[placement.endpoint] = statistics.execution_ms(window.batches[batch])
        return observed

    def _poisson(self, placed: Sequence[tuple[Partition, Placement]]) -> Mapping[str, clients.Seen]:
        random = np.random.default_rng(_SEED)
        work = []
        with ThreadPoolExecutor(len(placed)) as pool:
            for _, placement in placed:
                due = poisson_times(placement.requests_rps, self.scene.poisson_s, random)
                work.append((placement.endpoint, pool.submit(self._load, placement, due)))
            return {endpoint: future.result() for endpoint, future in work}

    def _load(self, placement: Placement, due_s: Iterable[float]) -> clients.Seen:
        """Send a workload's requests at these times."""
        at, tensors = self.scene.section.gateway, clients.tensors_of(self._request(placement))
        return clients.over_grpc(f"{at.host}:{at.grpc_port}", placement.endpoint, tensors, due_s)

    def _request(self, placement: Placement) -> ModelInferRequest:
        """Return a request as the workload's clients send it."""
        return request_of(
            requests_for(read_source(self.scene.repository, placement.model)), placement.client_batch
        )

    def _active(self) -> dict[str, Server]:
        return {
            s.spec.labels.partition: s
            for s in self.fleet.launcher.servers(self.fleet.name)
            if s.spec.labels.role is Role.ACTIVE
        }


def _batch(partition: Partition, placement: Placement) -> int:
    return next(served.batch for served in partition.models if served.model == placement.model)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The demo's results: predicted beside measured, and the repair of a forced violation.

    `no_repair` is the reason if there was no repair.
    """

    rows: tuple[DemoRow, ...]
    repair: Repair | None
    no_repair: str = ""


def run(demo: Demo, keep_plan: Path | None) -> Outcome:
    """Run all steps. The fleet is destroyed in any case."""
    with tempfile.TemporaryDirectory() as profiles:
        plan = demo.plan(Path(profiles))
        expected_ms = mean_execution_ms(plan, Path(profiles))
    if keep_plan is not None:
        write_plan(keep_plan, plan)
    try:
        demo.say(f"apply: {sum(1 for _ in plan.partitions())} partitions, each with a shadow standing by")
        demo.apply(plan)
        rows = tuple(demo.measure(plan, expected_ms))
        try:
            return Outcome(rows, demo.violate(plan, rows))
        except TrisectError as error:
            return Outcome(rows, None, str(error))
    finally:
        to_its_end(demo.destroy)
