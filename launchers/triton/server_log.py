"""The reasons in a Triton's log for a failed start."""

from __future__ import annotations

import re
from pathlib import Path

_ENTRY = re.compile(r'^[EF]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] +"?(?P<said>.*?)"?\s*$')
_PLAIN = re.compile(r"^(error: |sh: |\S*tritonserver: |terminate called|Segmentation|Killed).*")
_NOISE = ("CudaDriverHelper has not been initialized",)
_LONGEST_LINE = 400


def reasons(log: str, most: int = 6) -> list[str]:
    """Return the lines with the reason why a server did not start: a model's error, else Triton's errors.

    Without such a line, the last lines of the log.
    """
    errors = [_unescape(m["said"]) for m in map(_ENTRY.match, log.splitlines()) if m]
    errors = [e for e in errors if not any(n in e for n in _NOISE)]
    errors += [line for line in log.splitlines() if _PLAIN.match(line)]
    first = [e for e in errors if e.startswith("failed to load")]
    told = list(dict.fromkeys(first or errors))
    if not told:
        told = [line for line in log.splitlines() if line.strip() and not line.startswith(("+", "|"))][-most:]
    return [line[:_LONGEST_LINE] for line in told[:most]]


def by_chance(log: str) -> bool:
    """Return whether a start failed by chance, so that the next one may succeed.

    Another process took one of its ports; or 2.51's Python backend aborted in a race with its model's process
    for their shared memory, as it rarely does on a busy host.
    """
    return "already in use" in log or "boost::interprocess::lock_exception" in log


def failure(name: str, what: str, log: str, where: Path) -> str:
    """Return one message: the server, what happened, its own reason, and the log file."""
    why = (
        "; ".join(reasons(log)) or "its log is empty (was it killed? see dmesg for the out-of-memory killer)"
    )
    return f"{name} {what}: {why} (log: {where})"


def read(path: Path) -> str:
    """Return the log as text; empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _unescape(said: str) -> str:
    """Return an entry's text without the Python frames below its first line."""
    lines = said.replace("\\n", "\n").split("\n\nAt:")[0].split("\n")
    return " ".join(line.strip() for line in lines if line.strip())
