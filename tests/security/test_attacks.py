"""What a hostile client sends on raw sockets, beside honest traffic."""

import contextlib
import gzip
import http.client
import itertools
import json
import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gateway_rig as rig
import psutil
import pytest
from background import meanwhile, until
from gateway_clients import BODY, Target, connected, sent, served

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes

INFER = "/v2/models/echo/infer"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
ADMIN = (
    "/v2/repository/models/echo/load",
    "/v2/repository/models/echo/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/echo/trace/setting",
    "/v2/models/echo/versions/1/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/unregister",
)


class Attacked:
    """One gateway in front of one server, and honest requests whose latencies are remembered."""

    def __init__(self, target: Target, places: GatewayPaths, triton: rig.Triton) -> None:
        self.target = target
        self.places = places
        self.triton = triton

    def processes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(processes.find(self.places, role) for role in processes.ALL)

    def state(self) -> list[bytes]:
        """What admin calls would change, from the server itself."""
        bare = Target(f"{rig.HOST}:{self.triton.http_port}", "", Path())
        paths = ("/v2/logging", "/v2/trace/setting", "/v2/models/echo/trace/setting", "/v2/models/echo/ready")
        return [bare.raw("GET", path)[1] for path in paths]

    def honest(self, count: int) -> list[float]:
        """Latencies of so many requests on a kept connection, all of which must succeed."""
        connection = http.client.HTTPConnection(self.target.http, timeout=60)
        found = []
        try:
            for _ in range(count):
                started = time.monotonic()
                connection.request("POST", INFER, BODY)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                found.append(time.monotonic() - started)
        finally:
            connection.close()
        return found


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    here = tmp_path_factory.mktemp("attacked")
    with served(here, {"echo": "echo"}, fleet_wide_calls=False) as made:
        rig.only(made.places, processes.HAPROXY)  # a first one may have been replaced
        yield Attacked(made.target, made.places, made.triton)


@pytest.fixture(autouse=True)
def unharmed(attacked: Attacked) -> Iterator[None]:
    """No process of the gateway dies, no admin call takes effect, honest requests are answered afterwards."""
    before, state = attacked.processes(), attacked.state()
    yield
    assert attacked.honest(5)
    assert attacked.processes() == before
    assert attacked.state() == state


@pytest.mark.parametrize("slow", ["headers", "bodies"])
def test_slow_clients_leave_honest_traffic_alone(attacked: Attacked, slow: str) -> None:
    count = 1000
    opening = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: x\r\n"
    if slow == "bodies":
        opening += b"Content-Length: 100000\r\n\r\n"

    def attack(stop: threading.Event) -> None:
        while not stop.wait(0.1):
            for number, connection in enumerate(opened):
                with contextlib.suppress(OSError):
                    connection.send(b"X-a: b\r\n" if slow == "headers" else b"x")
                if number % 100 == 0 and stop.is_set():
                    return

    with contextlib.ExitStack() as held:
        opened = []
        for _ in range(count):
            connection = held.enter_context(connected(attacked.target.http))
            connection.sendall(opening)
            connection.setblocking(False)
            opened.append(connection)
        with meanwhile(attack):
            assert len(attacked.honest(200)) == 200


def test_a_bomb_is_refused_and_fills_no_memory(attacked: Attacked) -> None:
    bomb = gzip.compress(bytes(400 * 2**20), compresslevel=1)
    (facade,) = processes.find(attacked.places, processes.FACADE)
    status, answer, _ = attacked.target.raw("POST", INFER, bomb, {"Content-Encoding": "gzip"})
    assert (status, b"larger than" in answer) == (413, True)
    until(lambda: psutil.Process(facade).memory_info().rss < 600 * 2**20)


@pytest.mark.parametrize("flood", ["continuations", "resets", "settings", "pings", "empty data"])
def test_floods_of_frames_leave_honest_traffic_alone(attacked: Attacked, flood: str) -> None:
    def attack(stop: threading.Event) -> None:
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                connected(attacked.target.grpc) as to,
            ):
                to.sendall(PREFACE)
                to.setblocking(False)
                sent = _frames(flood)
                while not stop.is_set():
                    try:
                        to.send(next(sent))
                    except BlockingIOError:
                        with contextlib.suppress(BlockingIOError):
                            if not to.recv(65536):
                                break
                        stop.wait(0.001)

    with meanwhile(attack):
        assert len(attacked.honest(100)) == 100


