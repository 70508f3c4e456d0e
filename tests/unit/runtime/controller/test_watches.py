import contextlib
from collections.abc import Iterator
from typing import Any, cast

import pytest

from controlplane.domain.errors import FleetBusy
from controlplane.runtime.controller.watches import GatewayWatch


class Rig:
    """Gateway and actor at once."""

    def __init__(self) -> None:
        self.down: tuple[str, ...] = ()
        self.busy = False
        self.restored = 0

    def missing(self) -> tuple[str, ...]:
        return self.down

    @contextlib.contextmanager
    def hold_fleet(self) -> Iterator[None]:
        if self.busy:
            raise FleetBusy("another command works")
        yield

    def restore_gateway(self) -> None:
        self.restored += 1


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def watch(rig: Rig) -> GatewayWatch:
    return GatewayWatch(cast(Any, rig), cast(Any, rig))


def test_a_supervisor_is_started_once_the_facade_had_time_to(rig: Rig, watch: GatewayWatch) -> None:
    watch.look(100.0)
    rig.down = ("supervisor",)
    for now in (101.0, 102.0):
        watch.look(now)
        assert (watch.missing, watch.trouble, rig.restored) == (rig.down, "", 0)
    watch.look(103.0)
    watch.look(103.2)
    assert (watch.trouble, rig.restored) == ("gateway down: supervisor not running", 1)
    rig.down = ()
    watch.look(104.0)
    assert (watch.missing, watch.trouble) == ((), "")


def test_a_supervisor_is_started_at_once_where_the_facade_died_too(rig: Rig, watch: GatewayWatch) -> None:
    rig.down = ("haproxy", "facade", "supervisor")
    watch.look(100.0)
    assert rig.restored == 1


def test_what_a_supervisor_starts_and_a_working_command_are_left_alone(rig: Rig, watch: GatewayWatch) -> None:
    watch.look(100.0)
    rig.down = ("haproxy",)
    watch.look(110.0)
    assert (watch.trouble, rig.restored) == ("gateway down: haproxy not running", 0)
    rig.down, rig.busy = ("supervisor",), True
    watch.look(120.0)
    assert rig.restored == 0
    rig.busy = False
    watch.look(121.0)
    assert rig.restored == 1
