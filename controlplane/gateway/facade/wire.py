"""The few bytes of protobuf the facade looks at: a message goes on as it came, never parsed whole."""

from __future__ import annotations

from dataclasses import dataclass

from tritonclient.grpc import service_pb2


@dataclass(frozen=True, slots=True)
class Sequence:
    """What a request says about the sequence it belongs to. `id` is empty where it names none."""

    id: str
    start: bool
    end: bool


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


def text_field(message: bytes, number: int) -> str | None:
    """The first occurrence of a string field of a protobuf message; None where it is absent or broken.

    Source: protobuf.dev/programming-guides/encoding (varints, wire types 0, 1, 2 and 5).
    """
    at = 0
    end = len(message)
    while at < end:
        tag, at = _varint(message, at)
        if at < 0:
            return None
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        elif kind == 2:
            length, at = _varint(message, at)
            if at < 0:
                return None
            if field == number:
                return message[at : at + length].decode(errors="replace") if at + length <= end else None
            at += length
        else:
            return None
        if at < 0:
            return None
    return None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Value and the place behind it; a negative place where the bytes end early."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1