@pytest.mark.parametrize(
    "ending",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"X: y\r\n z\r\n\r\n",
    ],
)
def test_no_request_is_smuggled_in_another(attacked: Attacked, ending: bytes) -> None:
    opening = b"POST /v2/models/none/infer HTTP/1.1\r\nHost: x\r\n"
    hidden = b"POST /v2/repository/models/echo/unload HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    statuses = _statuses(sent(attacked.target.http, opening + ending + hidden))
    assert 200 not in statuses
    assert len(statuses) <= 2


@pytest.mark.parametrize("variants", [500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_no_variant_of_an_admin_path_is_obeyed(attacked: Attacked, variants: int) -> None:
    chance = random.Random(2)
    body = json.dumps({"log_verbose_level": 3, "trace_level": ["TIMESTAMPS"]}).encode()
    connection = http.client.HTTPConnection(attacked.target.http, timeout=60)
    statuses = set()
    for path in itertools.islice(_variants(chance), variants):
        connection.putrequest(chance.choice(("POST", "PUT")), path, skip_host=True)
        connection.putheader("Host", "x")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.read()
        statuses.add(answer.status)
    connection.close()
    assert not statuses & set(range(200, 400)), statuses


def test_names_that_break_lines_make_no_lines_of_the_log(attacked: Attacked) -> None:
    for name in ("a%0ab", "a%20b%20c", "a%00b", "a;b", "%23a", "a\tb", "\xff"):
        sent(
            attacked.target.http, f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin1")
        )
    assert attacked.honest(3)


def _frames(flood: str) -> Iterator[bytes]:
    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    # :method POST, :scheme http, :path /, as entries of the static table.
    headers = b"\x83\x86\x84"
    match flood:
        case "continuations":
            yield frame(0x1, 0, 1, headers)
            yield from itertools.repeat(frame(0x9, 0, 1, b"\x00\x01a\x01b" * 10))
        case "resets":
            for stream in range(1, 2**31, 2):
                yield frame(0x1, 0x4, stream, headers) + frame(0x3, 0, stream, struct.pack(">I", 8))
        case "settings":
            yield from itertools.repeat(frame(0x4, 0, 0, struct.pack(">HI", 4, 65535)))
        case "pings":
            yield from itertools.repeat(frame(0x6, 0, 0, b"12345678"))
        case _:
            yield frame(0x1, 0x4, 1, headers)
            yield from itertools.repeat(frame(0x0, 0, 1, b""))


def _statuses(answer: bytes) -> list[int]:
    """Of every answer in a connection's bytes: their bodies are JSON on one line."""
    return [int(status) for status in re.findall(rb"(?:^|\}|\n)HTTP/1\.[01] (\d{3}) ", answer)]


def _variants(chance: random.Random) -> Iterator[str]:
    """Paths that some parser could take for an admin path."""
    tricks: list[Callable[[str], str]] = [
        lambda path: path.replace("/", "//", chance.randrange(1, 4)),
        lambda path: path.replace("/", "/./", chance.randrange(1, 4)),
        lambda path: path.replace("/v2", "/v2/x/.."),
        lambda path: "/v2/models/echo/infer/../../.." + path[3:],
        lambda path: "/v2/models/echo" + path[3:],
        lambda path: "".join(f"%{ord(c):02x}" if c.isalpha() and chance.random() < 0.2 else c for c in path),
        lambda path: path.replace("/", "%2f", chance.randrange(1, 4)),
        lambda path: path.replace("/", "\\", chance.randrange(1, 4)),
        lambda path: path + chance.choice(["?", "?a=b", ";a", "%00", "%20", "/", "/.", "#x", "%3f"]),
        lambda path: "".join(c.upper() if chance.random() < 0.2 else c for c in path),
        lambda path: "http://x" + path if path.startswith("/") else path,
    ]
    while True:
        path = chance.choice(ADMIN)
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            path = chance.choice(tricks)(path)
        yield path
