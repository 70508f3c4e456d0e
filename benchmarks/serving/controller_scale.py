"""What a controller costs by the number of its partitions, without a cluster.

    python -m benchmarks.serving.controller_scale [--sizes 10,100,1000] [--seconds 20] [--rate 1] [--json]

Every partition has a hot shadow. Servers and requests are claimed ones, so that the figures are the loop's
own, with its canaries and files. CPU time as a part of one core, without requests and, unless RATE is 0, with
RATE a second to each partition. The aim: below 5 % of a core at 1,000 partitions without requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import many_partitions as many

from controlplane.runtime.controller.observer import CANARIES_RPS

AIM_PERCENT = 5.0
LEAST_SETTLE_S = 15.0
"""After an apply the controller tests the servers that it adopts, and learns that no requests come."""


@dataclass(frozen=True)
class Row:
    """One size; percent of one core, without requests and with them."""

    partitions: int
    idle_percent: float
    loaded_percent: float
    memory_mb: float


@contextlib.contextmanager
def claimed_servers() -> Iterator[int]:
    """The port that answers for all servers, in a process of its own."""
    command = [sys.executable, str(many.SUPPORT / "claimed_servers.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield int(child.stdout.readline())
        child.terminate()


def cost(partitions: int, port: int, rate_rps: float, seconds: float) -> tuple[float, float]:
    """Percent of a core, and memory in MB, of one controller in its steady state."""
    with tempfile.TemporaryDirectory(prefix="trisect-scale-") as folder:
        state = Path(folder)
        shutil.copytree(many.MODELS, state / "models")
        options = [f"--claimed={port}", f"--rate={rate_rps}"]
        with many.controller(state, options) as child:
            child.apply(partitions)
            # The first canary of each server reads the model's configuration too.
            time.sleep(LEAST_SETTLE_S + 2 * partitions / CANARIES_RPS)
            return child.cost(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10,100,1000")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    with claimed_servers() as port:
        for size in map(int, given.sizes.split(",")):
            idle_percent, memory_mb = cost(size, port, 0.0, given.seconds)
            loaded_percent = cost(size, port, given.rate, given.seconds)[0] if given.rate else math.nan
            rows.append(Row(size, idle_percent, loaded_percent, memory_mb))
    last = rows[-1]
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print(f"{'partitions':>10} {'idle %':>7} {'loaded %':>9} {'MB':>5}")
        for row in rows:
            print(
                f"{row.partitions:10} {row.idle_percent:7.2f} {row.loaded_percent:9.2f} {row.memory_mb:5.0f}"
            )
        ratio = last.idle_percent / AIM_PERCENT
        ours = f"controller at {last.partitions} partitions: ours {last.idle_percent:.2f} %"
        print(f"{ours}, aim {AIM_PERCENT:g} %, ratio {ratio:.2f}")
    return 0 if last.idle_percent <= AIM_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
