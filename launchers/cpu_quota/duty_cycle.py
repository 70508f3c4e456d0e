"""A quota without any privilege: the models' processes are stopped for a part of every period."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from controlplane.domain.fleet import ShareUsage
from launchers.cpu_quota import stopper
from launchers.cpu_quota.mechanism import Group
from launchers.process_table import cpu_seconds

# The stopper leaves the server's family (a child of a subshell that ends), then the server takes this place.
_BESIDE = '("$1" -I -S "$2" $$ "$3" & ); shift 3; exec "$@"'


class DutyCycle:
    """Runs a stopper beside each server; see `stopper` for how it keeps the server from staying stopped."""

    name = "duty-cycle"

    def obstacle(self) -> str | None:
        """Why not; None after a process of ours was stopped, seen stopped, and let go on."""
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
        """The command that starts the stopper and then becomes the server."""
        return ["sh", "-c", _BESIDE, "sh", sys.executable, stopper.__file__, f"{percent:g}"]

    def resize(self, group: Group, percent: float, pids: tuple[int, ...]) -> None:
        """Not offered: between two stoppers there would be none, or two that stop by different clocks."""
        raise OSError("a duty cycle keeps the percentage it was started with")

    def usage(self, group: Group, pids: tuple[int, ...]) -> ShareUsage:
        """The processes' time; nothing counts the periods."""
        return ShareUsage(None, None, cpu_seconds(pids))

    def leave(self, group: Group) -> bool:
        """Nothing to do: a stopper ends with its server."""
        return False

    def groups(self, fleet: str) -> tuple[Group, ...]:
        """None that could be left over."""
        return ()
