"""The steps, in the order of `run`. What one records before it is cut off is kept.

python -m gpu_kit.steps STEP DEVICE FOLDER      prints a line of JSON for each figure
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controlplane.cli import wiring
from controlplane.domain.errors import EngineError, TrisectError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec
from controlplane.domain.serving import LauncherName, Listen, Serving
from controlplane.files.measurements.profiles import read_partial
from controlplane.profiler.colocate import Neighbourhood
from controlplane.profiler.requests import Wishes, read_subject
from controlplane.profiler.temporary import running, to_its_end
from controlplane.runtime.demo.demo import Demo, Scene
from controlplane.runtime.jobs.doctor import examine
from gpu_kit.subject import BATCH, FLEET, MODEL, MODELS, PERCENT, START_S, Quiet, Subject, infer
from launchers.gpu import control, gpus, probe, proof
from launchers.gpu.mps import MpsDaemons

Record = Callable[[str, Any], None]
Step = Callable[[Subject, Record], None]

PERCENTS, BATCHES = (100.0, 50.0, 20.0), (1, 2, 4, 8)
OTHER_USER = 65534
LIMIT_MB, WITHIN_MB, BEYOND_MB = 1024, 256, 2048
COMMANDS = ("get_server_list", "get_default_active_thread_percentage", "ps")


class NotHere(Exception):
    """The step has no meaning on this device."""


def host(on: Subject, record: Record) -> None:
    """The hardware and the software."""
    record(
        "host", {"kernel": platform.release(), "python": platform.python_version(), "cores": os.cpu_count()}
    )
    record("gpus", [asdict(gpu) for gpu in gpus.inventory()])
    if (limits := gpus.limits(on.place.name)) is not None:
        record("driver_limits", asdict(limits))
    if (smi := shutil.which("nvidia-smi")) is not None:
        record("nvidia_smi", subprocess.run([smi], capture_output=True, text=True, timeout=20).stdout)


def doctor(on: Subject, record: Record) -> None:
    """The lines of `ctl doctor`."""
    lines = examine((on.launcher,))
    for one in lines:
        way_out = f"; {one.remedy}" if one.remedy and not one.available else ""
        record(one.name, f"{'yes' if one.available else 'no'}: {one.detail}{way_out}")


def mps(on: Subject, record: Record) -> None:
    """Whether the control program answers: to its daemon's user, to another one, and to root."""
    daemons = MpsDaemons()
    with daemons.starting(_gpu(on)):
        client = daemons.client(_spec(on), start=True)
        pipes = Path(client.pipe_directory)
        record("own_daemon", {question: _asked(pipes, question) for question in COMMANDS})
        if os.getuid() != 0:
            record("other_user", "this user is not root, and can be no other")
        else:
            record("other_user_at_roots_daemon", _asked(pipes, COMMANDS[0], OTHER_USER))
            environment = {**os.environ, **client.environment, "CUDA_VISIBLE_DEVICES": on.place.name}
            command = [sys.executable, "-m", "launchers.gpu.probe"]
            record("other_users_client_at_roots_daemon", _told(command, environment, OTHER_USER))
            with tempfile.TemporaryDirectory(prefix="mps") as folder:
                os.chown(folder, OTHER_USER, OTHER_USER)
                theirs = {**control.environment(Path(folder)), control.LOGS: folder}
                theirs["CUDA_VISIBLE_DEVICES"] = on.place.name
                start = [control.program(), "-d"]
                subprocess.run(start, env=theirs, user=OTHER_USER, group=OTHER_USER, timeout=20, check=False)
                try:
                    record("root_at_other_users_daemon", _asked(Path(folder), COMMANDS[0]))
                    record("other_user_at_own_daemon", _asked(Path(folder), COMMANDS[0], OTHER_USER))
                finally:
                    _asked(Path(folder), "quit", OTHER_USER)
    record("ended", list(daemons.sweep()))


def kernels(on: Subject, record: Record) -> None:
    """How long queued kernels take with 100, 50 and 20 % of the GPU, and without MPS."""
    times = {}
    with _client(on) as environment:
        for percent in PERCENTS:
            times[percent] = probe.measured(environment, percent)
            record(f"round_ms_at_{percent:g}", times[percent])
    record("times_as_long_at_50", times[50.0] / times[100.0])
    record("times_as_long_at_20", times[20.0] / times[100.0])
    record("verdict", probe.verdict(times[50.0], times[100.0])[1])
    plain = {name: value for name, value in environment.items() if not name.startswith("CUDA_MPS_")}
    plain[control.PIPES] = "/nonexistent"
    record("round_ms_without_mps", probe.measured(plain, 100.0))


