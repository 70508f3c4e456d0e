"""What Trisect is worth, in figures. Each script is run alone: `python -m benchmarks.plans.planners`."""

import sys
from pathlib import Path

# Rigs and clients are the tests' own.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
