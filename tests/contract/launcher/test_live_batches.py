"""Batches that change while a server serves, with real Tritons."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from launcher_rig import Fleet, engines, infer

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server, ServerSpec
from controlplane.render.repository import BATCH_LIBRARY
from controlplane.triton.client import TritonClient

ON_THIS_HOST = pytest.mark.parametrize("engine", engines("process", "docker"), indirect=True)


def live(fleet: Fleet, batch: int) -> ServerSpec:
    """A server whose library is in place, as it is rendered."""
    spec = replace(fleet.spec(), batches=(("spin", batch),))
    library = fleet.launcher.batch_library()
    assert library is not None
    (Path(spec.repository) / "spin" / BATCH_LIBRARY).symlink_to(library)
    config = Path(spec.repository) / "spin" / "config.pbtxt"
    config.write_text(config.read_text() + "dynamic_batching { preferred_batch_size: [ 8 ] }\n")
    return spec


def largest(server: Server, requests: int = 16) -> int:
    """The largest batch of so many requests at once, by Triton's own statistics."""
    before = counts(server)
    with ThreadPoolExecutor(requests) as pool:
        list(pool.map(lambda _: infer(server, sleep_s=0.05), range(requests)))
    return max(size for size, count in counts(server).items() if count > before.get(size, 0))


def counts(server: Server) -> dict[int, int]:
    return {size: one.executions for size, one in TritonClient(server).statistics("spin").batches.items()}


@ON_THIS_HOST
def test_a_running_server_takes_other_batches(fleet: Fleet) -> None:
    server = fleet.start(live(fleet, 3))
    assert largest(server) == 3
    for batch in (8, 1, 5):
        fleet.launcher.set_batches(server, (("spin", batch),))
        assert largest(server) == batch
        (listed,) = fleet.launcher.servers(fleet.name)
        assert listed.spec.batches == (("spin", batch),)
    fleet.launcher.stop(server, drain_s=5.0)
    assert not list((Path(fleet.directory) / "state").rglob("limits"))


@ON_THIS_HOST
def test_a_server_without_the_library_is_not_ready(fleet: Fleet) -> None:
    spec = replace(fleet.spec(), batches=(("spin", 3),))
    with pytest.raises(EngineError, match="TRISECT_LIVE_BATCHES=off"):
        fleet.start(spec)
    assert fleet.launcher.servers(fleet.name) == ()


@ON_THIS_HOST
def test_a_model_that_was_not_started_so_has_no_other_batch(fleet: Fleet) -> None:
    server = fleet.start(fleet.spec())
    with pytest.raises(EngineError):
        fleet.launcher.set_batches(server, (("spin", 2),))
