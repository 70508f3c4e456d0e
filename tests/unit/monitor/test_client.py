"""Following a log whose sender comes and goes."""

from functools import partial
from pathlib import Path

import pytest
from build import Clock
from monitor_log import accepted, line, listening, taken

from controlplane.monitor import client
from controlplane.monitor.client import BEAT_S, RequestLog, local


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    hand = Clock(100.0)
    monkeypatch.setattr(client, "time", hand)
    return hand


@pytest.fixture
def place(nearby: Path) -> Path:
    return nearby / "s"


def test_requests_that_were_answered_failed_or_left_with_a_server_are_taken_in_order(place: Path) -> None:
    with listening(place) as server:
        log = RequestLog(partial(local, place))
        try:
            with accepted(server) as stream:
                stream.sendall(line(1) + b"\nno line of ours\n" + line(2, b"<NOSRV>") + line(3, flags=b"CR"))
                half = line(4)
                stream.sendall(half[:20])
                stream.sendall(half[20:])
                stream.sendall(line(5, b"<NOSRV>").replace(b" 200 ", b" 503 "))
                # A gate does not say at which server its client left it.
                stream.sendall(line(6, flags=b"CH") + line(7, b"-", flags=b"CH"))
                found = taken(log, 5)
            assert [record.number for record in found] == [1, 4, 5, 6, 7]
            assert (found[2].server, found[2].failed) == ("", True), "no program listened for it"
            assert (found[0].endpoint, found[0].server) == ("alexnet", "f.p.active.1:abc")
            assert (found[0].ended_s, found[0].latency_ms, found[0].failed) == (100.75, 250.0, False)
        finally:
            log.close()


def test_a_gap_in_hearing_is_known_and_the_log_followed_again(place: Path, clock: Clock) -> None:
    log = RequestLog(partial(local, place))
    try:
        assert log.heard_since_s == 100.0, "nobody is there yet"
        with listening(place) as server:
            assert log.take() == []
            with accepted(server) as stream:
                stream.sendall(line(1))
                clock.now_s = 101.0
                assert len(taken(log, 1)) == 1
                clock.now_s += BEAT_S
                assert log.heard_since_s == 101.0
                stream.sendall(line(1)[:20])
            assert log.take() == [], "its end, within a line"
            assert log.take() == []
            clock.now_s = 102.0
            assert log.heard_since_s == 102.0
            with accepted(server) as stream:
                stream.sendall(line(2))
                assert [record.number for record in taken(log, 1)] == [2]
                clock.now_s += BEAT_S
                assert log.heard_since_s == 102.0
    finally:
        log.close()


def test_a_monitor_that_is_held_up_is_waited_for(place: Path, clock: Clock) -> None:
    with listening(place) as server:
        log = RequestLog(partial(local, place))
        try:
            with accepted(server) as stream:
                stream.sendall(line(1))
                assert len(taken(log, 1)) == 1
                clock.now_s += 4 * BEAT_S
                assert log.heard_since_s == clock.now_s, "silence is noticed"
                stream.sendall(line(2))
                assert [record.number for record in taken(log, 1)] == [2]
                assert log.heard_since_s == 100.0, "nothing was lost meanwhile"
        finally:
            log.close()
