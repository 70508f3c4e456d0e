"""Measuring on real Tritons started by the real launcher."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_triton import ROOT, bare_triton
from model_files import write
from open_load import open_loop

from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.errors import EngineError, RequestRefused
from controlplane.files.measurements.profiles import partial_path, read_partial, read_profiles, write_profile
from controlplane.profiler.colocate import Neighbourhood
from controlplane.profiler.load import ClosedLoop
from controlplane.profiler.requests import Subject, Wishes, read_subject, requests_for
from controlplane.profiler.session import Place, Profiler
from controlplane.render.source import read_source
from controlplane.runtime import SystemClock
from launchers.process import ProcessLauncher

REPOSITORY = ROOT / "model_repository"
PLACE = Place(Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID), "cpu-0")
FEW = Wishes(percents=[50, 100], batches=[1, 4], budget_s=10)


class Steps:
    """Progress that remembers, and interrupts before a chosen step."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.done: list[int] = []
        self._interrupt_at = interrupt_at

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        self.done.append(done)
        if self._interrupt_at is not None and done >= self._interrupt_at:
            raise KeyboardInterrupt


@pytest.fixture(scope="module", autouse=True)
def _models() -> None:
    subprocess.run([sys.executable, REPOSITORY / "make.py", "transformer_tiny"], check=True)


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessLauncher]:
    monkeypatch.setenv("TRISECT_TRITON_HOME", str(ROOT / ".tools" / "triton"))
    return ProcessLauncher(tmp_path / "state")


def few() -> Subject:
    return read_subject(REPOSITORY, "transformer_tiny", PLACE.device, FEW)


def profiler(tmp_path: Path, launcher: ProcessLauncher, steps: Steps) -> Profiler:
    return Profiler(launcher, SystemClock(), steps, tmp_path / "profiles", tmp_path / "scratch")


def test_a_model_is_measured_point_by_point_and_goes_on_after_an_interrupt(
    tmp_path: Path, launcher: ProcessLauncher
) -> None:
    interrupted = profiler(tmp_path, launcher, Steps(interrupt_at=3))
    with pytest.raises(KeyboardInterrupt):
        interrupted.measure(few(), PLACE)
    assert launcher.servers(interrupted.fleet(PLACE)) == ()
    partial = read_partial(tmp_path / "profiles", "cpu", "transformer_tiny")
    assert partial is not None
    assert len(partial.points) == 3

    steps = Steps()
    measured = profiler(tmp_path, launcher, steps).measure(few(), PLACE).profile
    assert steps.done[0] == 3
    assert steps.done[-1] == 4
    assert {(p.percent, p.batch) for p in measured.points} == {(50, 1), (50, 4), (100, 1), (100, 4)}
    assert set(partial.points) < set(measured.points)
    time_ms = {(p.percent, p.batch): p.execution_ms for p in measured.points}
    # Points are short and their times are means: a moment in which the host stood still spoils one of them.
    assert any(time_ms[percent, 4] > time_ms[percent, 1] for percent in (50, 100)), measured.points
    # Where others keep the host busy nobody has a whole core, and the profile says so.
    busy = max(p.host_busy or 0.0 for p in measured.points)
    slower = any(time_ms[50, batch] > time_ms[100, batch] for batch in (1, 4))
    assert slower or busy > 0.25, measured.points
    for point in measured.points:
        assert point.n is not None
        assert point.capacity_rps is not None
        # Batches run back to back: their rate is nearly the inverse of their time.
        assert point.capacity_rps < 1.2 * 1000 * point.batch / point.execution_ms
    assert measured.jitter is not None
    assert measured.frontend_ms is not None
    assert measured.request_ms is not None
    assert (measured.memory_mb or 0) > 20
    assert measured.environment.triton == "2.51.0"
    assert measured.max_batch == 32
    if launcher.enforcement() in {"cgroup-v1", "cgroup-v2"}:
        halved = [p.throttled for p in measured.points if p.percent == 50]
        assert None not in halved
        assert max(halved) > 0.3 or busy > 0.25, measured.points

    write_profile(tmp_path / "profiles", measured)
    assert not partial_path(tmp_path / "profiles", "cpu", "transformer_tiny").exists()
    assert read_profiles(tmp_path / "profiles", "cpu") == {"transformer_tiny": measured}


