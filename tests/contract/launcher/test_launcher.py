"""What every launcher promises, shown with real Tritons."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from background import until
from direct import call, get
from launcher_rig import BROKEN, HANGING, MODEL, Fleet, engines, infer

from controlplane.domain.errors import EngineError, InputError, LaunchTimeout
from controlplane.domain.fleet import Role, Server, ServerState, ShareUsage, socket_path
from controlplane.domain.observation import Health, News
from controlplane.ports import Watch
from controlplane.triton.client import load, unload
from launchers.cpu_quota.counters import group_paths, mount_points
from launchers.host import process_table
from launchers.triton import labels

ON_THIS_HOST = pytest.mark.parametrize("engine", engines("process", "docker"), indirect=True)


def test_a_started_server_answers_as_itself_with_every_model_ready(fleet: Fleet) -> None:
    server = fleet.start(fleet.spec(percent=50))
    assert get(server, "/v2")["name"] == server.name == f"{fleet.name}.p.active.rev1"
    assert infer(server) == [0.0, 0.0]
    assert len({server.http_port, server.grpc_port, server.metrics_port}) == 3
    assert server.state is ServerState.RUNNING


@pytest.mark.parametrize("engine", engines("process", "docker", "cluster"), indirect=True)
def test_no_other_user_reads_a_servers_shared_memory(fleet: Fleet) -> None:
    """A client's input passes through it."""
    server = fleet.start(fleet.spec())
    assert infer(server) == [0.0, 0.0]
    prefix = labels.memory_prefix(server.spec)
    own = Path(f"/proc/{fleet.engine.pid(server)}/root/dev/shm")
    (region,) = own.glob(f"{prefix}*")
    places = f"/dev/shm/{prefix}* {region}"
    other = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"]
    told = subprocess.run([*other, "sh", "-c", f"cat {places}"], capture_output=True, check=False, timeout=30)
    assert told.stdout == b""


WAITING = MODEL.replace(
    "        pass\n",
    "        while not os.path.exists(args['model_repository'] + '/go'):\n            time.sleep(0.01)\n",
    1,
).replace("import time\n", "import os\nimport time\n", 1)


def cpu_weight(pid: int) -> int:
    """The weight of a process's group, by either version of cgroups."""
    for controllers, path in group_paths(pid):
        places = mount_points("cgroup2") if controllers == [""] else mount_points("cgroup", "cpu")
        for place in places if controllers == [""] or "cpu" in controllers else ():
            for file in (place / path / "cpu.weight", place / path / "cpu.shares"):
                if file.exists():
                    return int(file.read_text())
    raise AssertionError(f"process {pid} has no weight")


@ON_THIS_HOST
def test_a_start_gives_way_to_the_servers_that_are_ready_until_requests_wait_for_it(fleet: Fleet) -> None:
    neighbour = fleet.start(fleet.spec("neighbour"))
    full = cpu_weight(fleet.engine.pid(neighbour))
    spec, awaited = fleet.spec("late", source=WAITING), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(fleet.start, spec, gives_way=lambda: not awaited.is_set())
        try:
            until(lambda: starting.done() or len(fleet.launcher.servers(fleet.name)) == 2)
            (listed,) = [s for s in fleet.launcher.servers(fleet.name) if s.name == spec.name]
            until(lambda: fleet.engine.pid(listed) > 0)
            assert cpu_weight(fleet.engine.pid(listed)) * 10 < full
            awaited.set()
            until(lambda: cpu_weight(fleet.engine.pid(listed)) == full)
        finally:
            (Path(spec.repository) / "spin" / "go").touch()
        server = starting.result()
    assert cpu_weight(fleet.engine.pid(server)) == full


def test_starting_it_again_returns_the_one_that_runs(fleet: Fleet) -> None:
    spec = fleet.spec()
    first = fleet.start(spec)
    assert fleet.start(spec) == first
    assert fleet.engine.launcher().start(spec, deadline_s=30) == first
    # A path is not part of what runs: an equal repository may lie elsewhere by now.
    assert fleet.start(dataclasses.replace(spec, repository="/rendered/anew")) == first
    with pytest.raises(InputError, match="already runs with"):
        fleet.start(dataclasses.replace(spec, percent=20.0))


def test_two_who_start_one_name_at_once_get_one_server(fleet: Fleet) -> None:
    spec = fleet.spec()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: fleet.start(spec), range(2))
    assert first == second
    assert len(fleet.launcher.servers(fleet.name)) == 1


def test_a_new_program_finds_what_runs_with_all_its_labels(fleet: Fleet) -> None:
    started = [fleet.start(fleet.spec("a", percent=40)), fleet.start(fleet.spec("b", role=Role.SHADOW))]
    assert fleet.engine.launcher().servers(fleet.name) == tuple(started)
    assert fleet.engine.launcher().servers(fleet.name + "x") == ()
    assert fleet.engine.launcher().servers(fleet.name[:-1]) == ()


