"""From files to a strategy's request, and from the strategy's plan to one that names its sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.domain.device import CPU_DEVICE, Device, GpuPool, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Infeasible, Plan, ProfileUse, Rule, Violation
from controlplane.domain.profile import Factor, Profile
from controlplane.domain.settings import PlanSettings
from controlplane.domain.workload import GpuRequest, Spec
from controlplane.files import catalogue
from controlplane.files.documents import Document, versioned
from controlplane.files.measurements.profiles import read_calibration
from controlplane.files.mistakes import Location, nearest
from controlplane.files.reading import read_bytes
from controlplane.latency import registry as latency_registry
from controlplane.latency.calibration import Calibrated
from controlplane.planning import registry
from controlplane.planning.judge import verify
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.protocol import Device as PlanningDevice
from controlplane.planning.protocol import OptionFile, PlanRequest, Strategy
from controlplane.ports import Clock
from controlplane.runtime.devices import known_device, known_profiles

if TYPE_CHECKING:
    from controlplane.planning.explain.explain import Explanation
    from controlplane.simulate.result import SimulationResult

NO_POLICY = "none"
Improve = Callable[[Plan, PlanRequest], Plan]
"""What is done with a strategy's plan for a request before it is handed out."""


@dataclass(frozen=True, slots=True)
class Choices:
    """A strategy and how it plans; of `settings`, some are for some strategies only."""

    strategy: str
    settings: PlanSettings = field(default_factory=PlanSettings)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the strategy and request that it came from."""

    plan: Plan
    strategy: Strategy
    request: PlanRequest


def make_plan(
    spec: Spec,
    document: Document,
    choices: Choices,
    *,
    profiles: Path,
    cores: int,
    clock: Clock,
    previous: Plan | None = None,
    improve: Improve | None = None,
) -> Planned:
    """Plan a spec. Raises InputError naming the file's line for an unknown device or model."""
    wanted = choices.settings
    strategy = registry.strategy(
        choices.strategy,
        iterations=wanted.iterations,
        bda=wanted.inss.bda,
        policy=_policy(wanted.inss.policy),
        as_coded=wanted.gpulet.as_coded or None,
        as_printed=wanted.gpulet.as_printed or None,
        late_binding=wanted.late_binding or None,
    )
    rule = wanted.rule or strategy.rule
    if wanted.late_binding and rule is not Rule.P99:
        raise InputError(f"is for the rule p99, not for {rule.value}", field="late_binding")
    latency_model = wanted.latency or strategy.latency_model
    devices, every = devices_for(spec, document, latency_model, profiles=profiles, cores=cores)
    request = PlanRequest(
        workloads=spec.workloads,
        devices=devices,
        rule=rule,
        clock=clock,
        quantile=wanted.quantile,
        seed=wanted.seed,
        budget_s=wanted.budget_s,
        previous=previous,
    )
    plan = strategy.plan(request)
    if improve is not None:
        plan = improve(plan, request)
    plan = replace(
        with_sources(plan, spec, every),
        spec_sha256=document.sha256,
        triton_args=spec.triton_args,
        env=spec.env,
        serve=spec.serve,
        spec=document.text or None,
    )
    return Planned(plan, strategy, request)


def devices_for(
    spec: Spec, document: Document, latency_model: str, *, profiles: Path, cores: int
) -> tuple[dict[str, PlanningDevice], dict[str, dict[str, Profile]]]:
    """Return the planning data of a spec's GPU types, and all their profiles by type and model.

    Raises InputError naming the file's line for an unknown device or model, and for a client batch above the
    model's limit.
    """
    factors = read_calibration(profiles)
    devices: dict[str, PlanningDevice] = {}
    models = {w.model for w in spec.workloads}
    every: dict[str, dict[str, Profile]] = {}
    for i, gpu in enumerate(spec.gpus):
        every[gpu.type] = known_profiles(gpu.type, profiles)
        if not every[gpu.type]:
            known = sorted({*catalogue.devices(), *(path.name for path in profiles.glob("*/"))})
            document.fail(
                f"no profiles for {gpu.type!r}{nearest(gpu.type, known)} (`ctl profile` makes some)",
                ("gpus", i, "type"),
            )
        if models & set(every[gpu.type]):
            # All profiles, not only the spec's: interference measured on other models improves the fit, and
            # `verify` must use the same fit for any plan.
            kind = known_device(gpu.type, profiles)
            devices[gpu.type] = _device(gpu, kind, every[gpu.type], latency_model, cores, factors)
    names = {m for found in every.values() for m in found}
    for i, workload in enumerate(spec.workloads):
        if workload.model not in names:
            types = ", ".join(g.type for g in spec.gpus)
            hint = nearest(workload.model, names)
            document.fail(
                f"no profile of {workload.model!r} on {types}{hint} (`ctl profile` makes one)",
                ("workloads", i, "model"),
            )
        limits = [found[workload.model].max_batch for found in every.values() if workload.model in found]
        largest = None if None in limits else max(max(limit or 0, 1) for limit in limits)
        if largest is not None and workload.client_batch > largest:
            document.fail(
                f"{workload.client_batch} is above the max_batch_size of {workload.model!r}, which takes "
                f"requests of {largest} at most: send smaller ones, or raise it in the model's config.pbtxt "
                "and profile it again",
                ("workloads", i, "client_batch"),
            )
    return devices, every


