"""A command on a terminal of its own: what it shows, and keys for it."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from background import until

_CONTROL = re.compile(r"\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>78MDE])")
INTERRUPT = "\x03"


class Terminal:
    """The terminal's side of a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self._process = process
        self._end = end
        self._raw = b""

    @property
    def text(self) -> str:
        """All that was shown so far, without colours, bells and moves of the cursor."""
        return _CONTROL.sub("", self._raw.decode(errors="replace")).translate({7: None, 13: None})

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def terminate(self) -> None:
        self._process.terminate()

    def hang_up(self) -> None:
        """Close the terminal, as a lost connection does: what runs on it gets SIGHUP."""
        if self._end >= 0:
            os.close(self._end)
        self._end = -1

    def await_end(self, deadline_s: float = 60.0) -> int:
        """Wait without reading, and return the exit code."""
        return self._process.wait(timeout=deadline_s)

    def await_text(self, wanted: str, deadline_s: float = 60.0) -> None:
        """Read until a text was shown."""
        deadline = time.monotonic() + deadline_s
        while wanted not in self.text:
            assert time.monotonic() < deadline, f"no {wanted!r} in {deadline_s:g} s: {self.text!r}"
            assert self._read() or self._process.poll() is None, f"ended without {wanted!r}: {self.text!r}"

    def shows(self, wanted: str, within_s: float) -> bool:
        """Whether a text was shown or is within so many seconds."""
        deadline = time.monotonic() + within_s
        while wanted not in self.text and time.monotonic() < deadline:
            self._read()
        return wanted in self.text

    def await_reading(self, deadline_s: float = 60.0) -> None:
        """Wait until the process sleeps in its read: Python sees an earlier interruption only after it."""
        process = psutil.Process(self._process.pid)
        until(lambda: process.status() == psutil.STATUS_SLEEPING, deadline_s, f"reads after {self.text!r}")

    def await_line_editor(self, deadline_s: float = 60.0) -> None:
        """Wait until a shell edits its line. Before that, the kernel takes keys like ^U for itself."""
        edits = lambda: not termios.tcgetattr(self._end)[3] & termios.ICANON  # noqa: E731
        until(edits, deadline_s, f"edits a line after {self.text!r}")

    def ended(self, deadline_s: float = 60.0) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + deadline_s
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"still runs after {deadline_s:g} s: {self.text!r}"
            self._read()
        while self._read():
            pass
        return self._process.returncode

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as before a program took it over."""
        return bool(termios.tcgetattr(self._end)[3] & termios.ECHO)

    def _read(self) -> bool:
        if not select.select([self._end], [], [], 0.1)[0]:
            return False
        try:
            found = os.read(self._end, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self._raw += found
        return bool(found)


@contextmanager
def on_terminal(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    *,
    directory: Path | None = None,
    columns: int = 160,
    lines: int = 40,
) -> Iterator[Terminal]:
    """Run a command as the foreground process of a new terminal; it is gone afterwards."""
    end, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def take() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored

    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**environment, "TERM": "xterm-256color"},
        cwd=directory,
        preexec_fn=take,
    )
    terminal = Terminal(process, end)
    try:
        yield terminal
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(its)
        terminal.hang_up()
