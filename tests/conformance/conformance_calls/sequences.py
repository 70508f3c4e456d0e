"""Sequences, each with a redirect in its middle."""

import json
from functools import partial
from typing import Any

from conformance_calls.case import Cases, Target, infer, x

CASES = Cases()


def _stepped(target: Target, kind: str, model: str, name: int | str = 21, **how: Any) -> Any:
    steps = []
    for number in range(4):
        flags = {"sequence_id": name, "sequence_start": number == 0, "sequence_end": number == 3}
        steps.append(infer(target, kind, model, x(number + 1, shape=(1, 1)), **flags, **how))
        if number == 1:
            target.middle()
    return steps


for _kind, _option in (("http", "request_compression_algorithm"), ("grpc", "compression_algorithm")):
    for _of, _how in {
        "direct": {"model": "direct"},
        "oldest": {"model": "oldest"},
        "direct, compressed": {"model": "direct", _option: "gzip", "request_id": "i" * 500},
        "a name": {"model": "texts", "name": "a b"},
        "a name of digits": {"model": "texts", "name": "21"},
    }.items():
        CASES.add(f"{_kind}: a sequence of {_of}, redirected", partial(_stepped, kind=_kind, **_how))


def _at_once(target: Target, model: str) -> Any:
    """More than one instance has places for."""
    found = []
    for step in range(3):
        for name in range(1, 6):
            flags = {"sequence_id": name, "sequence_start": step == 0, "sequence_end": step == 2}
            found.append(infer(target, "grpc", model, x(name, shape=(1, 1)), **flags))
    return found


for _model in ("direct", "oldest"):
    CASES.add(f"grpc: five sequences of {_model} at once", partial(_at_once, model=_model))


@CASES.case("http: a sequence by generate")
def _(target: Target) -> Any:
    found = []
    for number in range(3):
        flags = {"sequence_id": 9, "sequence_start": number == 0, "sequence_end": number == 2}
        body = {"X": number, **(flags if number % 2 else {"parameters": flags})}
        found.append(target.raw("POST", "/v2/models/direct/generate", json.dumps(body)))
    return found
