"""Whether a Triton is up: it answers, it is the one we started, and its models are ready."""

from __future__ import annotations

import http.client
import json
from typing import Any

from controlplane.domain.fleet import Server

_ANSWER_S = 2.0


def is_ready(server: Server, answer_s: float = _ANSWER_S) -> bool:
    """Whether this very server answers, each time within `answer_s`, and has every one of its models ready.

    A port that somebody else holds gives a false "ready": the answer must carry the server's own name.
    """
    told = _call(server, "GET", "/v2", answer_s)
    if not isinstance(told, dict) or told.get("name") != server.name:
        return False
    index = _call(server, "POST", "/v2/repository/index", answer_s)
    if not isinstance(index, list):
        return False
    ready = {m.get("name") for m in index if m.get("state") == "READY"}
    return ready.issuperset(server.spec.endpoints)


def _call(server: Server, method: str, path: str, answer_s: float) -> Any:
    """The answer's JSON; None where there is none."""
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=answer_s)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return json.loads(answer.read()) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
