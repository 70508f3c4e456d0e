"""Reading of single fields of protobuf messages, which are forwarded unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2

_LARGEST_FIELD = 2**29 - 1
_MOST_FIELDS = 10_000
"""Real requests have tens; each costs the event loop half a microsecond."""


class Malformed(Exception):
    """A message that the gateway refuses to route."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """The sequence of a request. `id` is empty without one."""

    id: str
    start: bool
    end: bool


def as_bytes(message: Any) -> bytes:
    """Return a message of protobuf on the wire."""
    serialised: bytes = message.SerializeToString()
    return serialised


def sequence_of(message: bytes) -> Sequence:
    """From a ModelInferRequest's parameters; this one is parsed whole, models with sequences are rare."""
    try:
        parameters = service_pb2.ModelInferRequest.FromString(message).parameters
    except Exception:  # protobuf's DecodeError: the server will say what is wrong with it
        return Sequence("", False, False)
    name = ""
    if "sequence_id" in parameters:
        given = parameters["sequence_id"]
        name = str(getattr(given, given.WhichOneof("parameter_choice") or "string_param"))
    return Sequence(
        "" if name == "0" else name,
        "sequence_start" in parameters and parameters["sequence_start"].bool_param,
        "sequence_end" in parameters and parameters["sequence_end"].bool_param,
    )


def stream_error(answer: bytes) -> str:
    """Return the error of a ModelStreamInferResponse, whose first field it is; empty without one."""
    if answer[:1] != b"\x0a":
        return ""
    length, start = _varint(answer, 1)
    return answer[start : start + length].decode(errors="replace")


def text_field(message: bytes, number: int) -> str:
    """A string field of a protobuf message; empty where it is absent. Raises Malformed.

    Every field is passed over, since protobuf reads the last of several. What two parsers could read in two
    ways is refused: a field given twice, a tag that is not in its shortest form, a group.
    Source: protobuf.dev/programming-guides/encoding (varints, wire types 0, 1, 2 and 5).
    """
    found: str | None = None
    at, end = 0, len(message)
    for _ in range(_MOST_FIELDS):
        if at == end:
            return found or ""
        start = at
        tag, at = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        shortest = max(1, (tag.bit_length() + 6) // 7)
        if not 0 < field <= _LARGEST_FIELD or at - start != shortest:
            raise Malformed("a field's tag is malformed")
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        elif kind == 2:
            length, start = _varint(message, at)
            at = start + length
            if field == number and at <= end:
                if found is not None:
                    raise Malformed(f"field {number} is given more than once")
                try:
                    found = message[start:at].decode()
                except UnicodeDecodeError as error:
                    raise Malformed(f"field {number} is not UTF-8") from error
        else:
            raise Malformed(f"wire type {kind} is not supported")
        if at > end:
            raise Malformed("a field ends after the message")
    raise Malformed(f"the message has more than {_MOST_FIELDS} fields")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Value and the place behind it. Raises Malformed."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed("a number does not end")
