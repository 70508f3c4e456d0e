"""An apply that is cut short: no real server can be made to refuse to end just then."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import build
import pytest
from build import spec
from fake_host import Engine, GatewayInMemory, Program
from fleet_world import world

from controlplane.control.converge.actions import Actual, SetBatches, Start, Stop
from controlplane.control.converge.desired import Desired, NamedRoute
from controlplane.domain.errors import EngineError, GatewayError, InputError, LibraryIgnored
from controlplane.domain.fleet import (
    NOTHING_IN_FLIGHT,
    Batches,
    GatewayConfig,
    InFlight,
    Route,
    Routes,
    Server,
    ServerSpec,
    ServerState,
)
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Prediction, Rule, ServedModel
from controlplane.domain.serving import Access, Order, Serving
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.pinned import Applied
from controlplane.files.plans import plan_hash
from controlplane.ports import GivesWay
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet.execute import Executor, Limits, Say, backend
from controlplane.runtime.fleet.fleet import Fleet, locked, summary_of
from controlplane.runtime.fleet.history import History
from controlplane.runtime.fleet.preflight import ApplyRequest

SETTINGS = FleetSettings("process", "/m", "/o", {"v100-0": "GPU-uuid"})


def plan(*names: str) -> Plan:
    return build.plan(*(build.partition(name, 30.0, batch=4) for name in names))


def server(name: str) -> Server:
    made = build.spec(name, models=(name,), device="GPU-uuid", percent=30.0)
    return build.server(made, port=ord(name))


class Launcher:
    """Its servers do not end."""

    def servers(self, fleet: str) -> tuple[Server, ...]:
        return server("a"), server("b")

    def stop(self, left: Server, *, drain_s: float) -> None:
        raise EngineError("it does not end")


class Rendered(Fleet):
    """A fleet whose plan needs no rendering."""

    def planned(
        self, plan: Plan, settings: FleetSettings, applied: Applied | None = None, *, write: bool = True
    ) -> tuple[Applied, Desired]:
        specs = [server(partition.id).spec for _, partition in plan.partitions()]
        return Applied(plan_hash(plan), {}), Desired(
            {spec.name: spec for spec in specs},
            {spec.endpoints[0]: NamedRoute((spec.name,), None) for spec in specs},
        )


def rendered(
    state: Path, launcher: object, gateway: object, say: Say = lambda line: None, kind: type[Fleet] = Rendered
) -> Any:
    return kind(FleetFiles(state, "f"), cast(Any, launcher), cast(Any, gateway), SystemClock(), say)


def routed(names: str) -> GatewayInMemory:
    return GatewayInMemory({n: Route((backend(server(n)),)) for n in names})


def outside(state: Path) -> FleetSettings:
    """The settings of an apply that renders beside the state, where the output is there already."""
    (state / "out" / "f").mkdir(parents=True)
    return replace(SETTINGS, output=str(state / "out"))


def test_whoever_goes_on_once_routes_have_moved_knows_the_new_plan(tmp_path: Path) -> None:
    fleet, files = rendered(tmp_path, Launcher(), gateway := routed("ab")), FleetFiles(tmp_path, "f")
    files.write_plans(plan("a", "b"), None)
    with pytest.raises(EngineError, match="does not end"):
        fleet.apply(ApplyRequest(plan("a"), SETTINGS))
    assert set(gateway.present) == {"a"}
    # By the plan before, a controller would lead b to whatever of its partition is left.
    assert files.plan() == plan("a")
    assert files.previous_plan() == plan("a", "b")
    (told,) = History(files.history).events()
    assert (told.kind, told.level, told.subject) == ("apply", "warning", "f")
    assert told.reason == f"plan {plan_hash(plan('a'))} by hand, failed: it does not end"


class Gates(GatewayInMemory):
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__({})
        self.late_binding: bool | None = None
        self.order: Order = {}

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        self.late_binding = wanted.late_binding

    def arrange(self, order: Order) -> None:
        self.order = order


class StartsNothing(Launcher):
    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        raise EngineError("it starts nothing")


def two_models(*ranks: int | None) -> Plan:
    """One partition of two models, in the order of these ranks."""
    models = tuple(ServedModel(f"m{n}", 1, rank=rank) for n, rank in enumerate(ranks))
    placed = tuple(
        Placement(m.model, m.model, m.model, 10, 90, predicted=Prediction(execution_ms=2.0)) for m in models
    )
    gpu = PlannedGpu("v100-0", "v100", (Partition("a", 30.0, models, placed),))
    return Plan("by-hand", Rule.P99, "ours", (gpu,))


def test_a_plan_that_relies_on_an_order_has_the_gateways_gates_also_without_the_option(
    tmp_path: Path,
) -> None:
    gates, files = Gates(), FleetFiles(tmp_path, "f")
    fleet = rendered(tmp_path, StartsNothing(), gates)
    with pytest.raises(EngineError, match="starts nothing"):
        fleet.apply(ApplyRequest(two_models(1, 0), SETTINGS))
    assert gates.late_binding
    assert gates.order["m0"].after_ms > gates.order["m1"].after_ms == 0
    files.write_plans(two_models(1, 0), None)
    fleet.open_gateway(two_models(None, None), SETTINGS.endpoints)
    assert gates.late_binding is False


class Started(GatewayInMemory):
    def start(self) -> None:
        raise AssertionError("a gateway was started for a plan that cannot be served")


def test_a_plan_that_cannot_be_rendered_starts_nothing(tmp_path: Path) -> None:
    settings = replace(SETTINGS, repository=str(tmp_path / "none"), output=str(tmp_path / "out"))
    fleet = rendered(tmp_path, Launcher(), Started({}), kind=Fleet)
    with pytest.raises(InputError, match="--repository"):
        fleet.apply(ApplyRequest(plan("a"), settings))
    assert not fleet.files.directory.exists()


class Full(GatewayInMemory):
    """Its disk is full once it has started."""

    def __init__(self, state: Path) -> None:
        super().__init__({})
        self._state = state

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        self._state.mkdir()

    def arrange(self, order: Order) -> None:
        raise GatewayError("no space left on device")


def test_a_first_apply_that_is_refused_leaves_no_gateway(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    gateway = Full(files.gateway)
    fleet = rendered(tmp_path, Launcher(), gateway)
    with pytest.raises(GatewayError, match="no space"):
        fleet.apply(ApplyRequest(plan("a"), SETTINGS))
    assert gateway.stopped
    assert not files.directory.exists()


def test_a_new_leader_that_refuses_a_plan_leaves_the_replicas_their_routes(tmp_path: Path) -> None:
    """Its directory is empty, as before a first apply, and the replicas serve the plan before."""
    settings = replace(SETTINGS, repository=str(tmp_path / "none"), output=str(tmp_path / "out"))
    fleet = rendered(tmp_path, Launcher(), replicas := routed("a"), kind=Fleet)
    with pytest.raises(InputError, match="--repository"):
        fleet.apply(ApplyRequest(plan("b"), settings))
    assert not replicas.stopped


class Taken(GatewayInMemory):
    """Its ports are another's."""

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        raise GatewayError("port 8000 cannot be used")


