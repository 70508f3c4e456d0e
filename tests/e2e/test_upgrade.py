"""A fleet of an earlier version, upgraded as docs/upgrades.md says, under traffic."""

import os
import signal
from pathlib import Path

import former_version
import pytest
import yaml
from background import until
from ctl_fleet import Ctl, partition, plan
from steady_clients import CLIENTS, Traffic

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes

PLAN = plan(partition("a", 30))


def test_a_fleet_of_the_version_before_is_upgraded_without_a_lost_request(tmp_path: Path) -> None:
    installed = former_version.install(tmp_path)
    if installed is None:
        pytest.skip(former_version.NOT_RUN)
    with Ctl(tmp_path, "upgrade") as host:
        host.environment["PYTHONPATH"] = str(installed.path)
        host.apply({**PLAN, "serve": {"listen": host.listen, "compress": True}}, ports=False)
        places = GatewayPaths.of(host.files / "gateway")
        with Traffic(host) as traffic:
            traffic.await_more(20)
            installed.upgrade()
            host.kill_controller()
            host.apply(PLAN, ports=False)
            # A supervisor has its lock a moment before it writes its version there.
            until(lambda: places.supervisor_lock.read_text() == processes.code_version())
            for role in (processes.FACADE, processes.MONITOR):
                _replaced(places, role, signal.SIGTERM)
            traffic.await_more(20)
            assert traffic.failed == []
            _replaced(places, processes.HAPROXY, signal.SIGKILL)
            traffic.await_more(20)
        assert len(traffic.failed) <= CLIENTS, traffic.failed
        assert host.apply(PLAN, ports=False).stdout.strip() == "nothing to do"
        _section_says_the_same(host)


def _section_says_the_same(host: Ctl) -> None:
    """What the flags of before said is the section that the fleet shows, and that section changes nothing."""
    shown = yaml.safe_load(host.ctl("show").stdout)
    assert shown["serve"]["listen"] == {"host": "127.0.0.1", **host.listen}
    assert shown["serve"]["compress"] is True
    written = {"listen": host.listen, "compress": True}
    for section in (shown["serve"], written):
        host.diff({**PLAN, "serve": section}, exit_code=0)
        applied = host.apply({**PLAN, "serve": section}, ports=False)
        assert applied.stdout.strip() == "nothing to do"
        assert "serve:" not in applied.stderr
    told = host.diff({**PLAN, "serve": {"listen": host.listen}}, exit_code=1)
    assert "serve: compress True -> False" in told.stdout


def _replaced(places: GatewayPaths, role: str, by: signal.Signals) -> None:
    """End a process of the gateway, and wait for the one that the supervisor starts."""
    before = processes.find(places, role)
    assert before, role
    for pid in before:
        os.kill(pid, by)
    until(lambda: not {*before} & {*processes.find(places, role)} and bool(processes.find(places, role)))
