"""The fleet's controller, started again where it was killed, if `ctl apply` started it.

One that systemd or a terminal runs is theirs to start again, and one that was ended on purpose stays ended:
the controller itself makes and removes the mark that it is kept (`FleetFiles.controller_kept`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

from controlplane.domain.errors import TrisectError
from controlplane.files.fleets import FleetFiles
from controlplane.files.reading import exists
from controlplane.files.waiting import is_free
from controlplane.files.writing import log_file, to_json, write_derived
from controlplane.gateway.processes import LABEL, ROLE_LABEL

KEPT_VARIABLE = "TRISECT_KEPT_CONTROLLER"
"""Set for a controller that is to be started again."""
_SETTINGS = ("TRISECT_", "DOCKER_", "KUBECONFIG", "PATH")
"""Variables on which depends whether a controller can start servers."""
_YOUNG_S = 10.0
_STARTING_S = 20.0
"""Until a controller on a busy host has its lock."""
_LONGEST_WAIT_S = 300.0


def command(files: FleetFiles) -> list[str]:
    """Return the command line of a fleet's controller, whose package is above this one."""
    return [sys.executable, "-m", "controlplane.cli.main", "controller", "--fleet", files.fleet]


def environment(files: FleetFiles) -> dict[str, str]:
    """Return this process's environment for a controller that is kept."""
    without = {name: value for name, value in os.environ.items() if name not in (LABEL, ROLE_LABEL)}
    return {**without, "XDG_STATE_HOME": str(files.directory.parent.parent.absolute()), KEPT_VARIABLE: "1"}


def keep(files: FleetFiles) -> None:
    """Mark the controller as kept, to be started in this folder, with this process's settings."""
    settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
    with contextlib.suppress(OSError, TrisectError):
        write_derived(files.controller_kept, to_json({"cwd": os.getcwd(), "environment": settings}))


class ControllerKeeper:
    """Looks now and then, since a controller is no child of the supervisor's."""

    def __init__(self, files: FleetFiles) -> None:
        self._files = files
        self._running_since_s: float | None = None
        self._starts = 0
        self._due_s = 0.0
        self._told = False

    def look(self, now: float) -> str | None:
        """Start a killed controller, less often where it dies young; return what is to be recorded."""
        files = self._files
        if not is_free(files.controller_lock):
            self._running_since_s, self._told = self._running_since_s or now, False
            return None
        if self._running_since_s is not None and now - self._running_since_s > _YOUNG_S:
            self._starts, self._due_s = 0, now
        self._running_since_s = None
        if not exists(files.controller_kept):
            untold, self._told = exists(files.controller_pid) and not self._told, True
            return "ended by a signal; not started again: `ctl apply` did not start it" if untold else None
        if now < self._due_s:
            return None
        self._due_s = now + min(_LONGEST_WAIT_S, _STARTING_S * 2.0**self._starts)
        self._starts += 1
        self._start()
        return "ended by a signal or an error; started again"

    def _start(self) -> None:
        marked: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            marked = json.loads(self._files.controller_kept.read_text())
        folder = str(marked.get("cwd", "/"))
        with contextlib.suppress(OSError), log_file(self._files.directory / "controller.log") as log:
            # Forked once more, so that there is no child to wait for.
            subprocess.run(
                ["setsid", "--fork", *command(self._files)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(self._files), **marked.get("environment", {})},
                cwd=folder if os.path.isdir(folder) else "/",
                check=False,
            )
