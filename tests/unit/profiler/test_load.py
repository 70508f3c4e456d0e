"""The closed loop against a gRPC server that remembers what it received."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import grpc
import pytest

from controlplane.profiler.load import ClosedLoop


class Slow(grpc.GenericRpcHandler):
    """Answers the first `b` only when released."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.arrived, self.release = threading.Event(), threading.Event()

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        self.received.append(request)
        if request == b"b":
            self.arrived.set()
            self.release.wait(30.0)
        return b""


def test_a_sequence_is_not_cut_off_at_the_end_of_a_measurement() -> None:
    handler = Slow()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=(handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with ClosedLoop(f"127.0.0.1:{port}", [b"a", b"b", b"c"], 1, ends=[False, False, True]):
                assert handler.arrived.wait(30.0)
                # Released once the loop is about to end, in the middle of a sequence.
                threading.Timer(0.2, handler.release.set).start()
        finally:
            server.stop(None)
    assert handler.received[-1] == b"c"


def test_an_interruption_of_the_entry_closes_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Mock()
    channel.unary_unary.side_effect = KeyboardInterrupt
    monkeypatch.setattr("controlplane.profiler.load.grpc.insecure_channel", lambda *_, **__: channel)
    with pytest.raises(KeyboardInterrupt), ClosedLoop("127.0.0.1:1", [b""], 1):
        pass
    channel.close.assert_called_once()
