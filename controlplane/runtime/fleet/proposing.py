"""Look for the plan with which a fleet follows its load: `python -m controlplane.runtime.fleet.proposing F`.

A process of its own, since planning keeps a core busy that the controller needs. It first learns from the
executions that were recorded, then reads the question on stdin and writes the answer to stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from controlplane.control.load.state import Kind
from controlplane.domain.errors import TrisectError
from controlplane.files.fleets import FleetFiles, state_root
from controlplane.runtime.clock import SystemClock
from controlplane.runtime.fleet.calibrate import learn_recorded
from controlplane.runtime.jobs.propose import propose


def main() -> int:
    """Answer one question."""
    files = FleetFiles(state_root(), sys.argv[1])
    answer: dict[str, Any]
    try:
        learn_recorded(files, SystemClock().wall())
        answer = propose(files, json.load(sys.stdin))
    except TrisectError as error:
        answer = {"kind": Kind.NONE.value, "summary": str(error)}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
