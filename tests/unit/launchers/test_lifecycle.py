"""How long a start is awaited, whoever began it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import build
import pytest

from controlplane.domain.errors import EngineError, LaunchTimeout
from controlplane.domain.fleet import Server, ServerSpec, ShareUsage
from launchers import lifecycle, patience
from launchers.cpu_quota.mechanism import Weight
from launchers.lifecycle import Lifecycle, StartState
from launchers.triton import readiness

SPEC = build.spec()


class Loads(Lifecycle[None]):
    """A launcher whose one server works until it is ready, or ends, at a time of the clock."""

    def __init__(self, state: Path, *, ready_s: float, ends_s: float = 1e9, works_s: float = 1e9) -> None:
        super().__init__(state)
        self.now_s = 0.0
        self.ready_s, self.ends_s, self.works_s = ready_s, ends_s, works_s
        self.present: Server | None = None
        self.weights: list[Weight] = []

    def usage(self, server: Server) -> ShareUsage:
        if self.now_s > self.ends_s:
            raise ProcessLookupError
        return ShareUsage(None, None, min(self.now_s, self.works_s), 1.0)

    def _find(self, spec: ServerSpec) -> Server | None:
        return self.present

    def _clear(self, spec: ServerSpec, deadline: float) -> None:
        self.present = None

    def _create(self, server: Server, place: None) -> Server:
        self.present = server
        return server

    def _start_state(self, server: Server) -> StartState:
        # It may end between this look and the next one.
        ended = "out of memory" if self.now_s > self.ends_s + 1.0 else None
        return StartState(server if self.now_s >= self.ready_s else None, ended)

    def _weigh(self, server: Server, weight: Weight) -> None:
        if not self.weights or self.weights[-1] is not weight:
            self.weights.append(weight)

    def _nothing(self, *_: Any, **__: Any) -> Any:
        return None

    def _log(self, server: Server) -> str:
        return ""

    def _host(self, spec: ServerSpec) -> str:
        return "127.0.0.1"

    enforcement = _place = _shown = _change_share = _watchers = _nothing


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(**times: float) -> Loads:
        launcher = Loads(tmp_path, **times)

        def sleep(_: float) -> None:
            launcher.now_s += 0.5

        clock = SimpleNamespace(monotonic=lambda: launcher.now_s, sleep=sleep)
        monkeypatch.setattr(lifecycle, "time", clock)
        monkeypatch.setattr(patience, "time", clock)
        monkeypatch.setattr(readiness, "is_ready", lambda _: launcher.now_s >= launcher.ready_s)
        return launcher

    return made


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_start_that_makes_progress_is_awaited(loads: Any, begun_before: bool) -> None:
    launcher = loads(ready_s=60.0)
    launcher.present = build.server(SPEC) if begun_before else None
    assert launcher.start(SPEC, deadline_s=10.0) is launcher.present
    assert launcher.now_s >= 60.0
    assert launcher.weights == [Weight.FULL]


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_start_without_progress_is_removed(loads: Any, begun_before: bool) -> None:
    launcher = loads(ready_s=1e9, works_s=20.0)
    launcher.present = build.server(SPEC) if begun_before else None
    with pytest.raises(LaunchTimeout, match="10 s without progress"):
        launcher.start(SPEC, deadline_s=10.0)
    assert launcher.present is None
    assert launcher.weights == [Weight.SLOW_START]
    assert 30.0 <= launcher.now_s < 35.0


def test_a_server_that_ends_between_two_looks_has_its_own_reason(loads: Any) -> None:
    with pytest.raises(EngineError, match="out of memory"):
        loads(ready_s=1e9, ends_s=5.0).start(SPEC, deadline_s=10.0)


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_start_that_requests_begin_to_wait_for_has_its_full_weight_before_it_is_ready(
    loads: Any, begun_before: bool
) -> None:
    launcher = loads(ready_s=60.0)
    launcher.present = build.server(SPEC) if begun_before else None
    weights = []

    def gives_way() -> bool:
        weights.append(tuple(launcher.weights))
        return bool(launcher.now_s < 30.0)

    launcher.start(SPEC, deadline_s=10.0, gives_way=gives_way)
    assert weights[0] == ()
    assert weights[-1] == (Weight.FULL,)
