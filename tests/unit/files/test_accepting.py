"""Servers without descriptors: nothing spins, little is logged, and what waited is answered afterwards."""

import asyncio
import socket
import threading
import time
from asyncio import constants
from pathlib import Path

import pytest
from http_server import HOST, Quiet, in_thread
from no_descriptors import without_descriptors

from controlplane.files.gateway import accepting

CLIENTS = 20
TRIES = 5
LEAST_S = 0.05
"""Of a core while nothing can be accepted."""


def test_a_server_of_asyncio_waits_for_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ACCEPT_RETRY_DELAY", 0.1)
    path = str(tmp_path / "s")
    tried = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def run() -> None:
        nonlocal tried
        loop, enough = asyncio.get_running_loop(), asyncio.Event()

        def failed(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            nonlocal tried
            tried += 1
            loop.default_exception_handler(context)
            if tried >= TRIES:
                enough.set()

        loop.set_exception_handler(failed)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(CLIENTS)]
        async with await asyncio.start_unix_server(answer, path):
            with without_descriptors():
                began_s = time.monotonic()
                for client in clients:
                    client.connect(path)
                    client.sendall(b"word\n")
                await asyncio.wait_for(enough.wait(), 30)
                # From Python 3.14 on a round tries twice.
                assert time.monotonic() - began_s > 0.1 * (TRIES // 2 - 1), "a pause between two rounds"
            for client in clients:
                client.setblocking(False)
                assert await asyncio.wait_for(loop.sock_recv(client, 9), 30) == b"word\n"
                client.close()

    accepting.run(run())
    said = capfd.readouterr().err
    assert len(said.splitlines()) == 1, said


def test_a_server_in_threads_waits_for_descriptors() -> None:
    class Answer(Quiet):
        def do_GET(self) -> None:
            self.answer(status=204)

    tries = threading.Semaphore(0)

    class Server(accepting.QueuingHTTPServer):
        def get_request(self) -> tuple[socket.socket, object]:
            tries.release()
            return super().get_request()

    server = Server((HOST, 0), Answer)
    with in_thread(server), socket.socket() as client:
        with without_descriptors():
            client.connect(server.server_address[:2])
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            used_s = time.process_time()
            assert all(tries.acquire(timeout=30) for _ in range(2)), "tried again"
            assert time.process_time() - used_s < LEAST_S
        client.settimeout(30)
        assert b" 204 " in client.recv(99)


@pytest.mark.parametrize(("error", "printed"), [(BrokenPipeError, False), (ValueError, True)])
def test_a_client_that_went_away_is_no_error(
    error: type[Exception], printed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    class Answer(Quiet):
        def do_GET(self) -> None:
            raise error

    server = accepting.QueuingHTTPServer((HOST, 0), Answer)
    with in_thread(server), socket.create_connection((HOST, server.server_port)) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(1) == b"", "its connection is closed"
    assert (error.__name__ in capfd.readouterr().err) is printed
