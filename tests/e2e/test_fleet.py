"""The walking path as a user walks it: `ctl` in its own process, real Tritons, real HAProxy, real clients."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from background import until
from ctl_fleet import Ctl, partition, plan
from steady_clients import Traffic

pytestmark = pytest.mark.long

PROTOCOLS = ("http", "grpc")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path, "e2e") as here:
        yield here


def test_apply_serve_change_redirect_roll_back_destroy(host: Ctl) -> None:
    host.apply(plan(partition("a", 30), partition("b", 30)))
    running = host.servers()
    assert {(s["partition"], s["role"]) for s in running} == {
        (p, r) for p in "ab" for r in ("active", "shadow")
    }
    assert all(s["enforced_by"] for s in running) or os.geteuid() != 0

    again = host.apply(plan(partition("a", 30), partition("b", 30)))
    assert again.stdout.strip() == "nothing to do"

    fleets = json.loads(host.bare("list", "--json").stdout)["fleets"]
    (listed,) = (one for one in fleets if one["fleet"] == host.fleet)
    assert (listed["launcher"], listed["http"], listed["grpc"]) == ("process", host.http, host.grpc)
    logged = [line for line in host.ctl("logs", "a").stdout.splitlines() if line.strip()]
    named = {line.partition(": ")[0] for line in logged}
    assert len(named) == len([s for s in running if s["partition"] == "a"])
    assert any("Started HTTPService" in line for line in logged)
    rendered = sorted(host.directory.glob("rendered/*/*/*"))
    host.diff(plan(partition("a", 30), partition("b", 30)), exit_code=0)
    changed = host.diff(plan(partition("a", 40), partition("b", 30)), exit_code=1)
    assert "resize" in changed.stdout or "start" in changed.stdout
    with_section = plan(partition("a", 30), partition("b", 30))
    with_section["serve"] = {"launcher": "process", "listen": host.listen}
    host.diff(with_section, exit_code=0)
    with_section["serve"]["compress"] = True
    told = host.diff(with_section, exit_code=1)
    assert "serve: compress False -> True" in told.stdout
    assert host.servers() == running, "nothing was changed"
    assert sorted(host.directory.glob("rendered/*/*/*")) == rendered

    before = {s["http"] for s in running if s["partition"] == "b"}
    with Traffic(host, ["a", "b"], PROTOCOLS, pause_s=0.02) as load:
        host.apply(plan(partition("a", 40), partition("b", 30)), ports=False)
        for _ in range(2):
            host.ctl("redirect", "a")
        (row,) = [r for r in host.document("status")["guard"] if r["partition"] == "a"]
        assert row["redirect"].endswith(": by hand")
        host.ctl("rollback", "--yes")
    assert load.failed == []
    assert load.done > 100
    running = host.servers()
    assert {s["partition"]: s["percent"] for s in running if s["role"] == "active"} == {"a": 30, "b": 30}
    assert {s["http"] for s in running if s["partition"] == "b"} == before, "b was not touched"

    renamed = partition("a", 30)
    renamed["workloads"][0]["endpoint"] = "echo"
    refused = host.apply(plan(renamed, partition("b", 30)), ports=False, exit_code=2)
    assert "endpoint a ends, its clients will get 404: workload a gets endpoint echo" in refused.stderr
    assert "--allow renames" in refused.stderr
    assert {s["http"] for s in host.servers() if s["partition"] == "b"} == before

    moved = host.apply(
        plan(partition("a", 30), partition("b", 30)), "--set=serve.listen.http=1", ports=False, exit_code=5
    )
    assert "`ctl destroy` the fleet first" in moved.stderr
    told = host.document("events")["events"]
    assert not [e for e in told if e["kind"] == "restart" or "did not end by itself" in e["reason"]]
    by_hand = [e["kind"] for e in told if "by hand" in e["reason"]]
    assert by_hand == ["apply", "apply", "redirect", "redirect", "rollback"]

    host.ctl("destroy", "--yes")
    assert host.leftovers() == []
    again = host.ctl("destroy", "--yes")
    assert "nothing is left of it" in again.stdout
    after = host.ctl("events", "--json")
    assert "was destroyed" in after.stderr
    told = json.loads(after.stdout)["events"]
    assert [e["kind"] for e in told if "by hand" in e["reason"]] == [*by_hand, "destroy"]


def test_a_kill_after_a_plan_that_changes_only_an_slo_is_mended_by_the_same_plan(host: Ctl) -> None:
    before, after = plan(partition("a", 30)), plan(partition("a", 30))
    after["gpus"][0]["partitions"][0]["workloads"][0]["slo_ms"] = 1500
    host.apply(before)
    ports = {s["http"] for s in host.servers()}
    changed = host.apply(after, ports=False)
    told = "nothing to do for the servers; changed: a: slo_ms 2000 -> 1500"
    assert changed.stdout.strip() == told
    assert {s["http"] for s in host.servers()} == ports

    host.kill("a")
    host.kill_controller()
    host.apply(after, ports=False)
    # Where the requests had moved before the controller ended, the next controller starts the next shadow.
    until(host.guarded, what="a shadow stands by")
    status = host.document("status")
    assert {(s["role"], s["state"]) for s in status["servers"]} == {
        (role, "running") for role in ("active", "shadow")
    }
    assert status["controller"] is not None
    assert len(ports & {s["http"] for s in status["servers"]}) == 1, "the shadow was left as it is"
    host.infer("a")
    events = host.document("events")["events"]
    assert not [e for e in events if e["kind"] == "controller" and e["level"] == "warning"]

    host.kill_controller()
    host.ctl("rollback", "--yes")
    assert host.document("status")["controller"] is not None


def test_apply_killed_at_ten_points_then_completes(host: Ctl) -> None:
    wanted = plan(partition("a", 30, shadow=False), partition("b", 20, shadow=False))
    other = plan(partition("a", 40, shadow=False), partition("c", 20, shadow=False))
    host.apply(wanted)
    with Traffic(host, ["a"], PROTOCOLS, pause_s=0.02) as load:
        for i in range(10):
            target = other if i % 2 == 0 else wanted
            host.cut_short(target, 0.3 + 0.25 * i)
        host.apply(wanted)
    assert load.failed == []
    assert {(s["partition"], s["percent"]) for s in host.servers()} == {("a", 30), ("b", 20)}


@pytest.mark.parametrize(
    ("break_it", "code", "says"),
    [
        ("missing", 2, "echo"),
        ("no config", 2, "config.pbtxt"),
        ("broken config", 2, "config.pbtxt"),
        ("fails to load", 4, "no such engine"),
        ("port taken", 5, "in use"),
    ],
)
def test_what_cannot_be_applied_is_told_and_leaves_nothing(
    host: Ctl, break_it: str, code: int, says: str
) -> None:
    model = host.repository / "echo"
    listener = socket.socket()
    match break_it:
        case "missing":
            shutil.rmtree(model)
        case "no config":
            (model / "config.pbtxt").unlink()
        case "broken config":
            (model / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: eight\n')
        case "fails to load":
            (model / "1" / "model.py").write_text("raise RuntimeError('no such engine')\n")
        case "port taken":
            listener.bind(("127.0.0.1", host.http))
            listener.listen()
    try:
        told = host.apply(plan(partition("a", 30)), exit_code=code)
    finally:
        listener.close()
    assert says in told.stderr
    assert "Traceback" not in told.stderr
    running = [p for p in host.leftovers() if "tritonserver" in p]
    assert running == []
