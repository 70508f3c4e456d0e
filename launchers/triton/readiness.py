"""Whether a Triton is up: it answers, it is the one we started, and its models are ready."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from controlplane.domain.errors import NotNow, is_own_lack
from controlplane.domain.fleet import Server

_ANSWER_S = 2.0


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
