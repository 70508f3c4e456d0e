from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.control.desired import NamedRoute
from controlplane.control.redirect import moves
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import Restart, append_restart
from controlplane.gateway.places import Places
from controlplane.runtime import happened
from controlplane.runtime.history import Event, History

pytestmark = pytest.mark.unit


def test_what_the_supervisor_wrote_stands_between_what_the_others_did(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    history = History(files.history)
    for at_s, kind in ((1.0, "apply"), (3.0, "redirect")):
        history.write(Event(at_s, "info", kind, "f", "x"))
    assert happened.restarts(files) == ()
    files.gateway.mkdir()
    append_restart(Places.of(files.gateway).restarts, Restart(2.0, "haproxy", "ended by signal 9"))
    every = happened.events(files, since_s=0.0, limit=10)
    assert [(e.at_s, e.kind) for e in every] == [(1.0, "apply"), (2.0, "restart"), (3.0, "redirect")]
    assert (every[1].subject, every[1].reason) == ("haproxy", "ended by signal 9")
    assert happened.events(files, since_s=1.5, limit=10) == every[1:]
    assert happened.events(files, since_s=0.0, limit=2) == every[1:]


def test_a_redirect_by_hand_is_told_a_partition() -> None:
    partitions = {"a1": "A", "a2": "A", "b1": "B", "b2": "B"}
    before = {"w": NamedRoute(("a1", "b1")), "v": NamedRoute(("a1",)), "x": NamedRoute(("gone",))}
    after = {"w": NamedRoute(("a2", "b2")), "v": NamedRoute(("a2",)), "x": NamedRoute(("b2",))}
    assert moves(before, after, ["w", "v"], partitions) == [("A", "a1", "a2"), ("B", "b1", "b2")]
    assert moves(before, after, ["x"], partitions) == [("B", "nobody", "b2")]
    assert moves(before, before, ["w"], partitions) == []
