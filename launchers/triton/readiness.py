"""Whether a Triton is up and reads, and what its log says of a failed start."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from controlplane.domain.errors import NotNow, is_own_lack
from controlplane.domain.fleet import BATCH_LIBRARY, UNIX, Server, socket_path
from controlplane.domain.triton_releases import way_out_for_backend
from controlplane.sockets import connect

_ANSWER_S = 2.0
_ENTRY = re.compile(r'^[EF]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] +"?(?P<said>.*?)"?\s*$')
_PLAIN = re.compile(r"^(error: |sh: |\S*tritonserver: |terminate called|Segmentation|Killed).*")
_NOISE = ("CudaDriverHelper has not been initialized",)
_EACH_CONNECTION = "NODELAY NOT SUPPORTED"
_NO_BACKEND = re.compile(r"unable to find backend library for backend '([^']+)'")
_LONGEST_LINE, _MOST_LINES = 400, 6
SILENT = "its log is empty (was it killed? see dmesg for the out-of-memory killer)"
"""Stands for the reasons where a log has none."""


def is_ready(server: Server, answer_s: float = _ANSWER_S) -> bool:
    """Return whether this server answers, each time within `answer_s`, and all its models are ready.

    The answer must carry the server's own name: a port of an earlier version's server may be another's.
    Raises NotNow where no connection can be made for lack of descriptors.
    """
    metadata = _get(server, "/v2", answer_s)
    if not isinstance(metadata, dict) or metadata.get("name") != server.name:
        return False
    models = (f"/v2/models/{quote(endpoint, safe='')}/ready" for endpoint in server.spec.endpoints)
    return all(_get(server, path, answer_s) is not None for path in models)


def said(log: str) -> str:
    """Return a log without Triton's warning of each connection over a Unix socket, which says nothing."""
    return "".join(line for line in log.splitlines(keepends=True) if _EACH_CONNECTION not in line)


def reasons(log: str) -> list[str]:
    """Return the lines with the reason why a server did not start: a model's error, else Triton's errors.

    Without such a line, the last lines of the log.
    """
    log = said(log)
    errors = [_unescape(m["said"]) for m in map(_ENTRY.match, log.splitlines()) if m]
    errors = [e for e in errors if not any(n in e for n in _NOISE)]
    errors += [line for line in log.splitlines() if _PLAIN.match(line)]
    first = [e for e in errors if e.startswith("failed to load")]
    told = list(dict.fromkeys(first or errors))
    if not told:
        told = [line for line in log.splitlines() if line.strip() and not line.startswith(("+", "|"))][
            -_MOST_LINES:
        ]
    lacking = dict.fromkeys(_NO_BACKEND.findall("\n".join(told)))
    return [line[:_LONGEST_LINE] for line in told[:_MOST_LINES]] + list(map(way_out_for_backend, lacking))


def failed_on_library(log: str) -> bool:
    """Return whether a start failed since Triton could not load the batch library."""
    failures = (line for line in log.splitlines() if "unable to load shared library" in line)
    return any(BATCH_LIBRARY in line for line in failures)


def failed_by_chance(log: str) -> bool:
    """Return whether a start failed by chance, so that the next one may succeed.

    2.51's Python backend aborts in a race with its model's process for their shared memory, as it rarely does
    on a busy host.
    """
    return "boost::interprocess::lock_exception" in log


def _get(server: Server, path: str, answer_s: float) -> Any:
    """The JSON of a successful answer, {} for an empty one; None where there is no success."""
    import http.client  # with ssl, a twentieth of `ctl status`

    connection = http.client.HTTPConnection("triton")
    try:
        connection.sock = connect(server.host, server.http_port, answer_s)
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


def is_lost(server: Server) -> bool:
    """Return whether a server's Unix sockets cannot be reached: what their paths led to was removed."""
    if socket_path(server.host, 0) is None:
        return False
    folder = Path(server.host.removeprefix(UNIX)).parent
    return not folder.is_dir() or any(not os.path.exists(path) for path, _ in _sockets(server))


def unread(server: Server) -> int | None:
    """Return the bytes that wait at a server's Unix sockets, and the connections; 0 where it is on ports.

    None where the kernel lists no such socket, as of a container in a network namespace of its own.
    """
    if socket_path(server.host, 0) is None:
        return 0
    queues = [queue for _, queue in _sockets(server)]
    return sum(queues) if queues else None


def _sockets(server: Server) -> list[tuple[bytes, int]]:
    """Return the path of each of a server's Unix sockets, and what waits there.

    By the netlink protocol of sock_diag(7), which lists the network namespace of this process.
    """
    name = os.fsencode(server.host.removeprefix(UNIX)) + b":"
    found: list[tuple[bytes, int]] = []
    with contextlib.suppress(OSError), socket.socket(AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_S)
        kernel.send(_QUERY)
        while True:
            part = kernel.recv(2**18)
            while part:
                size, kind = struct.unpack_from("=IH", part)
                if kind != _SOCK_DIAG_BY_FAMILY:
                    return found
                attributes = _attributes(part[_MESSAGE_HEAD:size])
                if (path := attributes.get(_NAME, b"").rstrip(b"\0")).startswith(name):
                    found.append((path, struct.unpack_from("=I", attributes[_QUEUE])[0]))
                part = part[size:]
    return found


AF_NETLINK = 16
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_NAME, _QUEUE = 0, 4
"""UNIX_DIAG_NAME and UNIX_DIAG_RQLEN of linux/unix_diag.h."""
_SHOWN = 1 << _NAME | 1 << _QUEUE
_ALL_STATES = 2**32 - 1
_QUERY = struct.pack(
    "=IHHIIBBHIIIII",
    *(40, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0),
    *(socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOWN, 0, 0),
)
_MESSAGE_HEAD = 32
"""Of nlmsghdr and unix_diag_msg."""


def _attributes(text: bytes) -> dict[int, bytes]:
    found = {}
    while len(text) >= 4:
        size, kind = struct.unpack_from("=HH", text)
        found[kind] = text[4:size]
        text = text[-(-size // 4) * 4 :]
    return found


def await_read(server: Server, seconds: float) -> None:
    """Wait until a server that runs again has read what arrived while it was stopped.

    Once it is to end, it would refuse that. Where that cannot be seen, wait for all of the time.
    """
    deadline = time.monotonic() + seconds
    while unread(server) != 0 and time.monotonic() < deadline:
        time.sleep(0.005)  # the kernel has no event for it
    # What was read last is handed on before this answer.
    is_ready(server, answer_s=max(deadline - time.monotonic(), 0.1))
