"""Reading of a model's configuration for the properties that routing depends on."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Sequence

from controlplane.domain.fleet import Backend
from controlplane.files.gateway import Traits

_DEFAULT_IDLE_US = 1_000_000
"""max_sequence_idle_microseconds where a configuration leaves it out (model_config.proto)."""


def traits_of(endpoint: str, members: Sequence[Backend], *, patience_s: float) -> Traits | None:
    """From the first member that answers, each within `patience_s`; None where none does."""
    import http.client  # not needed by verbs that only look

    for member in members:
        connection = http.client.HTTPConnection(member.host, member.http_port, timeout=patience_s)
        try:
            connection.request("GET", f"/v2/models/{urllib.parse.quote(endpoint, safe='')}/config")
            answer = connection.getresponse()
            content = json.loads(answer.read()) if answer.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            continue
        finally:
            connection.close()
        if isinstance(content, dict):
            sequence = content.get("sequence_batching")
            idle = None
            if sequence is not None:
                idle = int(sequence.get("max_sequence_idle_microseconds") or _DEFAULT_IDLE_US)
            decoupled = bool(content.get("model_transaction_policy", {}).get("decoupled", False))
            steps = content.get("ensemble_scheduling", {}).get("step", [])
            return Traits(decoupled, idle, steps[0]["model_name"] if len(steps) == 1 else endpoint)
    return None