def test_stop_lets_requests_in_flight_finish(fleet: Fleet) -> None:
    server = fleet.start(fleet.spec())
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(infer, server, sleep_s=0.75) for _ in range(3)]
        # And one runs. A Triton that is told to stop refuses what it has not taken in yet.
        until(lambda: queued(server) == 2 or all(a.done() for a in answers))
        fleet.launcher.stop(server, drain_s=30)
        assert [a.result() for a in answers] == [[0.75, 0.0]] * 3
    assert fleet.launcher.servers(fleet.name) == ()
    assert fleet.leftovers() == []
    fleet.launcher.stop(server, drain_s=30)


def test_stop_without_time_to_drain_ends_it_at_once(fleet: Fleet) -> None:
    server = fleet.start(fleet.spec())
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(infer, server, sleep_s=30)
        await_connected(server)
        fleet.launcher.stop(server, drain_s=0)
        assert lost.exception(timeout=30) is not None
    assert fleet.leftovers() == []


def await_connected(server: Server) -> None:
    """Until somebody is connected: a request is on the way to the model."""
    until(lambda: connections(server) > 0)
    time.sleep(0.1)


def queued(server: Server) -> int:
    """How many requests wait in the model's queue; none before Triton's last socket, the metrics'."""
    try:
        lines = call(server, "GET", "/metrics", port=server.metrics_port)[1].decode().splitlines()
    except FileNotFoundError:
        return 0
    (line,) = [line for line in lines if line.startswith("nv_inference_pending_request_count{")]
    return int(float(line.split()[-1]))


def connections(server: Server) -> int:
    if (path := socket_path(server.host, server.http_port)) is not None:
        # Those that are connected have the listener's name.
        open_ = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
        return sum(1 for fields in open_ if fields[5] == "03" and fields[-1] == path)
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    address = "".join(f"{int(byte):02X}" for byte in reversed(server.host.split(".")))
    # The client's end: a pod's own is in another network.
    return sum(1 for f in fields if f[2] == f"{address}:{server.http_port:04X}" and f[3] == "01")


def test_a_model_that_fails_to_load_is_told_in_its_own_words(fleet: Fleet) -> None:
    spec = fleet.spec(source=BROKEN)
    with pytest.raises(EngineError, match="the weights are not here"):
        fleet.start(spec)
    assert fleet.launcher.servers(fleet.name) == ()
    assert fleet.leftovers() == []


def test_a_model_that_hangs_in_loading_meets_the_deadline(fleet: Fleet) -> None:
    with pytest.raises(LaunchTimeout, match="not ready after"):
        fleet.start(fleet.spec(source=HANGING), deadline_s=3)
    assert fleet.launcher.servers(fleet.name) == ()
    assert fleet.leftovers() == []


def test_a_killed_server_is_started_again_and_its_neighbour_does_not_notice(fleet: Fleet) -> None:
    spec = fleet.spec()
    other = fleet.start(fleet.spec("other"))
    killed = fleet.start(spec)
    fleet.engine.kill(killed)
    assert other in fleet.launcher.servers(fleet.name)
    fleet.launcher.sweep(fleet.name)
    assert infer(other) == [0.0, 0.0]
    again = fleet.start(spec)
    assert infer(again) == [0.0, 0.0]
    # A late stop of the killed server does not end its successor, unless the engine restarted the killed one.
    if again.id != killed.id:
        fleet.launcher.stop(killed, drain_s=0)
        assert infer(again) == [0.0, 0.0]


def test_a_share_is_held_under_load(fleet: Fleet) -> None:
    assert fleet.launcher.enforcement() is not None
    server = fleet.start(fleet.spec(percent=25))
    assert server.enforced_by == fleet.launcher.enforcement()
    halt = threading.Event()

    def load() -> None:
        while not halt.is_set():
            infer(server, burn_s=0.05)

    with ThreadPoolExecutor(2) as pool:
        loading = [pool.submit(load) for _ in range(2)]
        try:
            infer(server, burn_s=0.05)
            # By a clock that covers more than the counters do: an engine may be slow to tell them.
            start, before = time.monotonic(), fleet.engine.usage(server)
            time.sleep(2.0)
            # What holds it may have stood still itself: of all the time since, that becomes less and less.
            while (used := part_of_a_core(before, after := fleet.engine.usage(server), start)) >= 0.32:
                assert time.monotonic() < start + 30, f"{used:.0%} of a core with a share of 25 %"
                time.sleep(0.2)
        finally:
            halt.set()
        for each in loading:
            each.result()
    assert used > 0.05
    assert before.throttled_periods is not None
    assert after.throttled_periods is not None
    assert after.throttled_periods > before.throttled_periods


