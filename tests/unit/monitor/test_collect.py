import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from controlplane.files.gateway_paths import open_log
from controlplane.monitor.collect import Log
from controlplane.monitor.state import Monitor, ServedRoutes

LINE = b"grpc:h77 %d m one:abc g_3 200 - -- 100 200 1700000000250000 1700000001750000"
COUNT = 2000
"""Many times what is read at once."""


def test_every_line_in_the_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    """Also those that waited there before the monitor began."""
    lines = [LINE % number for number in range(COUNT)]
    pipe = open_log(tmp_path / "log.pipe")

    async def run() -> list[bytes]:
        read: list[bytes] = []
        all_read = asyncio.Event()

        def take(lines: Sequence[bytes]) -> None:
            read.extend(lines)
            if len(read) >= COUNT:
                all_read.set()

        monitor = Monitor(ServedRoutes(tmp_path / "slots"), tmp_path / "plan")
        log = Log(open_log(tmp_path / "log.pipe"), monitor, [take])
        content = b"".join(line + b"\n" for line in lines)
        os.write(pipe, content[: len(content) // 2])
        log.listen(looks=0)
        os.write(pipe, content[len(content) // 2 :])
        await asyncio.wait_for(all_read.wait(), 30)
        return read

    assert asyncio.run(run()) == lines


def test_a_pipe_that_nobody_reads_takes_no_more_at_some_time_and_holds_nobody_up(tmp_path: Path) -> None:
    pipe = open_log(tmp_path / "log.pipe")
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(pipe, LINE % 1 + b"\n")
    assert filled > 2**16
    assert (tmp_path / "log.pipe").stat().st_mode & 0o777 == 0o600
