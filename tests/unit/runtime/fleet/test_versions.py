"""Versions of Triton that lack known fixes are named by doctor and apply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import build
import pytest
from http_server import Quiet, serving

from controlplane.domain import triton_releases
from controlplane.domain.fleet import Server
from controlplane.files.fleets import FleetFiles
from controlplane.ports import Launcher
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet import preflight
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import History
from controlplane.runtime.jobs.doctor import examine
from launchers.triton import program


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    class Handler(Quiet):
        def do_GET(self) -> None:
            self.answer(request.param)

    with serving(Handler) as port:
        yield build.server(build.spec(), port=port)


class OneServer:
    name = "process"

    def __init__(self, server: Server) -> None:
        self._server = server

    def capabilities(self) -> tuple[()]:
        return ()

    def enforcement(self) -> str:
        return "a test"

    def servers(self, _: str) -> tuple[Server, ...]:
        return (self._server,)


def fleet_of(directory: Path, said: list[str]) -> Fleet:
    nothing = cast(Any, None)
    return Fleet(FleetFiles(directory, "f"), nothing, nothing, SystemClock(), said.append)


@pytest.mark.parametrize("server", [{"name": "x", "version": "2.51.0"}], indirect=True)
def test_apply_names_the_missing_fixes_once_and_doctor_always(server: Server, tmp_path: Path) -> None:
    said: list[str] = []
    fleet = fleet_of(tmp_path, said)
    preflight.warn_of_old_servers([server], fleet)
    preflight.warn_of_old_servers([server, server], fleet)
    assert said == [
        "warning: 1 server runs Triton 2.51.0, which lacks the fixes for CVE-2025-23310, CVE-2025-23311, "
        "CVE-2025-23319 and 12 more: use 2.71.0 (image 26.07) or newer",
        "warning: Triton 2.51.0 lacks fixes of vulnerabilities (`ctl doctor`)",
    ]
    (event,) = History(fleet.files.history).events()
    assert (event.level, event.kind, event.subject) == ("warning", "triton", "f")
    found = {c.name: c for c in examine((cast(Launcher, OneServer(server)),), ("default",))}
    assert not found["fleet default"].available
    assert "2.51.0" in found["fleet default"].detail


@pytest.mark.parametrize(
    "server",
    [{"version": "2.71.0"}, {"version": "2.72.0dev"}, {"version": 3}, {"version": "none"}, [], {}],
    indirect=True,
)
def test_a_newer_version_and_an_unknown_one_raise_no_warning(server: Server, tmp_path: Path) -> None:
    said: list[str] = []
    preflight.warn_of_old_servers([server], fleet_of(tmp_path, said))
    assert said == []


def test_the_oldest_of_several_is_named() -> None:
    told = triton_releases.warning(["2.71.0", "2.60.0", "2.60.0", "2.61.0"])
    assert told is not None
    assert told.startswith("2 servers run Triton 2.60.0, which lacks the fixes for CVE-2025-33202")


def test_releases_are_in_order_and_the_default_image_is_the_newest() -> None:
    versions = [release.version for release in triton_releases.RELEASES]
    assert versions == sorted(versions)
    assert f"nvcr.io/nvidia/tritonserver:{triton_releases.NEWEST.image}-py3" == program.VENDOR_IMAGE
    assert triton_releases.missing_fixes("2.59.0")[:5] == (
        *("CVE-2025-23310", "CVE-2025-23311", "CVE-2025-23319", "CVE-2025-23320", "CVE-2025-23334"),
    )
