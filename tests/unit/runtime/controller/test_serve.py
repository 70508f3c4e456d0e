"""What a guard that fails leaves behind."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from controlplane.domain.errors import GatewayError
from controlplane.files.fleets import FleetFiles
from controlplane.runtime import SystemClock
from controlplane.runtime.controller import serve
from controlplane.runtime.fleet.fleet import Fleet


class Part:
    """A part of the process that runs until it is closed; as the loop, it fails."""

    def __init__(self, *_: object) -> None:
        self.ended = False

    def run(self, stop: threading.Event) -> None:
        raise KeyError("defect")

    def close(self) -> None:
        self.ended = True

    shutdown = close


@pytest.mark.parametrize("port", [0, 1])
def test_a_guard_that_fails_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    loop, log, exporter, watches = Part(), Part(), Part(), list[threading.Event]()

    def export(controller: object, meters: object, place: object) -> Part:
        if port:
            raise GatewayError("the port is taken")
        return exporter

    monkeypatch.setattr(serve, "export", export)
    monkeypatch.setattr(serve, "Controller", lambda *_: loop)
    monkeypatch.setattr(serve.DriftWatch, "start", lambda self, stop: watches.append(stop))
    files = FleetFiles(tmp_path, "f")
    files.make()
    fleet = Fleet(files, cast(Any, None), cast(Any, None), SystemClock(), cast(Any, str))
    with pytest.raises(GatewayError if port else KeyError):
        serve.guard(fleet, lambda event: None, cast(Any, log), threading.Event(), port=port)
    assert (loop.ended, log.ended, exporter.ended) == (True, True, not port)
    assert [stop.is_set() for stop in watches] == ([] if port else [True])
