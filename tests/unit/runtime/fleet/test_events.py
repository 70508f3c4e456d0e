import contextlib
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from fake_host import GatewayInMemory, NoServers
from no_descriptors import without_descriptors

from controlplane.control.converge.desired import NamedRoute
from controlplane.control.converge.redirect import moves
from controlplane.domain.errors import EngineError, NotNow
from controlplane.domain.observation import Event
from controlplane.files.fleets import FleetFiles, FleetSettings, fleets
from controlplane.files.gateway import Restart, append_restart
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.waiting import wait_until
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet import history as history_module
from controlplane.runtime.fleet import history as kept
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import EventLog, History


def test_what_the_supervisor_wrote_stands_between_what_the_others_did(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    history = History(files.history)
    for at_s, kind in ((1.0, "apply"), (3.0, "redirect")):
        history.write(Event(at_s, "info", kind, "f", "x"))
    assert kept.restarts(files) == ()
    files.gateway.mkdir()
    append_restart(GatewayPaths.of(files.gateway).restarts, Restart(2.0, "haproxy", "ended by signal 9"))
    every = kept.events(files, since_s=0.0, limit=10)
    assert [(e.at_s, e.kind) for e in every] == [(1.0, "apply"), (2.0, "restart"), (3.0, "redirect")]
    assert (every[1].subject, every[1].reason) == ("haproxy", "ended by signal 9")
    assert kept.events(files, since_s=1.5, limit=10) == every[1:]
    assert kept.events(files, since_s=0.0, limit=2) == every[1:]


def ended(root: Path, name: str, *reasons: str) -> FleetFiles:
    files = FleetFiles(root, name)
    files.write_settings(FleetSettings("process", "/m", str(root / "out"), {}))
    History(files.history).write(*(Event(1.0, "info", "apply", name, reason) for reason in reasons))
    kept.destroy(Fleet(files, cast(Any, NoServers()), cast(Any, GatewayInMemory()), SystemClock(), print))
    return files


def test_what_happened_outlives_the_fleet_until_the_next_of_its_name_ends(tmp_path: Path) -> None:
    files = ended(tmp_path, "f", "first")
    assert not files.directory.exists()
    told = kept.events(files, since_s=0.0, limit=10)
    assert [(e.kind, e.reason) for e in told] == [
        ("apply", "first"),
        ("destroy", "by hand: 0 servers stopped"),
    ]
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    assert kept.events(files, since_s=0.0, limit=10) == (), "another one of that name"
    assert kept.events(ended(tmp_path, "f", "second"), since_s=0.0, limit=1)[0].kind == "destroy"
    assert "first" not in {e.reason for e in kept.events(files, since_s=0.0, limit=10)}
    assert fleets(tmp_path) == []


def test_histories_of_ended_fleets_are_bounded(tmp_path: Path) -> None:
    for number in range(22):
        files = ended(tmp_path, f"f{number}", "x")
        os.utime(files.ended, (number, number))
    kept = {path.stem for path in files.ended.parent.iterdir()}
    assert kept == {f"f{number}" for number in range(2, 22)}


def test_a_history_that_cannot_be_read_holds_no_end_up(tmp_path: Path) -> None:
    FleetFiles(tmp_path, "f").directory.mkdir()
    FleetFiles(tmp_path, "f").history.write_text("no database")
    files = ended(tmp_path, "f")
    assert not files.directory.exists()
    assert [e.kind for e in kept.events(files, since_s=0.0, limit=10)] == ["destroy"]


def test_a_redirect_by_hand_is_told_a_partition() -> None:
    partitions = {"a1": "A", "a2": "A", "b1": "B", "b2": "B"}
    before = {"w": NamedRoute(("a1", "b1")), "v": NamedRoute(("a1",)), "x": NamedRoute(("gone",))}
    after = {"w": NamedRoute(("a2", "b2")), "v": NamedRoute(("a2",)), "x": NamedRoute(("b2",))}
    assert moves(before, after, ["w", "v"], partitions) == [("A", "a1", "a2"), ("B", "b1", "b2")]
    assert moves(before, after, ["x"], partitions) == [("B", "no server", "b2")]
    assert moves(before, before, ["w"], partitions) == []
    partly = {"w": NamedRoute(("a1", "b2"))}
    assert moves(before, partly, ["w"], partitions) == [("B", "b1", "b2")], "of a pool, what changed"


def test_an_event_that_cannot_be_written_now_is_written_soon(tmp_path: Path) -> None:
    refused = threading.Event()

    class Watched(History):
        def try_write(self, *events: Event) -> bool:
            done = super().try_write(*events)
            if not done:
                refused.set()
            return done

    history = Watched(tmp_path / "history.db")
    history.write(Event(1.0, "info", "k", "s", "first"))
    log = EventLog(history)
    with without_descriptors():
        log.write(Event(2.0, "info", "k", "s", "second"))
        assert refused.wait(30)
    assert wait_until(lambda: len(history.events()) == 2, deadline_s=30), "without a further event"
    with without_descriptors(os.getpid()):  # also once the writer has closed the file
        refused.clear()
        log.write(Event(3.0, "info", "k", "s", "third"))
        assert refused.wait(30)
    log.close()
    assert [event.reason for event in history.events()] == ["first", "second", "third"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own where this user may mount one; otherwise a folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=2m"]
    mounted = subprocess.run(["mount", *options, "none", str(disk)], capture_output=True).returncode == 0
    yield disk
    if mounted:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_history_on_a_full_disk_is_read(small_disk: Path) -> None:
    history = History(small_disk / "h.sqlite")
    history.write(Event(1.0, "info", "k", "s", "before"))
    if os.path.ismount(small_disk):
        with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        assert not history.try_write(Event(2.0, "info", "k", "s", "lost"))
    assert [event.reason for event in history.events()] == ["before"]


def test_only_a_damaged_history_is_to_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "_PATIENCE_S", 0.01)
    history = History(tmp_path / "h.sqlite")
    history.write(Event(1.0, "info", "k", "s", "kept"))
    with without_descriptors(), pytest.raises(NotNow) as lacking:
        history.events()
    with contextlib.closing(sqlite3.connect(tmp_path / "h.sqlite")) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotNow) as locked:
            history.events()
    assert "delete" not in f"{lacking.value}{locked.value}"
    assert [event.reason for event in history.events()] == ["kept"]
    content = (tmp_path / "h.sqlite").read_bytes()
    (tmp_path / "h.sqlite").write_bytes(content[:4096] + bytes(len(content) - 4096))
    with pytest.raises(EngineError, match="delete"):
        history.events()


