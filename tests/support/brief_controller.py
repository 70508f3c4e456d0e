"""`ctl controller` with a record and reviews every few seconds: `brief_controller.py --fleet NAME`.

The product knows nothing of it: its intervals are replaced from outside.
"""

import sys
from dataclasses import replace

from controlplane.control.autoscaler.state import LoadLimits
from controlplane.runtime.autoscaler.running import Running
from controlplane.runtime.controller import recorder

RECORD_S = 4.0
REVIEW_S = 25.0
"""A factor counts a hundred batches of no error beside those it saw: a review needs several times as many."""


def main() -> None:
    """Be the controller."""
    from controlplane.cli import main as cli

    usual = Running.limits

    def limits(running: Running) -> LoadLimits:
        return replace(usual(running), review_s=REVIEW_S)

    for owner, name, brief in (
        (recorder, "EVERY_S", RECORD_S),
        (recorder, "SAVE_S", RECORD_S),
        (Running, "limits", limits),
    ):
        setattr(owner, name, brief)
    sys.argv = ["ctl", "controller", *sys.argv[1:]]
    cli.main()


if __name__ == "__main__":
    main()
