"""A gateway that gets more endpoints than it was started for, without a lost request."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import gateway_rig as rig
import pytest
from background import until
from filelock import FileLock
from host_ports import free_ports

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes, startup, store
from controlplane.gateway.haproxy import HaproxyGateway

ENDPOINTS = [f"endpoint-{n}" for n in range(80)]
FEW = 10


@pytest.fixture
def pair(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, rig.Triton]]:
    """Two servers with eighty names of one model."""
    monkeypatch.setattr(rig, "ALIASES", dict.fromkeys(ENDPOINTS, "echo"))
    models = dict.fromkeys(("echo", *ENDPOINTS), "echo")
    with rig.tritons(tmp_path_factory.mktemp("tritons"), one=models, two=models) as running:
        yield running


def processes_of(directory: Path, role: str) -> tuple[int, ...]:
    return processes.find(GatewayPaths.of(directory / "gateway"), role)


def test_eighty_endpoints_move_at_once_after_a_growth_from_ten(
    tmp_path: Path, pair: dict[str, rig.Triton], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "_RELOAD_DEADLINE_S", 60.0)
    one, two = Route((pair["one"].backend,)), Route((pair["two"].backend,))

    ports = rig.Ports(*free_ports(3))
    gateway = HaproxyGateway(tmp_path / "gateway")
    try:
        gateway.start(rig.options(ports), endpoints=FEW)
        (before,) = processes_of(tmp_path, processes.HAPROXY)
        gateway.commit(dict.fromkeys(ENDPOINTS[:FEW], one))
        loads = [rig.Load(ports, endpoint) for endpoint in (*ENDPOINTS[:3], *ENDPOINTS[-3:])]
        early, late = ([partial(one.unary, 20.0) for one in some] for some in (loads[:3], loads[3:]))
        with rig.under_load(*early):
            gateway.start(rig.options(ports), len(ENDPOINTS))
            gateway.commit(dict.fromkeys(ENDPOINTS, one))
            with rig.under_load(*late):
                for route in (two, one, two):
                    gateway.commit(dict.fromkeys(ENDPOINTS, route))
                until(lambda: all(o.outcomes and o.outcomes[-1].server == "two" for o in loads))
        assert processes_of(tmp_path, processes.HAPROXY) != (before,)
    finally:
        gateway.stop()
    assert [outcome for load in loads for outcome in load.failed()] == []
    assert all(any(o.server == "one" for o in load.outcomes) for load in loads[:3]), "none before the moves"


def test_a_commit_without_room_moves_the_endpoint_of_a_dead_server_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_SLOTS", 4)
    names = {name: "echo" for name in ("kept", "moved", "saved")}
    with (
        rig.tritons(tmp_path, one=names, two=names) as running,
        rig.a_gateway(tmp_path) as (gateway, ports),
    ):
        one, two = running["one"].backend, running["two"].backend
        before = {"kept": Route((two,)), "moved": Route((two,)), "saved": Route((one,))}
        gateway.commit(before)
        running["one"].kill()
        wanted = {"kept": Route((two,), one), "moved": Route((two,), one), "saved": Route((two,))}
        until(lambda: gateway._haproxy.without_server(gateway._table.get()) == {"saved"})
        with pytest.raises(GatewayError, match="all 4 slots are in use: 2 endpoints keep"):
            gateway.commit(wanted)
        assert gateway.routes() == {**before, "saved": Route((two,))}
        load = rig.Load(ports, "saved")
        asyncio.run(load.at_once(4))
        assert {outcome.server for outcome in load.outcomes} == {"two"}


def test_haproxy_comes_back_though_a_stopped_command_holds_the_lock_of_commits(tmp_path: Path) -> None:
    with rig.a_gateway(tmp_path):
        places = GatewayPaths.of(tmp_path / "gateway")
        with FileLock(places.lock):
            rig.replaced(places, processes.HAPROXY)


def test_an_apply_replaces_a_supervisor_of_another_version_and_haproxy_survives(tmp_path: Path) -> None:
    places = GatewayPaths.of(tmp_path / "gateway")
    with rig.a_gateway(tmp_path) as (gateway, ports):
        (old,) = processes.find(places, processes.SUPERVISOR)
        kept = processes.find(places, processes.HAPROXY)
        places.supervisor_lock.write_text("0.0.1")
        gateway.start(rig.options(ports))
        until(lambda: places.supervisor_lock.read_text() == processes.code_version())
        assert processes.find(places, processes.SUPERVISOR) not in ((), (old,))
        assert processes.find(places, processes.HAPROXY) == kept
        rig.replaced(places, processes.HAPROXY)
