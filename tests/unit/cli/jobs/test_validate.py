"""`ctl validate --fleet F --seconds N`: what it reads of a fleet's servers, and what it tells."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import build
import pytest
from asked_triton import asked_triton
from typer.testing import CliRunner

from controlplane.cli import wiring
from controlplane.cli.main import app
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Route, Routes, Server
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.files.fleets import FleetFiles
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet import calibrate
from controlplane.runtime.fleet.execute import backend
from controlplane.runtime.fleet.fleet import Fleet


class Watching:
    """Counts the pauses between two readings; none is waited for."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)


class Running:
    """Engine and gateway at once: these servers, each routed to."""

    def __init__(self, servers: list[Server]) -> None:
        self._servers = servers

    def servers(self, fleet: str) -> list[Server]:
        return self._servers

    def routes(self) -> Routes:
        return {s.spec.endpoints[0]: Route((backend(s),)) for s in self._servers}


def server(partition: str, port: int) -> Server:
    made = build.spec(partition, models=(partition.lower(),), device="GPU-u", percent=30.0)
    return build.server(made, partition, port=port)


def validated(directory: Path, watching: Watching, servers: list[Server]) -> dict[str, Any]:
    """What `--seconds 5 --json` tells of a plan's partitions A, B and C, of which `servers` run."""
    partitions = tuple(
        Partition(n, 30.0, (ServedModel("ssd", 4),), (Placement(n, n.lower(), "ssd", 40.0, 60.0),))
        for n in "ABC"
    )
    files, running = FleetFiles(directory / "state", "f"), cast(Any, Running(servers))
    files.write_plans(Plan("joint", Rule.P99, "igniter", (PlannedGpu("v100-0", "v100", partitions),)), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "threading", SimpleNamespace(Event=lambda: watching))
        patch.setattr(
            wiring, "existing_fleet", lambda name: (Fleet(files, running, running, SystemClock(), print),)
        )
        asked = ["validate", "--fleet", "f", "--seconds", "5", "--json", "--profiles", str(directory)]
        told = CliRunner().invoke(app, asked, catch_exceptions=False)
    found: dict[str, Any] = json.loads(told.stdout)
    assert found["schema_version"] == 1
    return found


def test_a_fleet_is_watched_for_as_long_as_told_and_who_is_missing_is_named(tmp_path: Path) -> None:
    watching = Watching()
    with asked_triton() as (busy, asked), asked_triton(executions=0) as (idle, _):
        told = validated(tmp_path, watching, [server("A", busy), server("B", idle)])
    assert watching.pauses == [1.0] * 5
    assert asked == ["/v2/models/a/stats"] * 6
    (row,) = told["observed"]
    assert (row["partition"], row["model"], row["batch"], row["batches"]) == ("A", "ssd", 4, 50)
    assert row["observed_ms"] == pytest.approx(3.0)
    assert row["busy"] == pytest.approx(0.03)
    assert row["predicted_ms"] > 3.0
    assert {one["partition"]: one["unmeasured"] for one in told["unseen"]} == {
        "B": "no batch was executed within 5 s",
        "C": "no server answers for it now",
    }
    assert told["promises"] == [], "a P99 is the record's"


def test_a_fleet_that_executes_nothing_is_told_so(tmp_path: Path) -> None:
    with (
        asked_triton(executions=0) as (idle, _),
        pytest.raises(InputError, match="no batch was executed within 5 s; is there traffic"),
    ):
        validated(tmp_path, Watching(), [server("B", idle)])
