"""The pipe through which HAProxy and the facade send a line for every request to the monitor.

It lies in the gateway's folder, so no other user can send to it or read it, and a stopped monitor loses no
line before the pipe is full. Lines do not mix, since each is shorter than PIPE_BUF.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

_SIZE_BYTES = 2**20
"""What the kernel allows to every user: some seconds of lines at thousands of requests a second."""


def opened(path: Path) -> int:
    """Return a descriptor of the pipe for reading and writing, which never waits; make a missing pipe.

    Whoever has it open for both keeps the lines in it while its reader restarts. Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _SIZE_BYTES)
    return pipe
