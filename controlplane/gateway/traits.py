"""Reading of a model's configuration for the properties that routing depends on."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Backend
from controlplane.files.gateway import Traits

_DEFAULT_IDLE_US = 1_000_000
"""max_sequence_idle_microseconds where a configuration leaves it out (model_config.proto)."""


def traits_of(endpoint: str, members: Sequence[Backend], *, patience_s: float) -> Traits | None:
    """From the first member that answers, each within `patience_s`; None where none does."""
    from controlplane.triton.client import TritonClient  # not needed by verbs that only look

    for member in members:
        try:
            content = TritonClient(member, deadline_s=patience_s).config(endpoint)
        except EngineError:
            continue
        if isinstance(content, dict):
            sequence = content.get("sequence_batching")
            idle = None
            if sequence is not None:
                idle = int(sequence.get("max_sequence_idle_microseconds") or _DEFAULT_IDLE_US)
            decoupled = bool(content.get("model_transaction_policy", {}).get("decoupled", False))
            steps = content.get("ensemble_scheduling", {}).get("step", [])
            return Traits(decoupled, idle, steps[0]["model_name"] if len(steps) == 1 else endpoint)
    return None