def test_a_first_apply_that_is_refused_leaves_no_directory_and_a_later_one_all_there_was(
    tmp_path: Path,
) -> None:
    files = FleetFiles(tmp_path, "f")
    fleet = rendered(tmp_path, Launcher(), Taken({}))
    with pytest.raises(GatewayError, match="8000"):
        fleet.apply(ApplyRequest(plan("a"), SETTINGS))
    assert not files.directory.exists()
    files.write_settings(SETTINGS)
    files.write_plans(plan("b"), None)
    with pytest.raises(GatewayError, match="8000"):
        fleet.apply(ApplyRequest(plan("a"), SETTINGS))
    assert files.plan() == plan("b")
    assert files.settings() == SETTINGS


def test_a_plan_made_from_another_than_the_one_that_runs_touches_nothing(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    files.write_settings(SETTINGS)
    files.write_plans(plan("b"), None)
    running = files.plan()
    assert running is not None
    fleet = rendered(tmp_path, Launcher(), Started({}))
    with pytest.raises(EngineError, match=f"from plan 0123456789ab, and {plan_hash(running)} runs"):
        fleet.apply(ApplyRequest(plan("a"), SETTINGS, made_from="0123456789ab"))
    assert files.plan() == running
    assert not (files.directory / "journal.jsonl").exists()


class NoGateway(GatewayInMemory):
    """One that ended before its servers."""

    def commit(self, routes: Routes) -> None:
        raise GatewayError("waited 10 s for HAProxy to come back")

    def stop(self) -> None:
        pass


class Obliging(Launcher):
    def __init__(self) -> None:
        self.stopped: list[str] = []

    def stop(self, left: Server, *, drain_s: float) -> None:
        self.stopped.append(left.name)

    def sweep(self, fleet: str) -> tuple[str, ...]:
        return ()


def test_a_fleet_whose_gateway_is_dead_is_destroyed_all_the_same(tmp_path: Path) -> None:
    gateway, launcher, said = NoGateway(routed("ab").present), Obliging(), list[str]()
    files = FleetFiles(tmp_path, "f")
    files.write_settings(SETTINGS)
    rendered(tmp_path, launcher, gateway, said.append).destroy()
    assert sorted(launcher.stopped) == [server("a").name, server("b").name]
    assert any("HAProxy to come back; the servers are stopped anyway" in line for line in said)
    assert not files.directory.exists()


@pytest.mark.parametrize(("controlled", "stopped"), [(True, []), (False, [server("b").name])])
def test_what_has_not_drained_in_time_is_left_to_the_controller(
    tmp_path: Path, controlled: bool, stopped: list[str]
) -> None:
    class Streaming(GatewayInMemory):
        def in_flight(self, leads_to: object) -> InFlight:
            return replace(NOTHING_IN_FLIGHT, streaming=1)

    gateway, launcher = Streaming(routed("ab").present), Obliging()
    fleet = replace(rendered(tmp_path, launcher, gateway), limits=Limits(drain_s=0.05))
    fleet.files.write_plans(plan("a", "b"), None)
    fleet.apply(ApplyRequest(plan("a"), outside(tmp_path), controlled=controlled))
    assert set(gateway.present) == {"a"}
    assert launcher.stopped == stopped
    fleet.destroy()
    assert sorted(set(launcher.stopped)) == [server("a").name, server("b").name], "destroy ends all"


def test_a_rollback_finds_the_devices_of_the_plan_before(tmp_path: Path) -> None:
    fleet, settings = rendered(tmp_path, Obliging(), routed("ab")), outside(tmp_path)
    fleet.apply(ApplyRequest(plan("a", "b"), settings))
    fleet.apply(ApplyRequest(plan("a"), replace(settings, devices={"v100-1": "GPU-other"})))
    kept = fleet.files.settings()
    assert kept is not None
    assert kept.devices == {"v100-0": "GPU-uuid", "v100-1": "GPU-other"}


def test_an_apply_that_changes_only_the_section_is_what_a_rollback_undoes(tmp_path: Path) -> None:
    fleet, there = rendered(tmp_path, Obliging(), routed("ab")), outside(tmp_path)
    first, second = Serving(access=Access(max_connections=9)), Serving(access=Access(tokens=True))
    for names, section in (("ab", None), ("ab", first), ("a", first), ("a", second), ("a", second)):
        settings = replace(there, endpoints=(section or first).gateway)
        fleet.apply(ApplyRequest(replace(plan(*names), serve=section), settings))
        if section and names == "ab":  # an earlier version's plan of the same is none to go back to
            assert fleet.files.previous_plan() is None
    back = fleet.previous()
    assert (back.plan, back.settings.endpoints) == (replace(plan("a"), serve=first), first.gateway)


def test_a_state_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    with (
        pytest.raises(EngineError, match="cannot be held: Not a directory"),
        locked(FleetFiles(tmp_path / "in-the-way", "f")),
    ):
        pass


def test_an_apply_is_told_by_its_plan_and_totals() -> None:
    started = (Start(server("c").spec), Stop("b"))
    totals = "1 server started, 1 stopped, 2 partitions"
    hashed = plan_hash(plan("a", "c"))
    assert (
        summary_of(plan("a", "c"), plan("a", "b"), started, "by hand")
        == f"plan {hashed} by hand: {totals}; ended: b"
    )
    assert summary_of(plan("a", "c"), None, started, "by hand") == f"plan {hashed} by hand: {totals}"


class Called(Fleet):
    """Rendered for one workload `rank` on one server, by the endpoint that the plan gives it."""

    def planned(
        self, plan: Plan, settings: FleetSettings, applied: Applied | None = None, *, write: bool = True
    ) -> tuple[Applied, Desired]:
        spec = server("a").spec
        return Applied(plan_hash(plan), {}), Desired(
            {spec.name: spec}, {p.endpoint: NamedRoute((spec.name,), None) for _, _, p in plan.placements()}
        )


def called(endpoint: str) -> Plan:
    placement = Placement("rank", endpoint, "ssd", 10, 50)
    partition = Partition("a", 30.0, (ServedModel("ssd", 4),), (placement,))
    return Plan("by-hand", Rule.P99, "ours", (PlannedGpu("v100-0", "v100", (partition,)),))


def test_an_endpoint_of_a_workload_that_stays_ends_only_with_consent(tmp_path: Path) -> None:
    gateway, said = GatewayInMemory({"ssd": Route((backend(server("a")),))}), list[str]()
    fleet, settings = rendered(tmp_path, Obliging(), gateway, said.append, Called), outside(tmp_path)
    files = fleet.files
    files.write_plans(called("ssd"), None)
    fleet.preview(ApplyRequest(called("rank"), settings))
    (warning,) = said
    assert warning.startswith(
        "warning: endpoint ssd ends, its clients will get 404: workload rank gets endpoint rank"
    )
    with pytest.raises(InputError, match=r"workloads stay: ssd; nothing was touched: .*--allow renames"):
        fleet.apply(ApplyRequest(called("rank"), settings))
    assert said == [warning, warning]
    assert set(gateway.present) == {"ssd"}
    assert files.plan() == called("ssd")
    said.clear()
    fleet.apply(ApplyRequest(called("rank"), settings, rename_endpoints=True))
    assert said[0] == warning
    assert set(gateway.present) == {"rank"}
    # Back is asked for by asking for it; what ends by it is told.
    said.clear()
    fleet.apply(fleet.previous())
    assert set(gateway.present) == {"ssd"}
    assert said[0].startswith("warning: endpoint rank ends")


def test_an_endpoint_that_is_routed_no_more_needs_no_consent(tmp_path: Path) -> None:
    # An apply with consent that was cut short: the routes have moved, the plan is not yet written.
    gateway, said = GatewayInMemory({"rank": Route((backend(server("a")),))}), list[str]()
    fleet = rendered(tmp_path, Obliging(), gateway, said.append, Called)
    fleet.files.write_plans(called("ssd"), None)
    fleet.apply(ApplyRequest(called("rank"), outside(tmp_path)))
    assert fleet.files.plan() == called("rank")
    assert not [line for line in said if "ends" in line]


@pytest.mark.parametrize(
    ("percent", "told"), [(40.0, "; `--as-planned` brings back the plan's 30 %"), (30.0, "")]
)
def test_a_redirect_to_the_same_share_leaves_nothing_to_bring_back(
    tmp_path: Path, percent: float, told: str
) -> None:
    planned = server("a")
    spec = replace(planned.spec, percent=percent, labels=replace(planned.spec.labels, revision="r-x"))
    present = replace(planned, spec=spec)

    class Redirected(Obliging):
        def servers(self, fleet: str) -> tuple[Server, ...]:
            return (present,)

    gateway, said = GatewayInMemory({"a": Route((backend(present),))}), list[str]()
    fleet = rendered(tmp_path, Redirected(), gateway, said.append)
    fleet.files.write_plans(plan("a"), None)
    fleet.preview(ApplyRequest(fleet.files.plan(), SETTINGS))
    (line,) = said
    assert line.startswith(f"a was redirected to {percent:g} % of GPU-uuid and stays there{told}")
    assert ("--as-planned" in line) == bool(told)


@pytest.mark.parametrize("before", [False, True])
def test_servers_that_ignore_the_batch_library_have_fixed_batches_unless_others_have_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: bool
) -> None:
    library, said, start = tmp_path / "one" / "two" / "batch_limit.so", list[str](), Engine.start
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    ignored = not before

    def starts(self: Engine, spec: ServerSpec, **how: Any) -> Server:
        if spec.batches and ignored:
            raise LibraryIgnored("it did not load the library")
        return start(self, spec, **how)

    monkeypatch.setattr(Engine, "start", starts)
    with world() as here, here.host.running_as(Program()):
        settings = replace(here.settings, batch_library=str(library))
        fleet = replace(here.fleet, say=said.append)
        plans = [build.plan(build.partition("a", percent, model="echo"), gpu="cpu-0") for percent in (20, 30)]
        first, second = (ApplyRequest(plan, settings) for plan in plans)
        outcome = fleet.apply(first)
        assert [bool(server.spec.batches) for server in outcome.servers] == [before]
        assert any(line.startswith("warning") for line in said) != before
        found = fleet.files.settings()
        assert found is not None
        assert (found.batch_library is not None) == before
        ignored = True
        if before:
            with pytest.raises(LibraryIgnored):
                fleet.apply(second)


