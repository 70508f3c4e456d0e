"""HAProxy's runtime interface where HAProxy dies over a question: no real one can be killed just then."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.gateway.running import RuntimeSocket, Sessions, Unreachable, reuses_grpc

HEADER = (
    "# pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,bout,dreq,dresp,ereq,econ,eresp,"
    "wretr,wredis,status,weight,\n"
)
ROWS = "h_1,s0,0,1,2,4,,9,0,0,,0,,0,0,0,0,UP,1,\nh_1,BACKEND,1,1,2,4,10,9,0,0,0,0,,0,0,0,0,DOWN,1,\n\n"


@contextmanager
def answering(directory: Path, answer: str) -> Iterator[RuntimeSocket]:
    """A socket that answers one question so and ends."""
    path = directory / "haproxy.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            stream, _ = listening.accept()
            with stream:
                stream.recv(4096)
                stream.sendall(answer.encode())

        serving = threading.Thread(target=serve)
        serving.start()
        yield RuntimeSocket(path)
        serving.join(10.0)


def test_sessions_are_read(nearby: Path) -> None:
    with answering(nearby, HEADER + ROWS) as runtime:
        assert runtime.sessions(["h_1"]) == {
            ("h_1", "s0"): Sessions(2, 0),
            ("h_1", "BACKEND"): Sessions(2, 1, up=False),
        }


def test_several_backends_are_one_question(nearby: Path) -> None:
    with answering(nearby, HEADER + ROWS + HEADER + ROWS.replace("h_1", "g_1")) as runtime:
        found = runtime.sessions(["h_1", "g_1"])
    assert [key for key in found if key[1] == "BACKEND"] == [("h_1", "BACKEND"), ("g_1", "BACKEND")]


@pytest.mark.parametrize("answer", ["", HEADER, HEADER + "h_1,s0,0,1,2,4\nh_1,BAC", HEADER + ROWS[:-9]])
def test_an_answer_that_is_cut_short_is_none(nearby: Path, answer: str) -> None:
    with answering(nearby, answer) as runtime, pytest.raises(Unreachable, match="HAProxy ended"):
        runtime.sessions(["h_1"])


def test_no_word_at_all_is_no_consent(nearby: Path) -> None:
    with answering(nearby, "") as runtime, pytest.raises(Unreachable):
        runtime.run(["set server h_1/s0 state ready"])
    (nearby / "haproxy.sock").unlink()
    with answering(nearby, "\n") as runtime:
        runtime.run(["set server h_1/s0 state ready"])


@pytest.mark.parametrize(
    ("version", "reuses"),
    [
        ("HAProxy version 2.6.12-1+deb12u4", False),
        ("HAProxy version 2.6.18", True),
        ("HAProxy version 2.7.12", False),
        ("HAProxy version 2.8.9", False),
        ("HAProxy version 2.8.10", True),
        ("HAProxy version 2.9.1", False),
        ("HAProxy version 3.0.11-1+deb13u1", True),
        ("HAProxy version 3.3-dev5-0d35f7", True),
    ],
)
def test_which_haproxy_reuses_connections_for_grpc(version: str, reuses: bool) -> None:
    assert reuses_grpc(version) is reuses
