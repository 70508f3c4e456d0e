"""A quota without privileges: the models' processes are stopped for a part of every period."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota import stopper
from launchers.cpu_quota.mechanism import Group, Mechanism
from launchers.host.process_table import cpu_seconds

# The stopper is a child of a subshell that ends, so it is no child of the server, which exec starts then.
_BESIDE = '("$1" -I -S "$2" $$ "$3" & ); shift 3; exec "$@"'


class DutyCycle(Mechanism):
    """Runs a stopper beside each server; `stopper` explains why no server stays stopped."""

    name = "duty-cycle"

    def obstacle(self) -> str | None:
        """Return the obstacle; None after a process was stopped, seen as stopped, and continued."""
        with subprocess.Popen(["sleep", "10"]) as trial:
            try:
                trial.send_signal(signal.SIGSTOP)
                deadline = time.monotonic() + 2.0
                while time.monotonic() < deadline:
                    state = Path(f"/proc/{trial.pid}/stat").read_text().rpartition(")")[2].split()[0]
                    if state == "T":
                        return None
                    time.sleep(0.005)
                return "a process of ours was not stopped by SIGSTOP"
            finally:
                trial.kill()

    def enter(self, group: Group, percent: float) -> list[str]:
        """Return the command that starts the stopper and then becomes the server."""
        return ["sh", "-c", _BESIDE, "sh", sys.executable, stopper.__file__, f"{percent:g}"]

    def resize(self, group: Group, percent: float, pids: tuple[int, ...]) -> None:
        """Refuse: for a moment no stopper would run, or two with different clocks."""
        raise OSError("a duty cycle keeps the percentage it was started with")

    def usage(self, group: Group, pids: tuple[int, ...]) -> ShareUsage:
        """Return the processes' time; periods are not counted."""
        return ShareUsage(None, None, cpu_seconds(pids))
