"""Another user of the host reaches nothing between the gateway's processes, alive or dead."""

import os
import signal
import stat
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gateway_rig as rig
import psutil
import pytest
from background import stopped, until

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes

NOBODY = 65534
REACH = """
for path in "$@"; do
    if [ -e "$path" ]; then echo "$path is reached"; fi
    if true 2>/dev/null > "$path.mine"; then echo "$path.mine is written"; fi
done
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike a test's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_another_user_reaches_no_socket_of_the_gateway(open_folder: Path) -> None:
    with rig.a_gateway(open_folder) as (_, ports):
        places = GatewayPaths.of(open_folder / "gateway")
        found = sorted(places.sockets.iterdir())
        kinds = [stat.S_IFMT(path.lstat().st_mode) for path in found]
        assert places.facade_http_socket in found
        assert set(kinds) == {stat.S_IFSOCK, stat.S_IFIFO}
        assert places.sockets.stat().st_mode & 0o777 == 0o700
        if os.getuid() == 0:
            command = ["sh", "-c", REACH, "sh", *map(str, found)]
            told = subprocess.run(command, user=NOBODY, group=NOBODY, capture_output=True, text=True)
            assert told.stdout == ""
        open_ports = {
            (one.type, one.laddr.port)
            for role in processes.ALL
            for pid in processes.find(places, role)
            for one in psutil.Process(pid).net_connections()
            if one.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
        }
        assert {port for _, port in open_ports} == {ports.http, ports.grpc, ports.metrics}


def test_calls_of_a_dead_facade_wait_for_the_next_one(open_folder: Path) -> None:
    """No port becomes free that another process could take meanwhile."""
    with rig.a_gateway(open_folder) as (_, ports), ThreadPoolExecutor(4) as pool:
        places = GatewayPaths.of(open_folder / "gateway")
        (supervisor,) = processes.find(places, processes.SUPERVISOR)
        (facade,) = processes.find(places, processes.FACADE)
        url = f"http://{rig.HOST}:{ports.http}/v2/health/live"

        def live() -> int:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return int(answer.status)

        with stopped(supervisor):
            os.kill(facade, signal.SIGKILL)
            until(lambda: processes.find(places, processes.FACADE) == ())
            calls = [pool.submit(live) for _ in range(4)]
        assert [call.result() for call in calls] == [200] * 4