def profile(on: Subject, record: Record) -> None:
    """The model through Triton at 12 points: do its shares bite, and how long does a batch take."""
    wishes = Wishes(PERCENTS[1:] if on.short else PERCENTS, (1, BATCH) if on.short else BATCHES)
    subject = read_subject(MODELS, MODEL, on.place.device, wishes)
    profiler = on.profiler()
    try:
        measured = profiler.measure(subject, on.place, resume=False).profile
    except BaseException:  # as where the step is cut off
        if (partial := read_partial(profiler.profiles, on.place.device.name, MODEL)) is not None:
            record("points", [asdict(point) for point in partial.points])
        raise
    record("environment", asdict(measured.environment))
    record("memory_mb", measured.memory_mb)
    record("points", [asdict(point) for point in measured.points])
    times = {(p.percent, p.batch): p.execution_ms for p in measured.points}
    largest = max(batch for _, batch in times)
    for percent in sorted({percent for percent, _ in times}):
        record(f"times_as_long_at_{percent:g}", times[percent, largest] / times[max(times)[0], largest])


def serve(on: Subject, record: Record) -> None:
    """A plan served through the gateway, a batch changed, a server slowed down, and its redirect."""
    with ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        http, grpc, metrics = (one.getsockname()[1] for one in free)
    scene = Scene(
        spec=MODELS.parent / "demo.yaml",
        repository=MODELS,
        output=on.folder / "rendered",
        scratch=on.folder / "scratch",
        section=Serving(listen=Listen("127.0.0.1", http, grpc, metrics)),
        slowed_by_request=True,
        closed_loop_s=1.0 if on.short else 6.0,
        poisson_s=3.0 if on.short else 15.0,
    )
    fleet = wiring.fleet(FLEET, launcher_name=LauncherName.PROCESS)
    demo = Demo(scene, fleet, on.place, Quiet(), lambda line: print(line, file=sys.stderr))
    plan, points = on.plan(BATCH), on.earlier.get("profile", {}).get("points", [])
    known = [p["execution_ms"] for p in points if (p["percent"], p["batch"]) == (PERCENT, BATCH)]
    try:
        demo.apply(plan)
        before = on.launcher.servers(FLEET)
        demo.apply(on.plan(BATCH // 2))
        after = on.launcher.servers(FLEET)
        same = {one.id for one in before} == {one.id for one in after}
        record("batch_changed_live", {"same_servers": same, "batches": [one.spec.batches for one in after]})
        demo.apply(plan)
        rows = demo.measure(plan, {(MODEL, MODEL): known[0] if known else 0.0})
        record("workloads", [asdict(row) for row in rows])
        repair = demo.violate(plan, rows)
        record("repair", asdict(repair))
        lost = sum(row.failed for row in rows) + sum(span.failed for span in repair.spans)
        record("requests_lost", lost)
    finally:
        to_its_end(demo.destroy)


def neighbours(on: Subject, record: Record) -> None:
    """Two servers busy at once, for the interference."""
    subject = read_subject(MODELS, MODEL, on.place.device, Wishes())
    found = Neighbourhood(on.profiler(), on.place).measure([subject], budget_s=1.0 if on.short else 40.0)
    record("points", [asdict(point) for point in found[MODEL]])


def memory(on: Subject, record: Record) -> None:
    """Whether the limit on a process's memory holds, and how many processes of a server have it."""
    _gpu(on)
    with running_one(on, "within", hold_mb=WITHIN_MB, limit_mb=LIMIT_MB) as server:
        infer(server)
        usage = on.launcher.usage(server)
        record("within_the_limit", {"memory_mb": usage.memory_mb, "memory_by": usage.memory_by})
        record(
            "clients_of_mps", len(proof.clients_of(on.place.name, MpsDaemons().pipes(on.place.name)).clients)
        )
    try:
        with running_one(on, "beyond", hold_mb=BEYOND_MB, limit_mb=LIMIT_MB):
            record("beyond_the_limit", "not refused")
    except EngineError as error:
        record("beyond_the_limit", f"refused: {error}")


def crash(on: Subject, record: Record) -> None:
    """A fatal exception of one client: what becomes of the others, and how soon the GPU serves again."""
    pipes, events = MpsDaemons().pipes(_gpu(on)), gpus.XidEvents()
    with ExitStack() as stack:
        stack.callback(events.close)
        first, second = (stack.enter_context(running_one(on, name)) for name in ("crashes", "beside"))
        infer(second)
        events.take([on.place.name])
        record("crashed", _outcome(first, fault="1"))
        record("beside_it", [_outcome(second) for _ in range(3)])
        record("mps_server", {q: _asked(pipes, q) for q in _status_commands(pipes)})
        record("fault_seen", control.FAULT in control.state(pipes))
        record("xids", [xid for _, xid in events.take([on.place.name])])
        record(
            "servers", [{"name": s.name, "state": s.state, "end": s.end} for s in on.launcher.servers(FLEET)]
        )
    began = time.monotonic()
    with running_one(on, "after") as server:
        infer(server)
        record("serves_again_s", time.monotonic() - began)


def torch(on: Subject, record: Record) -> None:
    """ResNet-50 and BERT-base with 100, 50 and 20 %, where a Python of the host has PyTorch."""
    python = os.environ.get("HOST_PYTHON") or sys.executable
    with _client(on) as environment:
        libraries = os.environ.get("HOST_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
        environment["LD_LIBRARY_PATH"] = libraries  # without the kit's
        for percent in PERCENTS:
            told = subprocess.run(
                [python, str(Path(__file__).with_name("torch_models.py"))],
                env={**environment, control.PERCENTAGE: f"{percent:g}"},
                capture_output=True,
                text=True,
                check=False,
            )
            if told.returncode == 3:
                raise NotHere(told.stderr.strip())
            if told.returncode != 0:
                raise EngineError(told.stderr[-2000:])
            record(f"ms_at_{percent:g}", json.loads(told.stdout))


def clean(on: Subject, record: Record) -> None:
    """End what a step that was cut off has left."""
    with suppress(TrisectError):
        fleet = wiring.fleet_to_end(FLEET)
        if fleet is not None:
            fleet.destroy()
    for name in (FLEET, on.profiler().fleet(on.place)):
        for server in on.launcher.servers(name):
            on.launcher.stop(server, drain_s=0)
        record("swept", list(on.launcher.sweep(name)))


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (host, doctor, mps, kernels, profile, serve, neighbours, memory, crash, torch, clean)
}


def running_one(on: Subject, name: str, *, hold_mb: int = 0, limit_mb: float | None = None) -> Any:
    """Return a context with a server of 30 % of the device."""
    return running(on.launcher, on.spec(name, 30.0, hold_mb=hold_mb, limit_mb=limit_mb), deadline_s=START_S)


@contextmanager
def _client(on: Subject) -> Iterator[dict[str, str]]:
    """Yield the environment of a client of the GPU's MPS daemon, which ends afterwards."""
    daemons = MpsDaemons()
    try:
        with daemons.starting(_gpu(on)):
            client = daemons.client(_spec(on), start=True)
            daemons.await_server(client, os.getuid())
            yield {**os.environ, **client.environment, "CUDA_VISIBLE_DEVICES": on.place.name}
    finally:
        daemons.sweep()


def _gpu(on: Subject) -> str:
    if not on.on_gpu:
        raise NotHere("needs a GPU")
    return on.place.name


def _spec(on: Subject) -> ServerSpec:
    labels = Labels(FLEET, "kit", "probe", Role.PROFILE, "probe")
    return ServerSpec(labels, "/", (MODEL,), on.place.name, 100.0)


def _status_commands(pipes: Path) -> list[str]:
    return [*COMMANDS, *(f"get_server_status {server}" for server in control.servers(pipes) or ())]


def _asked(pipes: Path, question: str, user: int | None = None) -> str:
    """Return what the control program answers a user, or how it fails."""
    return _told([control.program()], control.environment(pipes), user, f"{question}\n")


def _told(command: list[str], environment: dict[str, str], user: int | None, question: str = "") -> str:
    try:
        told = subprocess.run(
            command,
            input=question,
            env=environment,
            user=user,
            capture_output=True,
            text=True,
            timeout=2 * control.ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no answer: {error}"
    words = (told.stdout + told.stderr).strip()
    return (words or "nothing") if told.returncode == 0 else f"exit code {told.returncode}: {words}"


def _outcome(server: Server, **parameters: str) -> str:
    try:
        infer(server, **parameters)
    except EngineError as error:
        return f"failed: {error}"
    return "answered"


def main() -> int:
    """Run one step; exit code 3 where it has no meaning on this device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("device")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--earlier", type=Path, required=True)
    given = parser.parse_args()
    # A step that is cut off ends its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    out = sys.stdout

    def record(name: str, value: Any) -> None:
        print(json.dumps([name, value], default=str), file=out, flush=True)

    try:
        earlier = json.loads(given.earlier.read_text())
        STEPS[given.step](Subject.of(given.device, given.folder, given.short, earlier), record)
    except NotHere as reason:
        print(reason, file=sys.stderr)
        return 3
    except TrisectError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