def verify_plan(plan: Plan, profiles: Path) -> tuple[Violation, ...]:
    """Verify a plan with the present profiles. Raises InputError where one is missing."""
    return verify.verify(plan, devices_of(plan, profiles))


def explain_workload(plan: Plan, workload: str, profiles: Path) -> tuple[Explanation, ...] | Infeasible:
    """Why a workload got its share and batch. Raises InputError for one the plan does not know."""
    from controlplane.planning.explain.explain import explain

    return explain(plan, workload, devices_of(plan, profiles))


def plan_page(plan: Plan, profiles: Path, simulated: SimulationResult | None = None) -> str:
    """Return a page about a plan or its simulation, in HTML. Raises InputError where a profile is missing."""
    from controlplane.planning.explain.explain import explain_queues
    from controlplane.report.page import page
    from controlplane.report.page.document import plan_document

    document = plan_document(plan, explain_queues(plan, devices_of(plan, profiles)), simulated)
    return page(document["title"], document)


def mean_execution_ms(plan: Plan, profiles: Path) -> dict[tuple[str, str], float]:
    """Return the mean time of a full batch, with all neighbours busy, by partition and model.

    The times in a plan are quantiles, not means. Raises InputError where a profile is missing.
    """
    by_means = Terms(Rule.HALF_SLO)
    return {
        (one.partition.id, one.served.model): one.execution_ms
        for one in judge(plan.gpus, devices_of(plan, profiles), by_means)
    }


def _policy(given: str | None) -> OptionFile | str | None:
    """The policy that a strategy begins with: a file, none, or the strategy's own."""
    if given is None or given == NO_POLICY:
        return given
    path = Path(given)

    def read() -> bytes:
        if not path.exists():
            raise InputError("no such file; `ctl train` makes one", file=str(path))
        return read_bytes(path)

    return OptionFile(given, read)


def devices_of(plan: Plan, profiles: Path) -> dict[str, PlanningDevice]:
    """Return the planning data of a plan's GPU types. Raises InputError where a profile is missing."""
    devices: dict[str, PlanningDevice] = {}
    factors = read_calibration(profiles)
    for gpu in plan.gpus:
        if gpu.type in devices:
            continue
        models = {p.model for g, _, p in plan.placements() if g.type == gpu.type}
        known = known_profiles(gpu.type, profiles)
        missing = sorted(models - set(known))
        if missing:
            raise InputError(
                f"no profile on {gpu.type} in {profiles}; `ctl profile {missing[0]}` makes one",
                field=missing[0],
            )
        request = GpuRequest(gpu.type, None, gpu.price_per_hour)
        kind = known_device(gpu.type, profiles)
        devices[gpu.type] = _device(request, kind, known, plan.latency_model, None, factors)
    return devices


def _device(
    gpu: GpuRequest,
    device: Device,
    profiles: Mapping[str, Profile],
    latency_model: str,
    cores: int | None,
    factors: Sequence[Factor],
) -> PlanningDevice:
    count = gpu.count
    if count is None and gpu.type == CPU_DEVICE and cores is not None:
        # One core stays free for the gateway and other processes of the host.
        count = max(1, cores - 1)
    price = gpu.price_per_hour if gpu.price_per_hour is not None else device.price_per_hour
    pool = GpuPool(device, count, 0.0 if price is None else price)
    fitted = latency_registry.build(latency_model, device, profiles)
    return PlanningDevice(pool, Calibrated.of(fitted, device.name, factors), profiles)


