"""A fleet of real Tritons that follows its load: times of its changes.

`python -m benchmarks.serving.following` (3 minutes). Poisson requests at 25/s through the gateway, then at
twice, 3.4 times and 0.8 times that rate; see tests/support/following_rig.py. Twice the rate needs another
batch and no server. Exits 1 where a request failed or a change took too long.
"""

import sys
import tempfile
from pathlib import Path

from following_rig import followed, following_host

from benchmarks.harness import Figures

STEPS = ((50.0, 60.0), (85.0, 90.0), (20.0, 120.0))
AIMS_S = (20.0, 30.0, None)


def main() -> int:
    """Print each step; return the exit code."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder, following_host(Path(folder)) as host:
        for (rate_rps, _), step, aim_s in zip(STEPS, followed(host, STEPS), AIMS_S, strict=True):
            figures.add(f"followed {rate_rps:g}/s after", step.took_s, "s", at_most=aim_s)
            figures.add(
                "of these after the verdict",
                step.after_verdict_s,
                "s",
                at_most=1.0 if aim_s == AIMS_S[0] else None,
            )
            figures.add("servers started", step.started, at_most=0 if aim_s == AIMS_S[0] else None)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