def test_history_is_bounded_and_read_oldest_first(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite", keep=300)
    assert history.events() == ()
    every = [Event(float(i), "info", "notice", "w", str(i)) for i in range(600)]
    for i in range(0, 600, 20):
        history.write(*every[i : i + 20])
    kept = history.events(limit=10_000)
    assert 300 <= len(kept) <= 300 + 256 + 20
    assert [e.reason for e in kept] == [str(i) for i in range(600 - len(kept), 600)]
    assert [e.at_s for e in history.events(since_s=597.0)] == [597.0, 598.0, 599.0]


def test_a_locked_history_holds_nobody_up_and_gets_what_was_told_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_PATIENCE_S", 60.0)
    history = History(tmp_path / "h.sqlite")
    history.write(Event(0.0, "info", "notice", "w", "before"))
    log = EventLog(history)
    with contextlib.closing(sqlite3.connect(tmp_path / "h.sqlite")) as other:
        other.execute("BEGIN EXCLUSIVE")
        began_s = time.monotonic()
        for i in range(30):
            log.write(Event(float(i), "info", "notice", "w", str(i)))
        assert time.monotonic() - began_s < 30.0, "one that waits for the other writer has a minute"
        other.rollback()
    log.close()
    assert [e.reason for e in history.events()] == ["before", *map(str, range(30))]
    log.write(Event(31.0, "info", "notice", "w", "late"))
    assert history.events()[-1].reason == "late", "also an event while the controller ends"


def test_commands_write_beside_the_controller(tmp_path: Path) -> None:
    """Each opens the file anew: also while another creates it or switches its journal mode."""

    def write(kind: str, path: Path) -> int:
        histories = [History(path) for _ in range(10)]
        for i, history in enumerate(histories):
            history.write(Event(float(i), "info", kind, "w", "x"))
        return sum(history.lost for history in histories)

    with ThreadPoolExecutor(4) as pool:
        for fresh in range(20):
            path = tmp_path / f"{fresh}.sqlite"
            assert sum(pool.map(write, "abcd", [path] * 4)) == 0
            assert len(History(path).events()) == 40
