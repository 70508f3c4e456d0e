"""Batches that change while a server serves, with real Tritons."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from launcher_rig import Fleet, engines, has_batch, live

from controlplane.domain.errors import EngineError, LibraryIgnored
from controlplane.domain.fleet import BATCH_LIBRARY

ON_THIS_HOST = pytest.mark.parametrize("engine", engines("process", "docker"), indirect=True)


@ON_THIS_HOST
def test_a_running_server_takes_other_batches(fleet: Fleet) -> None:
    server = fleet.start(live(fleet, 3))
    assert has_batch(server, 3)
    for batch in (8, 1, 5):
        fleet.launcher.set_batches(server, (("spin", batch),))
        assert has_batch(server, batch)
        (listed,) = fleet.launcher.servers(fleet.name)
        assert listed.spec.batches == (("spin", batch),)
    fleet.launcher.stop(server, drain_s=5.0)
    assert not list((Path(fleet.directory) / "state").rglob("limits"))


@ON_THIS_HOST
def test_a_running_server_finds_the_file_that_is_made_in_place_of_a_lost_one(fleet: Fleet) -> None:
    server = fleet.start(live(fleet, 3))
    (file,) = (
        path for path in (Path(fleet.directory) / "state").rglob("spin") if path.parent.name == "limits"
    )
    for lose in (Path.unlink, partial(os.truncate, length=0), lambda path: shutil.rmtree(path.parent)):
        lose(file)
        (listed,) = fleet.launcher.servers(fleet.name)
        assert listed.spec.batches == ()
        fleet.launcher.set_batches(server, (("spin", 6),))
        assert has_batch(server, 6)
    fleet.launcher.stop(server, drain_s=5.0)


@ON_THIS_HOST
@pytest.mark.parametrize("broken", [False, True])
def test_a_server_without_the_library_is_not_ready(fleet: Fleet, broken: bool) -> None:
    spec = live(fleet, 3)
    library = Path(spec.repository) / "spin" / BATCH_LIBRARY
    library.unlink()
    if broken:
        library.write_text("made for another image")
    with pytest.raises(LibraryIgnored, match="TRISECT_LIVE_BATCHES=off"):
        fleet.start(spec)
    assert fleet.launcher.servers(fleet.name) == ()


@ON_THIS_HOST
def test_a_model_that_was_not_started_so_has_no_other_batch(fleet: Fleet) -> None:
    server = fleet.start(fleet.spec())
    with pytest.raises(EngineError):
        fleet.launcher.set_batches(server, (("spin", 2),))
