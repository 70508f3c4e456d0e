"""The few bytes of protobuf the facade looks at: a message goes on as it came, never parsed whole."""

from __future__ import annotations


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