class Starts:
    """A launcher whose servers are ready at once; it notes which of them gave way."""

    def __init__(self) -> None:
        self.gave_way: dict[str, bool] = {}

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        self.gave_way[spec.labels.partition] = gives_way()
        return Server("1", spec, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)

    def set_batches(self, server: Server, batches: Batches) -> None:
        raise EngineError("the batch of w1 cannot be changed")


def test_a_server_gives_way_where_its_requests_are_served_meanwhile(tmp_path: Path) -> None:
    served, first = spec("W1", models=("w1",)), spec("W2", models=("w2",))
    launcher = Starts()
    actual = Actual((), {"w1": NamedRoute(("old",))})
    Executor(rendered(tmp_path, launcher, GatewayInMemory())).run([Start(served), Start(first)], actual)
    assert launcher.gave_way == {"W1": True, "W2": False}


def test_a_server_whose_batches_cannot_be_changed_serves_on_and_fails_no_apply(tmp_path: Path) -> None:
    running = Starts().start(spec("W1", models=("w1",)), deadline_s=1, gives_way=lambda: True)
    said: list[str] = []
    change = SetBatches(running.name, (("w1", 2),))
    fleet = rendered(tmp_path, Starts(), GatewayInMemory(), said.append)
    Executor(fleet).run([change], Actual((running,), {}))
    (warning,) = (line for line in said if line.startswith("warning"))
    assert running.name in warning