def with_sources(plan: Plan, spec: Spec, every: Mapping[str, Mapping[str, Profile]]) -> Plan:
    """Return a strategy's plan with the profiles on which it rests, and the spec's node selectors."""
    uses = []
    for model, device in sorted({(p.model, g.type) for g, _, p in plan.placements()}):
        text = json.dumps(versioned(every[device][model]))
        uses.append(ProfileUse(model, device, hashlib.sha256(text.encode()).hexdigest()))
    selectors = {gpu.type: gpu.node_selector for gpu in spec.gpus}
    gpus = tuple(replace(gpu, node_selector=selectors[gpu.type]) for gpu in plan.gpus)
    return replace(plan, profiles=tuple(uses), gpus=gpus)


def models_of_one_share(planned: Planned) -> tuple[tuple[str, str, float], ...]:
    """Return (model, GPU type, percent) of each workload's model that was measured at one share only."""
    wanted = sorted({w.model for w in planned.request.workloads})
    return tuple(
        (model, kind, only)
        for kind, device in sorted(planned.request.devices.items())
        for model in wanted
        if model in device.profiles and (only := device.profiles[model].only_percent) is not None
    )


_INTERFERENCE = ("alpha_f", "alpha_sch", "beta_sch")
"""The coefficients of a device with which neighbours slow each other down in iGniter's model."""


def blind_types(planned: Planned) -> tuple[str, ...]:
    """Return the GPU types with neighbours on which iGniter's or INSS's model knows no interference.

    Its coefficients come with the catalogue, or from co-location points: iGniter's own model reads the
    coefficients only.
    """
    model = planned.plan.latency_model
    if model not in _READ_INTERFERENCE:
        return ()

    def blind(device: PlanningDevice) -> bool:
        of_type = device.pool.device
        profiles = device.profiles.values()
        return (
            of_type.share_kind is ShareKind.MPS_PERCENT
            and not any(of_type.hardware.get(name) for name in _INTERFERENCE)
            and not any(p.fits.get("igniter", {}).get("alpha_cache") for p in profiles)
            and not (_READ_INTERFERENCE[model] and any(p.colocation for p in profiles))
        )

    shared = {gpu.type for gpu in planned.plan.gpus if len(gpu.partitions) > 1}
    return tuple(sorted(kind for kind in shared if blind(planned.request.devices[kind])))


_READ_INTERFERENCE = {"igniter": False, "igniter-refit": True, "inss": True}
"""Latency model -> whether it learns interference from co-location points."""


def check_spare_core(
    plan: Plan,
    document: Document,
    cores: int,
    say: Callable[[str], None],
    *,
    accepted: bool,
    spec: Spec | None = None,
) -> None:
    """Raise InputError for a plan that takes every one of this host's `cores`; `accepted`: warn instead.

    Gateway, controller and often clients run on the same cores without a quota: where servers are pinned to
    every one, requests wait for the gateway and verified P99s break. The error is at the plan's last core, or
    where `document` is the `spec`'s, at its number of cores.
    """
    # A core with shadows only is idle until a redirect.
    planned = len({gpu.id for gpu in plan.gpus if gpu.type == CPU_DEVICE and gpu.partitions})
    if planned < cores:
        return
    problem = (
        f"this host has {cores} core{'' if cores == 1 else 's'} and {planned} are planned: none is left for "
        "the gateway, the controller and clients, and P99s will break"
    )
    if accepted:
        say(f"warning: {problem}")
        return
    if spec is None:
        last = max(i for i, gpu in enumerate(plan.gpus) if gpu.type == CPU_DEVICE)
        location: Location = ("gpus", last, "id")
    else:
        first = next(i for i, gpu in enumerate(spec.gpus) if gpu.type == CPU_DEVICE)
        location = ("gpus", first, "type" if spec.gpus[first].count is None else "count")
    way_out = f"plan with `count: {cores - 1}`" if cores > 1 else "take a host with two cores"
    document.fail(f"{problem}; {way_out}, or accept it with --allow all-cores", location)


def refuse_violations(violations: Sequence[Violation], document: Document, way_out: str) -> None:
    """Raise InputError for violations, naming the first ones."""
    if violations:
        shown = "; ".join(f"{one.subject}: {one.reason}" for one in violations[:3])
        more = f" (and {len(violations) - 3} more)" if len(violations) > 3 else ""
        document.fail(f"the plan does not keep its promises: {shown}{more}; {way_out}")
