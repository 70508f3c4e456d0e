"""What a Triton has not read, and what its log says: lines of Triton 2.51."""

import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import build
import pytest

from launchers.triton import readiness
from launchers.triton.readiness import unread

BROKEN_MODEL = r"""
W1121 11:41:01.549040 17353 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
E1121 11:41:01.549225 17353 server.cc:241] "CudaDriverHelper has not been initialized."
I1121 11:41:01.550568 17353 model_lifecycle.cc:472] "loading: echo:1"
E1121 11:41:01.887269 17353 backend_model.cc:692] "ERROR: Failed to create instance: RuntimeError: no such engine\n\nAt:\n  /tmp/model.py(1): <module>\n"
E1121 11:41:01.887452 17353 model_lifecycle.cc:642] "failed to load 'echo' version 1: Internal: RuntimeError: no such engine\n\nAt:\n  /tmp/model.py(1): <module>\n"
I1121 11:41:01.887476 17353 model_lifecycle.cc:777] "failed to load 'echo'"
error: creating server: Internal - failed to load all models
"""  # noqa: E501
RACE = """
I1121 21:40:50.276486 11097 model_lifecycle.cc:472] "loading: tiny:1"
I1121 21:40:50.294406 11097 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: tiny_0_0"
terminate called after throwing an instance of 'boost::interprocess::lock_exception'
  what():  boost::interprocess::lock_exception
"""


STEPS = "".join(f'I1121 11:41:01.5 17353 x.cc:1] "step {i}"\n' for i in range(20))
WARNED = "[WARN] evhtp.c:4050 NODELAY NOT SUPPORTED :: (errno: Operation not supported)\n"


@pytest.mark.parametrize(
    ("log", "reasons"),
    [
        (BROKEN_MODEL, ["failed to load 'echo' version 1: Internal: RuntimeError: no such engine"]),
        (
            "error: creating server: Internal - no such flag\n",
            ["error: creating server: Internal - no such flag"],
        ),
        (STEPS + "+---+\n| a |\n", STEPS.splitlines()[-6:]),
        (f"the last words\n{WARNED * 9}", ["the last words"]),
        ("", []),
    ],
    ids=["a model's own words", "no model failed", "no error", "a warning of each connection", "empty"],
)
def test_the_reasons_are_the_most_telling_lines(log: str, reasons: list[str]) -> None:
    assert readiness.reasons(log) == reasons


@pytest.mark.parametrize(
    ("backend", "way_out"),
    [
        ("tensorflow", "no tensorflow from 25.03 on: convert the model"),
        ("tensorrtllm", "no C++ backend since July 2026: serve the model by its LLM API"),
        ("mine", "image with the backend mine"),
    ],
)
def test_a_backend_that_an_image_has_not_comes_with_the_way_out(backend: str, way_out: str) -> None:
    log = (
        "E1126 19:52:00.004600 24427 model_lifecycle.cc:642] \"failed to load 'm' version 1: "
        f"Invalid argument: unable to find backend library for backend '{backend}', try specifying "
        'runtime on the model configuration."\n'
    )
    line, last = readiness.reasons(log)
    assert line.startswith("failed to load 'm'")
    assert way_out in last


def test_what_may_go_well_next_time() -> None:
    assert readiness.failed_by_chance(RACE)
    assert not readiness.failed_by_chance(BROKEN_MODEL)


def test_what_a_server_has_not_read_is_counted_at_its_sockets_alone(tmp_path: Path) -> None:
    server, other = (replace(build.server(build.spec("p")), host=f"unix:{tmp_path}/{name}") for name in "ts")
    path = f"{tmp_path}/t:{server.http_port}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen()
        assert unread(server) == 0
        client.connect(path)
        assert unread(server) == 1, "a connection that is not accepted"
        connection = listener.accept()[0]
        with connection:
            client.sendall(b"x" * 100)
            assert unread(server) == 100
            assert unread(other) is None
            connection.recv(100)
            assert unread(server) == 0


def test_what_cannot_be_seen_at_a_server_is_given_all_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = replace(build.server(build.spec("p")), host=f"unix:{tmp_path}/t")
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(readiness, "time", clock)
    readiness.await_read(elsewhere, 1.0)
    assert sum(slept) >= 1.0
    readiness.await_read(build.server(build.spec("p")), 1.0)
    assert sum(slept) < 1.1, "one on ports has none"


def test_a_warning_of_each_connection_is_no_part_of_a_log() -> None:
    assert readiness.said(f"begins\n{WARNED * 3}ends") == "begins\nends"
