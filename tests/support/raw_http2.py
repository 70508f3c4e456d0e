"""One gRPC call as raw HTTP/2: frames that no client library sends.

Source: RFC 9113 (frames), RFC 7541 6.2.2 (headers as literals, so that no table is needed).
"""

import socket
import struct
from collections.abc import Mapping, Sequence

from controlplane.sockets import connect

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_LARGEST_FRAME = 16384
_WIDE = 2**30


def call(
    address: str,
    method: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float = 30.0,
) -> bytes | None:
    """The data of the answer; None where the stream or the connection was ended without any."""
    host, _, port = address.rpartition(":")
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/inference.GRPCInferenceService/{method}",
        ":authority": address,
        "content-type": "application/grpc",
        "te": "trailers",
        **(headers or {}),
    }
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())
    parts = [body[at : at + _LARGEST_FRAME] for at in range(0, len(body), _LARGEST_FRAME)] or [b""]
    sent = [
        _PREFACE,
        _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, _WIDE)),
        _frame(_WINDOW, 0, 0, struct.pack(">I", _WIDE)),
        _frame(_HEADERS, _END_HEADERS, 1, block),
        *_data(parts),
    ]
    with connect(host, int(port), timeout_s) as connection:
        connection.sendall(b"".join(sent))
        return _answer(connection)


def frame_of(message: bytes, *, compressed: bool = False, length: int | None = None) -> bytes:
    """A gRPC message with its prefix, whose length may lie."""
    return struct.pack(">BI", compressed, len(message) if length is None else length) + message


def _data(parts: Sequence[bytes]) -> list[bytes]:
    last = len(parts) - 1
    return [_frame(_DATA, _END_STREAM if i == last else 0, 1, part) for i, part in enumerate(parts)]


def _answer(connection: socket.socket) -> bytes | None:
    found: list[bytes] = []
    while True:
        head = _exactly(connection, 9)
        if head is None:
            return None
        payload = _exactly(connection, int.from_bytes(head[:3], "big"))
        if payload is None or head[3] in (_RESET, _GOAWAY):
            return None
        if head[3] == _SETTINGS and not head[4] & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        if head[3] == _PING and not head[4] & _ACK:
            connection.sendall(_frame(_PING, _ACK, 0, payload))
        if head[3] == _DATA:
            found.append(payload)
        if head[3] in (_DATA, _HEADERS) and head[4] & _END_STREAM:
            return b"".join(found) or None


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        try:
            part = connection.recv(count - len(found))
        except ConnectionError:
            return None
        if not part:
            return None
        found += part
    return found


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) < 127, "a longer one needs a longer prefix"
    return bytes([len(raw)]) + raw
