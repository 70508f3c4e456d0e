"""Prometheus and promtool, unpacked by `make test-packages`, or installed."""

import shutil
import subprocess
from pathlib import Path

_UNPACKED = Path(__file__).parents[2] / ".tools" / "prometheus" / "usr" / "bin"
NOT_RUN = "PROMETHEUS TESTS NOT RUN: there is no promtool; `make test-packages` unpacks it where it may"


def found(name: str) -> str | None:
    """The path of `prometheus` or `promtool`."""
    unpacked = _UNPACKED / name
    return str(unpacked) if unpacked.exists() else shutil.which(name)


def promtool(*arguments: str, page: str | None = None) -> subprocess.CompletedProcess[str]:
    program = found("promtool")
    assert program is not None
    return subprocess.run([program, *arguments], input=page, capture_output=True, text=True, timeout=120)
