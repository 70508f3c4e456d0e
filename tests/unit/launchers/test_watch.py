"""Several sources of news of the same servers."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.observation import Health, News
from launchers.gpu.mps import MpsDaemons
from launchers.watch import LauncherWatch

pytestmark = pytest.mark.unit

SPEC = ServerSpec(Labels("f", "p", "W1", Role.ACTIVE, "r"), "/r", ("w1",), "cpu-0", 50.0)
SERVER = Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", 9, 9, 9)


class Source:
    """Reports what it was given, once."""

    def __init__(self) -> None:
        self.left: list[News] = []

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        found, self.left = tuple(self.left), []
        return found

    def close(self) -> None:
        pass


def test_an_end_is_reported_once_and_nothing_of_the_server_after_it() -> None:
    kernel, engine = Source(), Source()
    watch = LauncherWatch((kernel, engine), MpsDaemons())
    impaired = News((SERVER.name,), "a process of its models ended", health=Health.IMPAIRED)
    ended = News((SERVER.name,), "its process ended", certain=True)
    engine.left = [impaired]
    assert watch.news((SERVER,)) == (impaired,)
    kernel.left, engine.left = [ended], [impaired]
    assert watch.news((SERVER,)) == (ended,)
    engine.left = [News((SERVER.name,), "its container ended with exit code 137")]
    assert watch.news((SERVER,)) == ()
    watch.close()
