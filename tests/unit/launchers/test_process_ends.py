"""Deaths of real processes that carry a server's labels."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.observation import News
from launchers import labels
from launchers.process_ends import ProcessEnds

pytestmark = pytest.mark.unit


def server(partition: str, pid: str) -> Server:
    spec = ServerSpec(
        Labels(f"ends{os.getpid()}", "h", partition, Role.ACTIVE, "r"), "/m", ("m",), "cpu-0", 50
    )
    return Server(pid, spec, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)


def test_a_process_that_ends_is_told_once_and_only_while_it_is_asked_about() -> None:
    nameless = server("p", "")
    told = {**os.environ, **labels.environment_of(nameless)}
    with subprocess.Popen(["sleep", "60"], env=told) as process:
        one = server("p", str(process.pid))
        ends = ProcessEnds()
        try:
            assert ends.news((one,)) == ()
            process.kill()
            process.wait()
            deadline = time.monotonic() + 5
            while not (news := ends.news((one,))):
                assert time.monotonic() < deadline
            assert news == (News((one.name,), "its process ended"),)
            assert ends.news((one,)) == ()
            assert ends.news(()) == ()
            assert len(ends.news((one,))) == 1, "asked about anew: it is still gone"
        finally:
            process.kill()
            ends.close()


def test_a_pid_that_is_another_process_by_now_or_never_was() -> None:
    ends = ProcessEnds()
    others, never = server("a", str(os.getpid())), server("b", "")
    assert {name for news in ends.news((others, never)) for name in news.servers} == {others.name, never.name}
    ends.close()
    before = len(os.listdir("/proc/self/fd"))
    ends = ProcessEnds()
    for _ in range(20):
        ends.news((others,))
        ends.news(())
    ends.close()
    assert len(os.listdir("/proc/self/fd")) == before
