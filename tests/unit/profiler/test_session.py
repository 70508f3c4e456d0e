"""Which points of a model are measured, in which order, and what is left of a measurement that fails."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import pytest

from controlplane.domain.device import CPU_GRID, Device, DeviceReading, ShareKind
from controlplane.domain.errors import EngineError, LaunchTimeout, NotNow, RequestRefused
from controlplane.domain.profile import Measurement
from controlplane.files.measurements.profiles import read_partial
from controlplane.profiler import session
from controlplane.profiler.point import Lone, Watched
from controlplane.profiler.requests import Subject, Wishes, read_subject
from controlplane.profiler.session import Measured, Place, Profiler
from controlplane.profiler.sweep import Effort, Point, Trust

PLACE = Place(Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID), "cpu-0")
TENSOR = '[ { name: "X", data_type: TYPE_FP32, dims: [ 4 ] } ]'
CONFIG = f'backend: "b"\nmax_batch_size: 8\ninput {TENSOR}\noutput {TENSOR}\n'


@dataclass
class Host:
    """A model's servers, a clock that they move, and the progress that is shown.

    An inference takes `single_s` on the whole device; `fails` are by point, or by share where no server
    starts; a start takes `start_s`.
    """

    single_s: float
    fails: dict[Point | float, EngineError] = field(default_factory=dict)
    start_s: float = 0.0
    now_s: float = 0.0
    measured: list[Point] = field(default_factory=list)
    shown: list[tuple[int, int, float | None]] = field(default_factory=list)
    shown_at_s: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    def reading(self, device: str) -> DeviceReading:
        return DeviceReading()

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        self.shown.append((done, total, seconds_left))
        self.shown_at_s.append(self.now_s)


@dataclass
class FakeBench:
    """A server of a share under measurement."""

    percent: float
    host: Host
    clock: Host

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def version(self) -> str:
        return "2.51.0"

    def memory_mb(self) -> float:
        return 100.0 + 10.0 * max((point.batch for point in self.host.measured), default=1)

    def request_ms(self, *_: object) -> float:
        return 0.1

    def lone(self, *_: object) -> Lone:
        self.host.now_s += 3 * self.host.single_s * 100.0 / self.percent
        return Lone(self.host.single_s * 100.0 / self.percent, 0.5, None)

    def saturate(self, endpoint: str, traffic: object, batch: int, seconds: float, own: Effort) -> Watched:
        point = Point(self.percent, batch)
        if point in self.host.fails:
            raise self.host.fails[point]
        self.host.measured.append(point)
        batch_s = self.host.single_s * batch * 100.0 / self.percent
        self.host.now_s += max(seconds, 5 * batch_s)
        return Watched(Measurement(self.percent, batch, 1000.0 * batch_s, std_ms=1.0), Trust(1.0, 1.0))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


@pytest.fixture(autouse=True)
def _servers(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def serving(
        self: Profiler, source: object, place: Place, percent: float, batches: object
    ) -> Iterator[float]:
        host = cast(Host, self.launcher)
        if percent in host.fails:
            raise host.fails[percent]
        host.now_s += host.start_s
        yield percent

    monkeypatch.setattr(Profiler, "serving", serving)
    monkeypatch.setattr(Profiler, "exclusive", lambda self, place: contextlib.nullcontext())
    monkeypatch.setattr(session, "Bench", FakeBench)


def subject(repository: Path, wishes: Wishes | None = None) -> Subject:
    return read_subject(repository, "m", PLACE.device, wishes or Wishes())


def measure(host: Host, repository: Path, wishes: Wishes | None = None) -> Measured:
    every: Any = host
    profiler = Profiler(every, every, every, repository.parent / "profiles", repository.parent / "scratch")
    return profiler.measure(subject(repository, wishes), PLACE)


def points(measured: Measured) -> set[Point]:
    return {Point(p.percent, p.batch) for p in measured.profile.points}


def in_order(points: Sequence[Point]) -> list[float]:
    return list(dict.fromkeys(p.percent for p in points))


def test_a_quick_model_is_measured_at_every_point(repository: Path) -> None:
    host = Host(0.002)
    assert points(measure(host, repository)) == set(subject(repository).points)
    assert in_order(host.measured) == [100.0, 20.0, 60.0]
    assert host.now_s < 40.0


def test_memory_is_read_after_a_single_request_and_after_the_largest_batch(repository: Path) -> None:
    profile = measure(Host(0.002), repository).profile
    largest = max(point.batch for point in profile.points)
    assert profile.memory_by_batch == {1: 110.0, largest: 100.0 + 10.0 * largest}
    assert profile.memory_mb == profile.memory_by_batch[largest]
    assert profile.memory_law == (100.0, 10.0)


@pytest.mark.parametrize("single_s", [0.3, 1.0, 3.0, 20.0])
def test_a_slow_model_is_measured_at_fewer_points_and_at_both_ends_of_the_shares(
    repository: Path, single_s: float
) -> None:
    host = Host(single_s)
    measured = measure(host, repository)
    assert 3 <= len(measured.profile.points) < 11
    assert {p.percent for p in measured.profile.points} == {20.0, 60.0, 100.0}
    assert measured.missing == ()
    # Three shares of one batch are the least that tells how the share counts.
    assert host.now_s < max(120.0, 60.0 * single_s)


def test_the_points_that_a_user_names_are_measured(repository: Path) -> None:
    host = Host(3.0)
    measured = measure(host, repository, Wishes([50.0, 100.0], [1, 2], budget_s=5.0))
    assert points(measured) == {Point(p, b) for p in (50.0, 100.0) for b in (1, 2)}
    assert host.now_s < 200.0


def test_the_time_left_is_told_from_the_start_and_falls(repository: Path) -> None:
    host = Host(1.0)
    measure(host, repository)
    lefts = [left for _, _, left in host.shown]
    assert None not in lefts
    assert lefts[0] > 0.0
    known = lefts[1:]  # from the first answers on
    assert known == sorted(known, reverse=True)
    assert known[-1] == 0.0
    assert host.shown[-1][0] == host.shown[-1][1]


def test_the_time_left_follows_a_host_whose_starts_take_long(repository: Path) -> None:
    host = Host(0.002, start_s=20.0)
    measure(host, repository)
    later = zip(host.shown[1:-1], host.shown_at_s[1:-1], strict=True)
    over = [(left or 0.0) - (host.now_s - at_s) for (_, _, left), at_s in later]
    assert min(over) > -10.0
    assert max(over) < 30.0


def test_a_failed_point_costs_no_other_point(repository: Path) -> None:
    failing = Point(20.0, 2)
    host = Host(0.002, {failing: EngineError("too few batches")})
    measured = measure(host, repository)
    assert points(measured) == set(subject(repository).points) - {failing}
    assert (measured.missing, measured.reason) == ((failing,), "too few batches")
    partial = read_partial(repository.parent / "profiles", "cpu", "m")
    assert partial is not None
    assert partial.points
    host.fails.clear()
    host.measured.clear()
    assert points(measure(host, repository)) == set(subject(repository).points)
    assert host.measured == [failing], "only what is missing is measured"


def test_a_model_that_refuses_batches_is_named_so(repository: Path) -> None:
    top = max(subject(repository).points, key=lambda p: (p.percent, p.batch))
    with pytest.raises(EngineError, match=r"refused: .*--set batches=1"):
        measure(Host(0.002, {top: RequestRefused("no")}), repository)
    alone = Wishes(percents=[100], batches=[1])
    with pytest.raises(RequestRefused):
        measure(Host(0.002, {Point(100.0, 1): RequestRefused("no")}), repository, alone)


def test_without_the_smallest_share_nothing_is_guessed_below_the_largest(repository: Path) -> None:
    measured = measure(Host(0.002, {20.0: LaunchTimeout("not ready within 60 s")}), repository)
    assert measured.profile.only_percent == 100.0
    assert {p.percent for p in measured.missing} == {20.0}


def test_a_model_without_any_point_fails_as_a_whole(repository: Path) -> None:
    with pytest.raises(EngineError, match="died"):
        measure(Host(0.002, {100.0: EngineError("died")}), repository)


def test_what_concerns_every_model_ends_the_run(repository: Path) -> None:
    with pytest.raises(NotNow):
        measure(Host(0.002, {20.0: NotNow("disk full")}), repository)
