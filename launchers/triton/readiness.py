"""Whether a Triton is up and reads, and what its log says of a failed start."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Set
from pathlib import Path
from typing import Any
from urllib.parse import quote

from controlplane.domain.errors import NotNow, is_own_lack
from controlplane.domain.fleet import Server

_ANSWER_S = 2.0
_ENTRY = re.compile(r'^[EF]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] +"?(?P<said>.*?)"?\s*$')
_PLAIN = re.compile(r"^(error: |sh: |\S*tritonserver: |terminate called|Segmentation|Killed).*")
_NOISE = ("CudaDriverHelper has not been initialized",)
_LONGEST_LINE = 400
SILENT = "its log is empty (was it killed? see dmesg for the out-of-memory killer)"
"""Stands for the reasons where a log has none."""


def is_ready(server: Server, answer_s: float = _ANSWER_S) -> bool:
    """Return whether this server answers, each time within `answer_s`, and all its models are ready.

    A port that another program holds gives a false "ready": the answer must carry the server's own name.
    Raises NotNow where no connection can be made for lack of descriptors.
    """
    metadata = _get(server, "/v2", answer_s)
    if not isinstance(metadata, dict) or metadata.get("name") != server.name:
        return False
    models = (f"/v2/models/{quote(endpoint, safe='')}/ready" for endpoint in server.spec.endpoints)
    return all(_get(server, path, answer_s) is not None for path in models)


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


def failed_by_chance(log: str) -> bool:
    """Return whether a start failed by chance, so that the next one may succeed.

    Another process took one of its ports; or 2.51's Python backend aborted in a race with its model's process
    for their shared memory, as it rarely does on a busy host.
    """
    return "already in use" in log or "boost::interprocess::lock_exception" in log


def _get(server: Server, path: str, answer_s: float) -> Any:
    """The JSON of a successful answer, {} for an empty one; None where there is no success."""
    import http.client  # with ssl, a twentieth of `ctl status`

    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=answer_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        return json.loads(body or b"{}") if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if is_own_lack(error):
            raise NotNow(f"{server.name} cannot be asked now: {error}") from error
        return None
    finally:
        connection.close()


def _unescape(said: str) -> str:
    """Return an entry's text without the Python frames below its first line."""
    lines = said.replace("\\n", "\n").split("\n\nAt:")[0].split("\n")
    return " ".join(line.strip() for line in lines if line.strip())


def unread(pid: int, ports: Set[int], proc: Path = Path("/proc")) -> int:
    """Return the bytes that wait at these local TCP ports, and the connections; 0 where `pid` is gone."""
    found = 0
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            local, _, _, queues = line.split()[1:5]
            if int(local.rpartition(":")[2], 16) in ports:
                found += int(queues.partition(":")[2], 16)
    return found


def await_read(server: Server, pid: int, ports: Set[int], seconds: float) -> None:
    """Wait until a server that runs again has read what arrived while it was stopped.

    Once it is to end, it would refuse that. `pid` is its Triton's, `ports` are those on which that listens.
    """
    deadline = time.monotonic() + seconds
    while unread(pid, ports) and time.monotonic() < deadline:
        time.sleep(0.005)  # the kernel has no event for it
    # What was read last is handed on before this answer.
    is_ready(server, answer_s=max(deadline - time.monotonic(), 0.1))
