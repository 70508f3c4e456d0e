"""A fleet of the product's own parts on a host in memory, whose programs can be killed at any effect."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, cast
from unittest import mock

from fake_host import Engine, FakeGateway, Host, InlinePool, Pool, Program

from controlplane import runtime
from controlplane.control.guard.state import Limits
from controlplane.domain.errors import EngineError, TrisectError
from controlplane.domain.fleet import Server
from controlplane.domain.plan import Plan
from controlplane.files import fleets as fleet_files
from controlplane.files import pinned as pinned_files
from controlplane.files import plans as plan_files
from controlplane.files import rendered as rendered_files
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.runtime import polled
from controlplane.runtime.controller import answers, executor, loop, observer, probes, workers
from controlplane.runtime.controller.executor import Executor
from controlplane.runtime.controller.loop import Controller
from controlplane.runtime.fleet import execute
from controlplane.runtime.fleet import fleet as fleet_module
from controlplane.runtime.fleet.fleet import Fleet, Outcome
from controlplane.runtime.fleet.preflight import ApplyRequest
from controlplane.triton import client as triton
from controlplane.triton import own

MODELS = Path(__file__).parents[1] / "data" / "models"
DEVICES = {"cpu-0": "cpu-0", "cpu-1": "cpu-1"}
MEMORY = Path("/dev/shm")
"""Where files cost no disk; not on every host."""


class Silent:
    """A `Recorder`, a `StatusFile` or a `History` that keeps nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class NoRequests:
    heard_since_s = 0.0

    def take(self) -> list[Any]:
        return []


class MarkedFiles(FleetFiles):
    """Two plans within a tick of the disk's clock would look like one."""

    host: Host

    def changed_s(self) -> float | None:
        return self.host.clock.now_s if super().changed_s() is None else self._marked_s()

    def _marked_s(self) -> float:
        return float((self.directory / "mark").read_text()) if (self.directory / "mark").exists() else 0.0

    def write_plans(self, plan: Plan, previous: Plan | None) -> None:
        super().write_plans(plan, previous)
        self._mark()

    def write_settings(self, settings: FleetSettings) -> None:
        super().write_settings(settings)
        self._mark()

    def _mark(self) -> None:
        (self.directory / "mark").write_text(str(self.host.number()))


@dataclass
class World:
    """A fleet, its host and its controller."""

    directory: Path
    host: Host = field(default_factory=Host)
    controller: Controller | None = None
    program: Program = field(default_factory=Program)
    """The controller's."""
    output: int = 0
    plan: Plan | None = None

    def __post_init__(self) -> None:
        self.models = self.directory / "models"
        shutil.copytree(MODELS, self.models)
        files = MarkedFiles(self.directory / "state", "f")
        files.host = self.host
        engine, gateway = Engine(self.host), FakeGateway(self.host)
        self.fleet = Fleet(files, cast(Any, engine), cast(Any, gateway), self.host.clock, lambda line: None)

    @property
    def settings(self) -> FleetSettings:
        output = self.directory / f"out{self.output}"
        return FleetSettings("process", str(self.models), str(output), DEVICES)

    def command(self, call: Callable[[], object], fuse: int | None) -> None:
        """A command that may be refused or killed; one that ends has a controller running."""
        program = Program(fuse)
        with self.host.running_as(program), contextlib.suppress(TrisectError):
            call()
        if not program.dead and (self.fleet.files.directory / "plan.json").exists():
            self.serve()

    def apply(self, plan: Plan, *, rename: bool = True) -> None:
        self.fleet.apply(ApplyRequest(plan, self.settings, rename_endpoints=rename))

    def apply_last(self, plan: Plan) -> Outcome:
        return self.fleet.apply(ApplyRequest(plan, self.settings, rename_endpoints=True))

    def settings_kept(self) -> FleetSettings:
        """A redirect goes by the settings of the last apply."""
        return self.fleet.files.settings() or self.settings

    def serve(self) -> None:
        if self.controller is None:
            self.program = Program()
            actor = Executor(self.fleet, cast(Any, Silent()), lambda e: None)
            self.controller = Controller(self.fleet, NoRequests(), actor, Limits())

    def end_controller(self) -> None:
        self.program.dead = True
        self.controller = None
        self.host.run_tasks()

    def tick(self, seconds: float, fuse: int | None = None) -> None:
        """One look of the controller, after its tasks went on."""
        self.host.clock.sleep(seconds)
        self.host.run_tasks()
        if self.controller is None:
            return
        self.program.fuse = fuse
        with self.host.running_as(self.program), contextlib.suppress(TrisectError):
            self.controller.step()
        if self.program.dead:
            self.end_controller()
        self.program.fuse = None

    def close(self) -> None:
        self.program.dead = True
        for program, _ in self.host.tasks:
            program.dead = True
        while self.host.tasks:
            self.host.run_tasks()


@contextlib.contextmanager
def world() -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        place = str(MEMORY) if os.access(MEMORY, os.W_OK) else None
        made = World(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place, prefix="trisect-test"))))
        host = made.host
        pool = partial(Pool, host)
        for module in (runtime, loop, executor, workers, execute, answers, observer, probes):
            stack.enter_context(mock.patch.object(module, "time", host.clock))
        stack.enter_context(mock.patch.object(workers, "ThreadPoolExecutor", pool))
        for module in (execute, polled):
            stack.enter_context(mock.patch.object(module, "ThreadPoolExecutor", InlinePool))
        for name in ("Recorder", "StatusFile", "EventLog"):
            stack.enter_context(mock.patch.object(executor, name, Silent))
        stack.enter_context(mock.patch.object(fleet_module, "History", Silent))

        class Triton:
            """It lives, and says what the host knows of its models."""

            def __init__(self, server: Server, **_: object) -> None:
                self.server = server

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                pass

            def allow(self, deadline_s: float) -> None:
                pass

            def config(self, model: str) -> dict[str, Any]:
                return {}

            def infer(self, endpoint: str, request: object) -> None:
                host.infer(self.server, endpoint)

            def statistics(self, model: str) -> None:
                raise EngineError("nothing is counted")

            counters = statistics

        def prove(server: Server, endpoint: str, discount: object, *, deadline_s: float) -> None:
            host.program.effect()
            host.infer(server, endpoint)

        def unload(server: Server, endpoint: str, *, deadline_s: float) -> None:
            host.program.effect()
            host.loaded[server.name].discard(endpoint)

        def load(server: Server, endpoint: str, *, deadline_s: float) -> None:
            host.program.effect()
            if host.running(server.name) is None or not Path(server.spec.repository, endpoint).is_dir():
                raise EngineError(f"{server.name} cannot load {endpoint}")
            host.loaded[server.name].add(endpoint)

        stack.enter_context(mock.patch.object(own, "prove", prove))
        for one in (unload, load):
            stack.enter_context(mock.patch.object(triton, one.__name__, one))
        stack.enter_context(mock.patch.object(probes, "TritonClient", Triton))
        # Files are replaced in one step: a program is killed before or after that.
        for module, name in (
            (plan_files, "write_plan"),
            (fleet_files, "write_json"),
            (rendered_files, "write_tree"),
            (pinned_files, "_copy"),
            (pinned_files, "write_text"),
        ):
            write = getattr(module, name)

            def killable(*given: Any, write: Callable[..., Any] = write) -> Any:
                host.program.effect()
                done = write(*given)
                host.program.effect()
                return done

            stack.enter_context(mock.patch.object(module, name, killable))
        try:
            yield made
        finally:
            made.close()
