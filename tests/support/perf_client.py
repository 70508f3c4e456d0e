"""perf_analyzer, NVIDIA's load client, unmodified."""

import os
import re
import subprocess
from pathlib import Path

PERF = Path(__file__).parents[2] / ".tools" / "perf"


def perf_analyzer(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with these arguments."""
    return subprocess.run(
        [str(PERF / "bin/perf_analyzer"), *arguments],
        env={**os.environ, "LD_LIBRARY_PATH": str(PERF / "lib")},
        capture_output=True,
        text=True,
        timeout=110,
    )


def closed_loop(
    protocol: str, address: str, connections: int, window_ms: int, *more: str, endpoint: str = "echo"
) -> tuple[float, float]:
    """Requests a second and p50 in ms of perf_analyzer's closed loop; SystemExit where it failed."""
    done = perf_analyzer(
        *("-m", endpoint, "-u", address, "-i", protocol, "-b", "1"),
        *("--concurrency-range", str(connections), "-p", str(window_ms), "-s", "999", "-r", "8"),
        *("--percentile=50", *more),
    )
    rate = re.search(r"Throughput: ([\d.]+) infer/sec", done.stdout)
    p50 = re.search(r"p50 latency: (\d+) usec", done.stdout)
    if done.returncode or rate is None or p50 is None:
        raise SystemExit(f"perf_analyzer failed:\n{done.stdout}{done.stderr}")
    return float(rate.group(1)), int(p50.group(1)) / 1000
