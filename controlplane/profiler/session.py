"""Measurement of a whole model, which continues after an interruption.

There is one Triton for each share, since a running server's share cannot change. All batch sizes run on it in
turn.
"""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from statistics import median

from controlplane.domain.device import Device
from controlplane.domain.errors import EngineError, FleetBusy, MissingTool, NotNow, RequestRefused
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from controlplane.files.measurements.profiles import read_partial, write_partial
from controlplane.files.rendered import write_tree
from controlplane.ports import Clock, Launcher, Progress
from controlplane.profiler.load import off_core
from controlplane.profiler.point import Bench, Watched
from controlplane.profiler.requests import Subject
from controlplane.profiler.sweep import Pace, Point, effort, fits, needed_s, point_seconds
from controlplane.profiler.temporary import check_python_path, exclusive, running
from controlplane.render.repository import in_turn, profiling_tree
from controlplane.render.source import SourceModel, step_limits, stubs

START_S = 60.0
_ATTEMPTS = 3
"""Attempts for a disturbed point; the attempt that got most of its share counts."""


@dataclass(frozen=True, slots=True)
class Place:
    """The device to measure: its type, and the launcher's name for it (`cpu-0`, a UUID)."""

    device: Device
    name: str

    @property
    def label(self) -> str:
        """The name as part of a file's or a server's name; in a cluster it is `NODE/cpu-0`."""
        return self.name.replace("/", "-")

    @property
    def core(self) -> int | None:
        """The measured core, on which nothing else should run; None for a GPU."""
        found = re.fullmatch(r"cpu-(\d+)", self.name)
        return int(found.group(1)) if found else None


