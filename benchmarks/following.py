"""A fleet of real Tritons that follows its load: times of its changes.

`.venv/bin/python -m benchmarks.following` (3 minutes). Poisson requests at 25/s through the gateway, then at
twice, 3.4 times and 0.8 times that rate; see tests/support/following_rig.py. Exits 1 where a request failed,
the doubled rate took over 20 s or the next one over 30 s.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from following_rig import followed, following_host

STEPS = ((50.0, 60.0), (85.0, 90.0), (20.0, 120.0))
AIMS_S = (20.0, 30.0, float("inf"))


def main() -> int:
    """Print each step; return the exit code."""
    with tempfile.TemporaryDirectory() as folder, following_host(Path(folder)) as host:
        steps = followed(host, STEPS)
    late = any(step.took_s > aim for step, aim in zip(steps, AIMS_S, strict=True))
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
