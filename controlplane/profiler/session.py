"""Measurement of a whole model, which continues after an interruption.

There is one Triton for each share, since a running server's share cannot change. All batch sizes run on it in
turn.
"""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from statistics import median

from controlplane.domain.device import Device
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from controlplane.files.measurements.profiles import read_partial, write_partial
from controlplane.files.tree import write_tree
from controlplane.ports import Clock, Launcher, Progress
from controlplane.profiler.load import off_core
from controlplane.profiler.point import Bench, Watched
from controlplane.profiler.subject import Subject
from controlplane.profiler.sweep import Point, needed_s, point_seconds
from controlplane.profiler.temporary import exclusive, running
from controlplane.render.composing import is_ensemble
from controlplane.render.repository import profiling_tree
from controlplane.render.source import SourceModel

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
class Profiler:
    """Measures models on one device. `profiles` holds the results, `scratch` the servers' repositories.

    `options` are for every server.
    """

    launcher: Launcher
    clock: Clock
    progress: Progress
    profiles: Path
    scratch: Path
    options: ServerOptions = NO_OPTIONS

    def measure(self, subject: Subject, place: Place, *, resume: bool = True) -> Profile:
        """Measure one model and return its profile, without fits.

        Each point is written as soon as it is measured; after an interruption a call with `resume` continues.
        Raises RequestRefused where the server answers a request with an error, FleetBusy where another
        program measures on the same device, EngineError where the server fails otherwise.
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
        )
        if resume:
            partial = read_partial(self.profiles, place.device.name, source.name)
            profile = resumed(profile, partial, subject.points)
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
        write_tree(directory, tree)
        spec = ServerSpec(
            labels=Labels(self.fleet(place), "profile", f"{source.name}.{slot}", Role.PROFILE, revision),
            repository=str(directory.resolve()),
            endpoints=tuple(endpoints),
            device=place.name,
            percent=percent,
            turns=is_ensemble(source.config),
            options=self.options,
        )
        with running(self.launcher, spec, deadline_s=START_S) as server:
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
        self._source = subject.source
        self._traffic = subject.traffic
        self._points = points = subject.points
        self._profile = profile
        known = {(m.percent, m.batch) for m in profile.points}
        self._left = [p for p in points if (p.percent, p.batch) not in known]
        self._done_before = len(points) - len(self._left)
        self._began_s = profiler.clock.monotonic()
        self._budget_s = subject.budget_s
        starts = 1 + self._starts(points)
        self._seconds = point_seconds(subject.budget_s, len(points), starts)

    def finish(self) -> Profile:
        """Measure the missing points, largest share and batch first: they show problems soonest."""
        top = max(self._points, key=lambda p: (p.percent, p.batch))
        alone = [p for p in self._left if p == top]
        if alone or self._profile.frontend_ms is None:
            self._alone(top, alone)
        for percent in sorted({p.percent for p in self._left}, reverse=True):
            for together in self._groups([p for p in self._left if p.percent == percent and p != top]):
                self._together(percent, together)
        self._show_progress(f"{self._source.name}: done")
        points = tuple(sorted(self._profile.points, key=lambda m: (m.percent, m.batch)))
        # The median, since a few points' deviations are outliers.
        jitters = [m.std_ms / m.execution_ms for m in points if m.std_ms is not None]
        return replace(self._profile, points=points, jitter=median(jitters) if jitters else None)

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

    def _alone(self, top: Point, points: Sequence[Point]) -> None:
        """Measure the largest point with one endpoint, as in service, for memory and front-end time too."""
        with self._bench(top.percent, [top.batch]) as bench:
            endpoint = endpoint_of(self._source.name, top.batch)
            lone = bench.lone(endpoint, self._traffic, self._seconds)
            request_ms = bench.request_ms(endpoint, self._traffic, top.batch, 2.0 * self._seconds)
            self._profile = replace(
                self._profile,
                frontend_ms=lone.frontend_ms,
                answers=lone.answers,
                request_ms=request_ms,
                environment=replace(self._profile.environment, triton=bench.version()),
            )
            for point in points:
                self._keep(self._settled(bench, point))
            self._profile = replace(self._profile, memory_mb=bench.memory_mb())

    def _together(self, percent: float, points: Sequence[Point]) -> None:
        """Measure all batches of one share on one server, one endpoint each: idle ones cost nothing."""
        with self._bench(percent, [p.batch for p in points]) as bench:
            for point in points:
                self._keep(self._settled(bench, point))

    @contextlib.contextmanager
    def _bench(self, percent: float, batches: Sequence[int]) -> Iterator[Bench]:
        self._show_progress(f"{self._source.name} at {percent:g} %: starting")
        with (
            self._profiler.serving(self._source, self._place, percent, batches) as server,
            Bench(server, self._profiler.launcher, self._profiler.clock) as bench,
        ):
            yield bench

    def _settled(self, bench: Bench, point: Point) -> Measurement:
        """Return an undisturbed point; after some attempts, the least disturbed one."""
        self._show_progress(f"{self._source.name} at {point.percent:g} %, batch {point.batch}")
        endpoint = endpoint_of(self._source.name, point.batch)
        best: Watched | None = None
        for _ in range(_ATTEMPTS):
            watched = bench.saturate(endpoint, self._traffic, point.batch, self._seconds)
            if best is None or watched.trust.order > best.trust.order:
                best = watched
            if not watched.trust.disturbed or self._late():
                break
        assert best is not None
        return best.point

    def _keep(self, point: Measurement) -> None:
        self._profile = replace(self._profile, points=(*self._profile.points, point))
        write_partial(self._profiler.profiles, self._profile)

    def _late(self) -> bool:
        """Return whether the budget has no time for a repetition."""
        known = {(m.percent, m.batch) for m in self._profile.points}
        left = [p for p in self._left if (p.percent, p.batch) not in known]
        starts = self._starts(left)
        return self._passed_s() + needed_s(len(left), starts, self._seconds) > self._budget_s

    def _passed_s(self) -> float:
        return self._profiler.clock.monotonic() - self._began_s

    def _show_progress(self, what: str) -> None:
        done = len(self._profile.points)
        now = done - self._done_before
        left_s = self._passed_s() / now * (len(self._points) - done) if now > 0 else None
        self._profiler.progress.advance(what, done, len(self._points), left_s)


def endpoint_of(model: str, batch: int) -> str:
    """Return the endpoint of a model during its measurement at a batch."""
    return f"{model}.b{batch}"


def resumed(fresh: Profile, partial: Profile | None, points: Sequence[Point]) -> Profile:
    """Return the fresh profile with the points of an interrupted measurement in the same environment."""
    if partial is None or _identity(partial) != _identity(fresh):
        return fresh
    old, new = partial.environment, fresh.environment
    wanted = {(p.percent, p.batch) for p in points}
    kept = tuple(m for m in partial.points if (m.percent, m.batch) in wanted)
    return replace(
        fresh,
        points=kept,
        frontend_ms=partial.frontend_ms,
        answers=partial.answers,
        request_ms=partial.request_ms,
        memory_mb=partial.memory_mb,
        environment=replace(new, triton=old.triton),
    )


def _identity(profile: Profile) -> tuple[object, ...]:
    """Return what all points of one profile must have in common."""
    requests = None if profile.inputs is None else profile.inputs.sha256
    where = profile.environment
    return where.host, where.backend, profile.max_batch, requests, profile.options