@dataclass(frozen=True, slots=True)
class Measured:
    """A profile without fits. `missing`: the points that failed, with the server's message `reason`."""

    profile: Profile
    missing: tuple[Point, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Profiler:
    """Measures models on one device. `profiles` holds the results, `scratch` the servers' repositories.

    `options` are for every server, and so is `load_timeout_s`, without progress.
    """

    launcher: Launcher
    clock: Clock
    progress: Progress
    profiles: Path
    scratch: Path
    options: ServerOptions = NO_OPTIONS
    load_timeout_s: float = START_S

    def measure(self, subject: Subject, place: Place, *, resume: bool = True) -> Measured:
        """Measure one model and return its profile, without fits.

        Each point is written as soon as it is measured; after an interruption a call with `resume` continues.
        Raises RequestRefused where the server answers a request with an error, FleetBusy where another
        program measures on the same device, EngineError where the server fails before it measured a point.
        """
        source = subject.source
        profile = Profile(
            model=source.name,
            device=place.device.name,
            share_kind=place.device.share_kind,
            environment=self._environment(source, place),
            points=(),
            max_batch=int(source.config.max_batch_size),
            inputs=subject.inputs,
            options=self.options,
            executes=step_limits(source),
            stubs=stubs(source),
        )
        if resume:
            partial = read_partial(self.profiles, place.device.name, source.name)
            profile = resumed(profile, partial, {p for own in (subject.points, *subject.fewer) for p in own})
        run = _Run(self, place, subject, profile)
        with self.exclusive(place):
            return run.finish()

    def fleet(self, place: Place) -> str:
        """Return the fleet label of this measurement's servers; each `scratch` has its own."""
        return f"profile-{place.label}-{sha256(str(self.scratch.resolve()).encode()).hexdigest()[:6]}"

    @contextlib.contextmanager
    def exclusive(self, place: Place) -> Iterator[None]:
        """Lock the device, stop servers of earlier measurements, and keep this process off its core."""
        busy = f"another program is measuring on {place.name}; wait for it to end"
        lock_file = self.scratch / f"{place.label}.lock"
        with exclusive(self.launcher, self.fleet(place), lock_file, busy), off_core(place.core):
            yield

    @contextlib.contextmanager
    def serving(
        self, source: SourceModel, place: Place, percent: float, batches: Sequence[int], slot: int = 0
    ) -> Iterator[Server]:
        """Run a server of one model, with an endpoint for each batch as in a plan, and stop it at the end.

        `slot` distinguishes servers that run at the same time.
        """
        endpoints = {endpoint_of(source.name, batch): batch for batch in batches}
        tree = profiling_tree(source, endpoints=endpoints, gpu_type=place.device.name)
        revision = sha256(f"{percent:g}|{tree.content_hash}|{self.options}".encode()).hexdigest()[:10]
        directory = self.scratch / place.label / f"{source.name}-{revision}"
        if "python" in (source.config.backend, *(one.config.backend for one in source.composing)):
            check_python_path(self.launcher, directory.resolve())
        write_tree(directory, tree)
        spec = ServerSpec(
            labels=Labels(self.fleet(place), "profile", f"{source.name}.{slot}", Role.PROFILE, revision),
            repository=str(directory.resolve()),
            endpoints=tuple(endpoints),
            device=place.name,
            percent=percent,
            turns=in_turn(source),
            options=self.options,
        )
        with running(self.launcher, spec, deadline_s=self.load_timeout_s) as server:
            yield server

    def _environment(self, source: SourceModel, place: Place) -> Environment:
        idle = self.launcher.reading(place.name)
        now = datetime.fromtimestamp(self.clock.wall(), UTC)
        return Environment(
            gpu=idle.product,
            driver=idle.driver,
            idle_w=idle.power_w,
            backend=source.config.backend or source.config.platform or None,
            host=platform.node(),
            date=now.isoformat(timespec="seconds"),
        )


class _Run:
    """One model's measurement: the points to measure, and the profile so far."""

    def __init__(self, profiler: Profiler, place: Place, subject: Subject, profile: Profile) -> None:
        self._profiler = profiler
        self._place = place
        self._subject = subject
        self._source = subject.source
        self._traffic = subject.traffic
        self._points = subject.points
        self._profile = profile
        self._pace = Pace.of(profile.points)
        self._began_s = profiler.clock.monotonic()
        self._expected_s = 0.0
        self._up: float | None = None
        self._seconds = point_seconds(subject.budget_s, len(subject.points), 1 + self._starts(subject.points))
        self._failures: dict[Point, str] = {}

    def finish(self) -> Measured:
        """Measure the missing points.

        The largest share and batch come first, since they show problems soonest, then the smallest share:
        nothing is known of shares below the measured ones.
        """
        self._choose()
        if self._top in self._left() or self._profile.frontend_ms is None:
            with self._going_on([self._top]):
                self._alone()
        shares = sorted({p.percent for p in self._left()}, reverse=True)
        lowest = min((p.percent for p in self._points), default=0.0)
        for percent in sorted(shares, key=lambda percent: percent not in (self._top.percent, lowest)):
            for together in self._groups([p for p in self._left() if p.percent == percent]):
                with self._going_on(together):
                    self._together(percent, together)
        self._show_progress(f"{self._source.name}: done")
        return self._measured(lowest)

    def _measured(self, lowest: float) -> Measured:
        """Return what was measured; without the smallest share, that of the largest one alone.

        A profile of one share is planned at no smaller one, where a fit would guess.
        """
        points = tuple(sorted(self._profile.points, key=lambda m: (m.percent, m.batch)))
        if self._failures and min(m.percent for m in points) > lowest:
            points = tuple(m for m in points if m.percent == points[-1].percent)
        # The median, since a few points' deviations are outliers.
        jitters = [m.std_ms / m.execution_ms for m in points if m.std_ms is not None]
        profile = replace(self._profile, points=points, jitter=median(jitters) if jitters else None)
        return Measured(profile, tuple(self._failures), next(iter(self._failures.values()), ""))

    @contextlib.contextmanager
    def _going_on(self, points: Sequence[Point]) -> Iterator[None]:
        """Note the failure of these points; raise what concerns every model, and any failure of the first."""
        try:
            yield
        except (FleetBusy, MissingTool, NotNow):
            raise
        except EngineError as error:
            if not self._profile.points:
                raise
            left = self._left()
            self._failures |= {p: str(error) for p in points if p in left}

    @property
    def _top(self) -> Point:
        return max(self._points, key=lambda p: (p.percent, p.batch))

    def _left(self) -> list[Point]:
        """Return the points that are neither measured nor failed."""
        known = {(m.percent, m.batch) for m in self._profile.points}
        return [p for p in self._points if (p.percent, p.batch) not in known and p not in self._failures]

    def _choose(self) -> None:
        """Leave out points of a slow model, by the times seen so far."""
        if self._pace == Pace():
            return
        choices = [self._subject.points, *self._subject.fewer]
        top = self._pace.top_batch
        measured = [c for c in choices if self._pace.top_s is None or any(p.batch == top for p in c)]
        for points in measured or choices[-1:]:
            self._points = points
            if fits(points, self._starts(points), self._seconds, self._pace, self._subject.budget_s):
                return

    def _groups(self, points: Sequence[Point]) -> list[list[Point]]:
        """Return the points of one share that are measured on one server.

        Models that a model executes keep their names, so each batch needs a server of its own.
        """
        if self._source.composing:
            return [[point] for point in points]
        return [list(points)] if points else []

    def _starts(self, points: Sequence[Point]) -> int:
        """Return how many servers measure these points."""
        return len(points) if self._source.composing else len({p.percent for p in points})

    def _alone(self) -> None:
        """Measure the largest point with one endpoint, as in service, for memory and front-end time too.

        A model that turns out to be slow has another largest point, on a server of its own.
        """
        top, began_s = self._top, self._profiler.clock.monotonic()
        with self._bench(top.percent, [top.batch]) as bench:
            load_s = self._profiler.clock.monotonic() - began_s
            lone = bench.lone(endpoint_of(self._source.name, top.batch), self._traffic, self._seconds)
            single_mb = bench.memory_mb()
            self._profile = replace(
                self._profile,
                memory_by_batch={} if single_mb is None else {1: single_mb},
                frontend_ms=lone.frontend_ms,
                answers=lone.answers,
                load_s=load_s or None,
                environment=replace(self._profile.environment, triton=bench.version()),
            )
            if self._pace == Pace():
                self._pace = Pace(lone.single_s)
            if self._pace.slow:
                self._choose()
            if self._top == top:
                self._largest(bench)
        if self._top != top:
            with self._bench(self._top.percent, [self._top.batch]) as bench:
                self._largest(bench)

    def _largest(self, bench: Bench) -> None:
        """Measure the largest point, the cost of a request and the memory; then choose by its time."""
        top = self._top
        if not self._pace.slow:
            endpoint = endpoint_of(self._source.name, top.batch)
            with _refused_as_a_batch(top):
                request_ms = bench.request_ms(endpoint, self._traffic, top.batch, 2.0 * self._seconds)
            self._profile = replace(self._profile, request_ms=request_ms)
        self._expected_s += self._pace.alone_s(top, self._seconds)
        if top in self._left():
            self._keep(self._settled(bench, top))
        memory_mb = bench.memory_mb()
        if memory_mb is not None:
            by_batch = {**self._profile.memory_by_batch, top.batch: memory_mb}
            self._profile = replace(self._profile, memory_mb=memory_mb, memory_by_batch=by_batch)
        point = next(m for m in self._profile.points if (m.percent, m.batch) == (top.percent, top.batch))
        whole_s = point.execution_ms / 1000.0 * top.percent / 100.0
        single_s = whole_s if top.batch == 1 else self._pace.single_s
        self._pace = Pace(single_s, whole_s, top.batch)
        self._choose()

    def _together(self, percent: float, points: Sequence[Point]) -> None:
        """Measure all batches of one share on one server, one endpoint each: idle ones cost nothing."""
        with self._bench(percent, [p.batch for p in points]) as bench:
            self._up = percent
            for point in points:
                with self._going_on([point]):
                    self._keep(self._settled(bench, point))

    @contextlib.contextmanager
    def _bench(self, percent: float, batches: Sequence[int]) -> Iterator[Bench]:
        self._show_progress(f"{self._source.name} at {percent:g} %: starting")
        with (
            self._profiler.serving(self._source, self._place, percent, batches) as server,
            Bench(server, self._profiler.launcher, self._profiler.clock) as bench,
        ):
            self._expected_s += needed_s((), 1, self._seconds)
            yield bench

    def _settled(self, bench: Bench, point: Point) -> Measurement:
        """Return an undisturbed point; after some attempts, the least disturbed one."""
        self._show_progress(f"{self._source.name} at {point.percent:g} %, batch {point.batch}")
        endpoint = endpoint_of(self._source.name, point.batch)
        own = effort(point.batch, self._pace.batch_s(point))
        best: Watched | None = None
        for _ in range(_ATTEMPTS):
            with _refused_as_a_batch(point):
                watched = bench.saturate(endpoint, self._traffic, point.batch, self._seconds, own)
            if best is None or watched.trust.order > best.trust.order:
                best = watched
            if not watched.trust.disturbed or self._late():
                break
        assert best is not None
        self._expected_s += self._pace.point_s(point, self._seconds)
        return best.point

    def _keep(self, point: Measurement) -> None:
        self._profile = replace(self._profile, points=(*self._profile.points, point))
        write_partial(self._profiler.profiles, self._profile)

    def _needed_s(self) -> float:
        """Return the time of what is left, where it takes as much longer than expected as what was done."""
        left = self._left()
        started = any(point.percent == self._up for point in left)
        expected_s = needed_s(left, self._starts(left) - started, self._seconds, self._pace)
        if self._profile.frontend_ms is None:
            expected_s += needed_s((), 1, self._seconds) + self._pace.alone_s(self._top, self._seconds)
        passed_s = self._profiler.clock.monotonic() - self._began_s
        return expected_s * max(1.0, passed_s / self._expected_s if self._expected_s else 1.0)

    def _late(self) -> bool:
        """Return whether the budget has no time for a repetition."""
        passed_s = self._profiler.clock.monotonic() - self._began_s
        return passed_s + self._needed_s() > self._subject.budget_s

    def _show_progress(self, what: str) -> None:
        left = len(self._left())
        total = max(len(self._points), len(self._profile.points))
        self._profiler.progress.advance(what, total - left, total, self._needed_s() if left else 0.0)


@contextlib.contextmanager
def _refused_as_a_batch(point: Point) -> Iterator[None]:
    """Say what to do where a model that answered single requests refuses some that Triton made a batch."""
    try:
        yield
    except RequestRefused as error:
        if point.batch == 1:
            raise
        raise EngineError(
            f"{error}; a request alone was answered, and a batch of {point.batch} is refused: if the model's "
            "code takes one request at a time, measure it with --set batches=1, else with smaller ones"
        ) from error


def endpoint_of(model: str, batch: int) -> str:
    """Return the endpoint of a model during its measurement at a batch."""
    return f"{model}.b{batch}"


def resumed(fresh: Profile, partial: Profile | None, points: Collection[Point]) -> Profile:
    """Return the fresh profile with the points of an interrupted measurement in the same environment."""
    if partial is None or _identity(partial) != _identity(fresh):
        return fresh
    old, new = partial.environment, fresh.environment
    wanted = {(p.percent, p.batch) for p in points}
    kept = tuple(m for m in partial.points if (m.percent, m.batch) in wanted)
    now = replace(new, triton=old.triton)
    return replace(partial, points=kept, environment=now, inputs=fresh.inputs, share_kind=fresh.share_kind)


def _identity(profile: Profile) -> tuple[object, ...]:
    """Return what all points of one profile must have in common."""
    requests = None if profile.inputs is None else profile.inputs.sha256
    where = profile.environment
    return where.host, where.backend, profile.max_batch, requests, profile.options
