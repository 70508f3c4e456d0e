"""The walking path as a user walks it: `ctl` in its own process, real Tritons, real HAProxy, real clients."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from ctl_host import ROOT, Host, X, ended, infer_http, partition, plan

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PERF = ROOT / ".tools" / "perf"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with ended(Host(tmp_path, f"e2e{os.getpid()}x{time.monotonic_ns() % 10**6}")) as here:
        yield here


def infer_grpc(client: triton_grpc.InferenceServerClient, endpoint: str) -> None:
    x = triton_grpc.InferInput("X", [1, 4], "FP32")
    x.set_data_from_numpy(X)
    np.testing.assert_array_equal(client.infer(endpoint, [x]).as_numpy("Y"), X)


class Load:
    """Clients over both protocols at about 200 requests a second in all, until told to stop."""

    def __init__(self, host: Host, endpoints: list[str]) -> None:
        self.done = 0
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(host, endpoint, protocol))
            for endpoint in endpoints
            for protocol in ("http", "grpc")
        ]
        self._pause_s = len(self._threads) / 200

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _run(self, host: Host, endpoint: str, protocol: str) -> None:
        if protocol == "http":
            http = triton_http.InferenceServerClient(f"127.0.0.1:{host.http}")
            call = lambda: infer_http(http, endpoint)  # noqa: E731
        else:
            grpc = triton_grpc.InferenceServerClient(f"127.0.0.1:{host.grpc}")
            call = lambda: infer_grpc(grpc, endpoint)  # noqa: E731
        while not self._stop.wait(self._pause_s):
            try:
                call()
                self.done += 1
            except Exception as error:
                self.failed.append(f"{time.time():.3f} {protocol} {endpoint}: {error!r} {error}")


def test_apply_serve_change_redirect_roll_back_destroy(host: Host) -> None:
    first = host.apply(plan(partition("a", 30), partition("b", 30)))
    assert first.returncode == 0, first.stderr
    running = host.servers()
    assert {(s["partition"], s["role"]) for s in running} == {
        (p, r) for p in "ab" for r in ("active", "shadow")
    }
    assert all(s["enforced_by"] for s in running) or os.geteuid() != 0

    again = host.apply(plan(partition("a", 30), partition("b", 30)))
    assert (again.returncode, again.stdout.strip()) == (0, "nothing to do"), again.stderr

    before = {s["http_port"] for s in running if s["partition"] == "b"}
    with Load(host, ["a", "b"]) as load:
        changed = host.apply(plan(partition("a", 40), partition("b", 30)), ports=False)
        assert changed.returncode == 0, changed.stderr
        for _ in range(2):
            turned = host.ctl("redirect", "a")
            assert turned.returncode == 0, turned.stderr
        (row,) = [
            r for r in json.loads(host.ctl("status", "--json").stdout)["guard"] if r["partition"] == "a"
        ]
        assert row["redirect"].endswith(": by hand")
        back = host.ctl("rollback", "--yes")
        assert back.returncode == 0, back.stderr
    assert load.failed == []
    assert load.done > 100
    running = host.servers()
    assert {s["partition"]: s["percent"] for s in running if s["role"] == "active"} == {"a": 30, "b": 30}
    assert {s["http_port"] for s in running if s["partition"] == "b"} == before, "b was not touched"

    renamed = partition("a", 30)
    renamed["workloads"][0]["endpoint"] = "echo"
    refused = host.apply(plan(renamed, partition("b", 30)), ports=False)
    assert refused.returncode == 2
    assert "endpoint a ends, its clients will get 404: workload a gets endpoint echo" in refused.stderr
    assert "--rename-endpoints" in refused.stderr
    assert {s["http_port"] for s in host.servers() if s["partition"] == "b"} == before

    moved = host.apply(plan(partition("a", 30), partition("b", 30)), "--http-port", "1", ports=False)
    assert moved.returncode == 5
    assert "`ctl destroy` the fleet first" in moved.stderr
    told = json.loads(host.ctl("events", "--json").stdout)["events"]
    assert not [e for e in told if e["kind"] == "restart" or "did not end by itself" in e["reason"]]
    by_hand = [e["kind"] for e in told if "by hand" in e["reason"]]
    assert by_hand == ["apply", "apply", "redirect", "redirect", "rollback"]

    ended = host.ctl("destroy", "--yes")
    assert ended.returncode == 0, ended.stderr
    assert host.leftovers() == []
    again = host.ctl("destroy", "--yes")
    assert (again.returncode, "nothing is left of it" in again.stdout) == (0, True), again.stderr
    after = host.ctl("events", "--json")
    assert "was destroyed" in after.stderr
    told = json.loads(after.stdout)["events"]
    assert [e["kind"] for e in told if "by hand" in e["reason"]] == [*by_hand, "destroy"]


def test_a_kill_after_a_plan_that_changes_only_an_slo_is_mended_by_the_same_plan(host: Host) -> None:
    before, after = plan(partition("a", 30)), plan(partition("a", 30))
    after["gpus"][0]["partitions"][0]["workloads"][0]["slo_ms"] = 1500
    assert host.apply(before).returncode == 0
    ports = {s["http_port"] for s in host.servers()}
    changed = host.apply(after, ports=False)
    told = "nothing to do for the servers; changed: a: slo_ms 2000 -> 1500"
    assert (changed.returncode, changed.stdout.strip()) == (0, told), changed.stderr
    assert {s["http_port"] for s in host.servers()} == ports

    host.kill("a", "active")
    host.kill_controller()
    again = host.apply(after, ports=False)
    assert again.returncode == 0, again.stderr
    status = json.loads(host.ctl("status", "--json").stdout)
    assert {(s["role"], s["state"]) for s in status["servers"]} == {
        (role, "running") for role in ("active", "shadow")
    }
    assert status["controller"] is not None
    assert len(ports & {s["http_port"] for s in status["servers"]}) == 1, "the shadow was left as it is"
    infer_http(triton_http.InferenceServerClient(f"127.0.0.1:{host.http}"), "a")
    events = json.loads(host.ctl("events", "--json").stdout)["events"]
    assert not [e for e in events if e["kind"] == "controller" and e["level"] == "warning"]


def test_perf_analyzer_loses_nothing_while_a_share_changes(host: Host) -> None:
    assert host.apply(plan(partition("a", 40, shadow=False))).returncode == 0
    results = {}
    clients = {}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(PERF / "lib")}
    for protocol, port in (("grpc", host.grpc), ("http", host.http)):
        out = host.directory / f"{protocol}.json"
        results[protocol] = out
        clients[protocol] = subprocess.Popen(
            [
                str(PERF / "bin" / "perf_analyzer"),
                "-m",
                "a",
                "-u",
                f"127.0.0.1:{port}",
                "-i",
                protocol,
                "-b",
                "1",
                "--async",
                "--request-rate-range=100",
                "--request-distribution=poisson",
                "-p",
                "3000",
                "-s",
                "999",
                "-r",
                "10",
                "--percentile=99",
                f"--profile-export-file={out}",
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        assert host.apply(plan(partition("a", 50, shadow=False))).returncode == 0
        told = {p: c.communicate(timeout=90)[0] for p, c in clients.items()}
    finally:
        for client in clients.values():
            client.kill()
    for protocol, client in clients.items():
        assert client.returncode == 0, told[protocol]
        requests = json.loads(results[protocol].read_text())["experiments"][0]["requests"]
        assert len(requests) > 200
        assert all(r["response_timestamps"] for r in requests)


def test_apply_killed_at_ten_points_then_completes(host: Host) -> None:
    wanted = plan(partition("a", 30, shadow=False), partition("b", 20, shadow=False))
    other = plan(partition("a", 40, shadow=False), partition("c", 20, shadow=False))
    assert host.apply(wanted).returncode == 0
    with Load(host, ["a"]) as load:
        for i in range(10):
            target = other if i % 2 == 0 else wanted
            killed = subprocess.Popen(
                host.command(*host.apply_command(target)),
                cwd=host.directory,
                env=host.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                killed.wait(timeout=0.3 + 0.25 * i)
            except subprocess.TimeoutExpired:
                killed.send_signal(signal.SIGKILL)
                killed.wait()
        finished = host.apply(wanted)
        assert finished.returncode == 0, finished.stderr
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
    host: Host, break_it: str, code: int, says: str
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
        told = host.apply(plan(partition("a", 30)))
    finally:
        listener.close()
    assert told.returncode == code, told.stderr
    assert says in told.stderr
    assert "Traceback" not in told.stderr
    running = [p for p in host.leftovers() if "tritonserver" in p]
    assert running == []