def part_of_a_core(before: ShareUsage, after: ShareUsage, since_s: float) -> float:
    """Taken between two readings, of which the first came after `since_s`."""
    wall = time.monotonic() - since_s
    assert before.cpu_seconds is not None
    assert after.cpu_seconds is not None
    return (after.cpu_seconds - before.cpu_seconds) / wall


def test_eight_start_side_by_side(fleet: Fleet) -> None:
    specs = [fleet.spec(f"p{i}", percent=20, device="cpu-0") for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        servers = list(pool.map(fleet.start, specs))
    assert fleet.launcher.servers(fleet.name) == tuple(servers)
    assert len({server.host for server in servers}) == 8
    assert [get(s, "/v2")["name"] for s in servers] == [s.name for s in specs]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda s: fleet.launcher.stop(s, drain_s=10), servers))
    assert fleet.leftovers() == []


@pytest.mark.parametrize("device", ["cpu-4096", "tpu-0", "cpu-"])
def test_a_device_this_host_does_not_have(fleet: Fleet, device: str) -> None:
    with pytest.raises(InputError, match="device"):
        fleet.start(fleet.spec(device=device))
    assert fleet.leftovers() == []


def heard(watch: Watch, *servers: Server) -> tuple[News, ...]:
    """What a watch tells of these servers, once it tells anything."""
    return until(lambda: watch.news(servers), 30.0, "nothing was heard")


def test_a_death_is_heard_at_once_and_told_once(fleet: Fleet) -> None:
    one, other = fleet.start(fleet.spec("one")), fleet.start(fleet.spec("other"))
    with contextlib.closing(fleet.launcher.watch(fleet.name)) as watch:
        assert watch.news((one, other)) == ()
        fleet.engine.kill(one)
        (news,) = heard(watch, one, other)
        assert news.servers == (one.name,)
        assert "ended" in news.reason
        assert news.device is None
        assert watch.news((one, other)) == ()
        fleet.launcher.stop(other, drain_s=0)
        assert watch.news(()) == (), "what nobody asks about is no news"


@ON_THIS_HOST
def test_a_models_process_that_dies_is_heard_and_one_that_is_unloaded_is_not(fleet: Fleet) -> None:
    server = fleet.start(dataclasses.replace(fleet.spec(), reloads=True))
    triton = fleet.engine.pid(server)

    def models() -> list[int]:
        processes = process_table.server_processes({triton: server.name})
        return [process.pid for process in processes if process.pid != triton]

    with contextlib.closing(fleet.launcher.watch(fleet.name)) as watch:
        assert fleet.launcher.servers(fleet.name) == (server,)
        assert watch.news((server,)) == ()
        (endpoint,) = server.spec.endpoints
        unload(server, endpoint, deadline_s=30.0)
        load(server, endpoint, deadline_s=30.0)
        assert watch.news((server,)) == ()
        until(lambda: len(models()) == 1)
        fleet.launcher.servers(fleet.name)
        assert watch.news((server,)) == ()
        os.kill(models()[0], signal.SIGKILL)
        assert [(n.servers, n.health) for n in heard(watch, server)] == [((server.name,), Health.IMPAIRED)]
        assert watch.news((server,)) == ()


def test_a_server_that_another_program_ends_serves_on_and_says_so(fleet: Fleet) -> None:
    server = fleet.start(fleet.spec())
    with contextlib.closing(fleet.launcher.watch(fleet.name)) as watch:
        assert watch.news((server,)) == ()
        fleet.engine.end(server)

        def says_so() -> bool:
            (listed,) = fleet.launcher.servers(fleet.name)
            assert listed.state is ServerState.RUNNING
            return listed.end is not None or [n.health for n in watch.news((server,))] == [Health.ENDING]

        until(says_so)
        assert infer(server) == [0.0, 0.0]
        fleet.launcher.stop(server, drain_s=30)
    assert fleet.leftovers() == []


def test_a_share_changes_in_a_running_server(fleet: Fleet) -> None:
    server = fleet.start(fleet.spec(percent=80))
    resized = threading.Event()

    def ask() -> list[list[float]]:
        answers = []
        while not resized.is_set():
            answers.append(infer(server, sleep_s=0.2))
        return answers

    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(ask)
        try:
            await_connected(server)
            fleet.launcher.resize(server, 20)
        finally:
            resized.set()
        assert all(answer == [pytest.approx(0.2), 0.0] for answer in under_way.result())
    assert fleet.launcher.servers(fleet.name) == (server,)
    start, before = time.monotonic(), fleet.engine.usage(server)
    infer(server, burn_s=0.3)
    used = part_of_a_core(before, fleet.engine.usage(server), start)
    assert used < 0.28, f"{used:.0%} of a core with a share of 20 %"
