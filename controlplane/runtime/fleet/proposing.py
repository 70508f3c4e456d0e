"""Look for the plan with which a fleet follows its load: `python -m controlplane.runtime.fleet.proposing F`.

A process of its own, since planning keeps a core busy that the controller needs. It first learns from the
executions that were recorded, then reads the question on stdin and writes the answer to stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from controlplane.control.load.state import Kind
from controlplane.domain.errors import TrisectError
from controlplane.files.fleets import FleetFiles, state_root
from controlplane.runtime.clock import SystemClock
from controlplane.runtime.fleet.calibrate import learn_recorded
from controlplane.runtime.jobs.propose import propose


def answer(files: FleetFiles, question: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """The answer to one question. What prevents learning prevents no plan, and is said with it."""
    trouble = ""
    try:
        learn_recorded(files, now_s)
    except TrisectError as error:
        trouble = f"; nothing was learned: {error}"
    try:
        found = propose(files, question)
    except TrisectError as error:
        found = {"kind": Kind.NONE.value, "summary": str(error)}
    return {**found, "summary": found["summary"] + trouble}


def main() -> int:
    """Answer the question on stdin."""
    files = FleetFiles(state_root(), sys.argv[1])
    json.dump(answer(files, json.load(sys.stdin), SystemClock().wall()), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