SLEEPY = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.broken = args["model_name"].endswith(".b2")

    def execute(self, requests):
        time.sleep(0.5)
        given = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        if self.broken:
            return [pb_utils.InferenceResponse([], pb_utils.TritonError("not two")) for _ in given]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in given]
"""


def test_a_slow_model_is_measured_at_fewer_points_and_keeps_them_beside_one_that_fails(
    tmp_path: Path, launcher: ProcessLauncher
) -> None:
    tensor = "[ { name: '%s', data_type: TYPE_FP32, dims: [ 1 ] } ]"
    config = f"backend: 'python' max_batch_size: 4 input {tensor % 'X'} output {tensor % 'Y'}"
    folder = write(tmp_path / "models", "sleepy", SLEEPY, config)
    steps = Steps()
    measuring = profiler(tmp_path, launcher, steps)
    slow = measuring.measure(read_subject(folder.parent, "sleepy", PLACE.device, Wishes(budget_s=5)), PLACE)
    assert {(p.percent, p.batch) for p in slow.profile.points} == {(20, 1), (60, 1), (100, 1)}
    assert all(p.execution_ms > 490 for p in slow.profile.points)
    chosen = Wishes(percents=[100], batches=[1, 2, 4], budget_s=5)
    some = measuring.measure(read_subject(folder.parent, "sleepy", PLACE.device, chosen), PLACE, resume=False)
    assert {p.batch for p in some.profile.points} == {1, 4}
    assert [(p.batch, "not two" in some.reason) for p in some.missing] == [(2, True)]
    assert launcher.servers(measuring.fleet(PLACE)) == ()


def test_one_program_at_a_time_measures_on_a_device(tmp_path: Path, launcher: ProcessLauncher) -> None:
    one = profiler(tmp_path, launcher, Steps())
    with one.exclusive(PLACE), pytest.raises(EngineError, match="another program is measuring on cpu-0"):
        profiler(tmp_path, launcher, Steps()).measure(few(), PLACE)


def test_models_are_measured_beside_each_other_while_all_are_busy(
    tmp_path: Path, launcher: ProcessLauncher
) -> None:
    steps = Steps()
    measuring = profiler(tmp_path, launcher, steps)
    found = Neighbourhood(measuring, PLACE).measure([few()], budget_s=1)
    # The time is up after the first group: a pair of itself, two batches each.
    assert len(steps.done) == 1
    points = found["transformer_tiny"]
    assert {(p.batch, p.neighbours[0].batch) for p in points} == {(3, 3), (3, 10), (10, 3), (10, 10)}
    assert {(p.percent, p.neighbours[0].model, p.neighbours[0].percent) for p in points} == {
        (50, "transformer_tiny", 50)
    }
    # A moment in which the host stood still makes one of two longer.
    small_ms, large_ms = ([p.execution_ms for p in points if p.batch == batch] for batch in (3, 10))
    assert min(large_ms) > 1.5 * min(small_ms)
    assert launcher.servers(measuring.fleet(PLACE)) == ()


def test_loads_end_with_every_answer_or_with_the_servers_words(tmp_path: Path) -> None:
    source = read_source(REPOSITORY, "transformer_tiny")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / source.name).symlink_to(source.directory)
    request = requests_for(source)[0]
    request.model_name = source.name
    body = request.SerializeToString()
    with bare_triton(tmp_path / "models", tmp_path / "log") as triton:
        with ClosedLoop(triton.grpc, [body], 3) as loop:
            loop.wait_for(30, deadline_s=20)
        assert loop.answered >= 30
        assert (loop.answers(10).latency_ms > 0).all()
        answers = open_loop(triton.grpc, body, [0.0, 0.05, 0.05, 0.1], deadline_s=20)
        assert answers.ended_s.size == 4
        request.model_name = "nobody"
        unknown = request.SerializeToString()
        with (
            pytest.raises(RequestRefused, match="unknown model: 'nobody'"),
            ClosedLoop(triton.grpc, [unknown], 2) as loop,
        ):
            loop.wait_for(1, deadline_s=20)
        with pytest.raises(EngineError, match=r"2 of 2 requests failed: .*unknown model"):
            open_loop(triton.grpc, unknown, [0.0, 0.0], deadline_s=20)
