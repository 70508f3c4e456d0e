"""What is heard of a facade that is gone, and of one that hangs."""

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from no_descriptors import without_descriptors

from controlplane.sockets import Silent, Unreachable, ask


@pytest.fixture
def hangs(nearby: Path) -> Iterator[Path]:
    """Its socket listens, for two who wait at once, and nobody answers there."""
    path = nearby / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        yield path


def test_one_that_hangs_is_no_dead_one_however_many_wait(hangs: Path) -> None:
    with contextlib.ExitStack() as waiting:
        with pytest.raises(Silent):
            ask(hangs, {"do": "open"}, timeout_s=0.05)
        with contextlib.suppress(BlockingIOError):
            while True:
                stream = waiting.enter_context(socket.socket(socket.AF_UNIX))
                stream.setblocking(False)
                stream.connect(str(hangs))
        with pytest.raises(Silent):
            ask(hangs, {"do": "open"}, timeout_s=0.05)


def test_one_that_cannot_be_asked_for_want_of_descriptors_may_have_calls(hangs: Path) -> None:
    with without_descriptors(), pytest.raises(Silent):
        ask(hangs, {"do": "open"})


@pytest.mark.parametrize("answer", [b"", b'{"triton": {"requ'])
def test_one_that_ends_while_it_answers_is_gone(nearby: Path, answer: bytes) -> None:
    def end(listening: socket.socket) -> None:
        stream, _ = listening.accept()
        with stream:
            stream.recv(64)
            stream.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as pool:
        listening.bind(str(nearby / "s"))
        listening.listen(1)
        ended = pool.submit(end, listening)
        with pytest.raises(Unreachable) as gone:
            ask(nearby / "s", {"do": "open"})
        ended.result()
    assert not isinstance(gone.value, Silent)


def test_one_that_is_gone_holds_nothing(hangs: Path) -> None:
    hangs.unlink()
    with pytest.raises(Unreachable) as gone:
        ask(hangs, {"do": "open"})
    assert not isinstance(gone.value, Silent)
