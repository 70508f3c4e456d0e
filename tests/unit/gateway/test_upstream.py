"""What comes from gRPC's server on its way to HAProxy."""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.fleet import Backend
from controlplane.files.gateway_paths import open_log
from controlplane.gateway.facade.records import ABANDONED, Records
from controlplane.gateway.facade.upstream import _End, _Inner, relay, unconnected
from controlplane.monitor.records import parse

DATA, TRAILERS, RESET = 0, 1, 3


def frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 5)) + payload


class Sent:
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, data: bytes) -> None:
        self.content += data


payloads = st.binary(max_size=40)
frames = st.one_of(
    st.builds(frame, st.sampled_from([DATA, TRAILERS, 4, 6]), payloads),
    st.builds(frame, st.just(RESET), st.sampled_from([bytes(4), b"\0\0\0\x08"])),
)


@given(st.lists(frames, max_size=8), st.data())
def test_all_frames_pass_but_resets_without_an_error(sent: list[bytes], data: st.DataObject) -> None:
    inner, haproxy, connection = _Inner(), _End(), Sent()
    inner.other = haproxy
    haproxy.transport = cast(Any, connection)
    stream = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    for start, end in zip((0, *cuts), (*cuts, len(stream)), strict=True):
        inner.data_received(stream[start:end])
    assert connection.content == b"".join(one for one in sent if one != frame(RESET, bytes(4)))


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN: unix:/s: No such file or directory", True),
        ("Socket closed", True),
        ("recvmsg:Connection reset by peer", True),
        ("GOAWAY received; Error code: 0", True),
        ("cannot connect to the database: Connection reset by peer", False),
        ("Request timeout expired", False),
    ],
)
def test_a_models_own_words_for_a_lost_connection_are_no_lost_server(words: str, lost: bool) -> None:
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details=words)
    assert unconnected(error) is lost


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_request_that_its_client_left_is_none_that_was_answered(tmp_path: Path, abandoned: bool) -> None:
    path = tmp_path / "log.pipe"
    with open(open_log(path), "rb", buffering=0) as monitor:
        records = Records(open_log(path))
        try:
            server = Backend("s", "127.0.0.1", 8000, 8001)
            flags = ABANDONED if abandoned else "--"
            records.request("w", server, time.monotonic(), (1, 0), http=0, flags=flags)
        finally:
            records.close()
        record = parse(monitor.read(4096))
    assert record is not None
    assert (record.endpoint, record.abandoned) == ("w", abandoned)


def test_what_comes_before_the_servers_end_is_connected_reaches_it_first(tmp_path: Path) -> None:
    words = b"preface", b"first request"

    async def passed_on() -> bytes:
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.set_result(await reader.read())
            writer.close()

        server = await asyncio.start_unix_server(take, tmp_path / "server")
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as haproxy:
            listener.bind(str(tmp_path / "relay"))
            listener.listen()
            haproxy.connect(str(tmp_path / "relay"))
            haproxy.sendall(words[0])
            relayed = await relay(listener, tmp_path / "server")
            haproxy.sendall(words[1])
            haproxy.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(10), server, relayed:
                return await received

    assert asyncio.run(passed_on()) == b"".join(words)
