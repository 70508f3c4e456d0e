"""What is written down of each minute, and read again."""

from pathlib import Path

import build
import pytest
from asked_triton import asked_triton
from build import Clock

from controlplane.control.guard.decide import begin
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, Limits, PlacedServer, Watch
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Answer, BatchStatistics
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.waiting import wait_until
from controlplane.runtime.controller import recorder as recorder_module
from controlplane.runtime.controller.recorder import Recorder
from controlplane.runtime.fleet.history import History, Minute
from controlplane.triton.client import TritonClient


def guarded(
    name: str = "W1", policy: ShadowPolicy = ShadowPolicy.NONE, aliases: tuple[str, ...] = ()
) -> GuardedPartition:
    promise = Promise("w1", 100.0, 10.0, aliases=aliases)
    return GuardedPartition(name, "cpu-0", 50.0, (promise,), policy, "cpu-0", 0.0)


def watch_of(partition: GuardedPartition) -> Watch:
    """Its server has 60 %."""
    placed = {partition.id: (PlacedServer("s", "cpu-0", 60.0),)}
    return begin((partition,), placed, Limits()).watches[partition.id]


def server_at(port: int, *endpoints: str) -> Server:
    return build.server(build.spec("W1", models=endpoints, percent=60.0), port=port)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "h.sqlite")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_minute_is_written_once_it_is_over(history: History, clock: Clock) -> None:
    watch = watch_of(guarded())
    # Nobody listens there: a server that does not answer leaves its counters out, not the minute.
    server = server_at(9, "w1")
    recorder = Recorder(history, clock)
    recorder.hear((Answer(0.0, float(i), i == 100, "w1", "s") for i in range(1, 101)), [watch])
    assert not recorder.is_due()
    clock.now_s += 61.0
    assert recorder.is_due()
    recorder.write([(watch, server)])
    assert not recorder.is_due()
    recorder.close([(watch, server)])
    (minute,) = history.minutes(0.0)
    assert (minute.partition, minute.percent, minute.requests, minute.failed) == ("W1", 60.0, 100, 1)
    assert minute.p99_ms == pytest.approx(98.0, abs=0.1)
    assert minute.batches is None


def test_of_a_minute_a_killed_controller_takes_only_the_last_moments_along(
    history: History, clock: Clock
) -> None:
    watch = watch_of(guarded())
    recorder, active = Recorder(history, clock), [(watch, None)]
    told: list[list[tuple[float, int, int, float | None]]] = []

    def written(moment_s: float, *answers: tuple[float, bool]) -> None:
        """So much later, and after these answers: latency, failed."""
        recorder.hear([Answer(0.0, ms, failed, "w1", "s") for ms, failed in answers], [watch])
        clock.now_s += moment_s
        assert recorder.is_due()
        recorder.write(active)
        at_s = clock.wall()
        assert wait_until(lambda: any(m.at_s == at_s for m in history.minutes(0.0)), deadline_s=30.0)
        told.append([(m.seconds, m.requests, m.failed, m.p99_ms) for m in history.minutes(0.0)])

    written(5.0, (1.0, False), (1.0, False))
    written(5.0)
    written(51.0, (3.0, True))
    written(6.0, (9.0, False))
    minute = (61.0, 3, 1, 1.0)
    assert told == [[(5.0, 2, 0, 1.0)], [(10.0, 2, 0, 1.0)], [minute], [minute, (6.0, 1, 0, 9.0)]]
    recorder.hear([Answer(0.0, 9.0, False, "w1", "s")], [watch])
    clock.now_s += 1.0
    recorder.close(active)
    assert [(m.seconds, m.requests) for m in history.minutes(0.0)] == [(61.0, 3), (7.0, 2)]


def test_a_full_disk_costs_the_minute_nothing_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    path.mkdir()
    history, clock = History(path), Clock()
    watch = watch_of(guarded())
    recorder = Recorder(history, clock)
    recorder.hear([Answer(0.0, 1.0, False, "w1", "s")], [watch])
    clock.now_s += 5.0
    recorder.write([(watch, None)])
    assert wait_until(lambda: history.lost == 1, deadline_s=30.0)
    path.rmdir()
    recorder.close([(watch, None)])
    (minute,) = history.minutes(0.0)
    assert (minute.requests, minute.seconds) == (1, 5.0)


def test_one_that_heard_nothing_writes_nothing_at_its_end(history: History, clock: Clock) -> None:
    watch = watch_of(guarded())
    Recorder(history, clock).close([(watch, None)])
    assert history.minutes(0.0) == ()


def test_a_minute_holds_what_was_asked_before_a_redirect_and_what_nobody_answered(
    history: History, clock: Clock
) -> None:
    partition = guarded(policy=ShadowPolicy.HOT)
    # A pool's second partition: what is known to be the first's is not counted here.
    other = guarded("W1-2")
    first, shadow, second = (PlacedServer(name, "cpu-0", 50.0) for name in ("s", "s.1", "t"))
    before = begin((partition, other), {"W1": (first, shadow), "W1-2": (second,)}, Limits()).watches
    after = begin((partition, other), {"W1": (shadow,), "W1-2": (second,)}, Limits()).watches
    recorder = Recorder(history, clock)
    recorder.hear([Answer(0.0, 5.0, False, "w1", name) for name in ("s", "s", "t")], before.values())
    # Both of its servers died: what they owed fails, then nobody is there to take a request.
    recorder.hear([Answer(0.0, 1.0, True, "w1", name) for name in ("s", "s.1", "")], after.values())
    recorder.hear([Answer(0.0, 1.0, True, "unheard-of", "")], after.values())
    clock.now_s += 61.0
    recorder.close([(watch, None) for watch in after.values()])
    told = {m.partition: (m.requests, m.failed, m.p99_ms, m.batches) for m in history.minutes(0.0)}
    assert told == {"W1": (5, 3, 5.0, None), "W1-2": (1, 0, 5.0, None)}


def test_what_a_queue_executed_is_counted_once(
    history: History, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy host may stand still for longer than a minute's end waits for an answer.
    monkeypatch.setattr(
        recorder_module,
        "TritonClient",
        lambda server, deadline_s: TritonClient(server, deadline_s=30.0),
    )
    watch = watch_of(guarded(aliases=("w2",)))
    recorder = Recorder(history, clock)
    with asked_triton() as (port, asked):
        server = server_at(port, "w2", "w1")
        for turn in (1, 2):
            answers = [Answer(0.0, 5.0, False, "w1", "s"), Answer(0.0, 7.0, False, "w2", "s")]
            recorder.hear(answers, [watch])
            clock.now_s += 61.0
            recorder.write([(watch, server)])
            assert wait_until(lambda n=turn: len(history.minutes(0.0)) == 2 * n, deadline_s=30.0)
    recorder.close([])
    assert asked == ["/v2/models/w1/stats"] * 2, "an alias counts requests, not executions"
    told = {minute.endpoint: minute for minute in history.minutes(0.0)[2:]}
    assert (told["w1"].requests, told["w1"].p99_ms, told["w2"].p99_ms) == (1, 5.0, 7.0)
    assert told["w2"].batches is None
    assert told["w1"].batches is not None
    assert told["w1"].batches[4].executions == 10


def test_counters_are_read_after_minutes_with_requests_only(history: History, clock: Clock) -> None:
    watch = watch_of(guarded())
    recorder = Recorder(history, clock)
    answer = Answer(0.0, 5.0, False, "w1", "s")
    with asked_triton() as (port, asked):
        server = server_at(port, "w1")
        for number, answers in enumerate(((answer,), (), (answer,), (answer,)), 1):
            recorder.hear(answers, [watch])
            clock.now_s += 61.0
            recorder.write([(watch, server)])
            assert wait_until(lambda n=number: len(history.minutes(0.0)) == n, deadline_s=60.0)
    recorder.close([])
    assert len(asked) == 3
    # Over the minute without requests the counters grew by canaries: no difference is taken over it.
    assert [minute.batches is None for minute in history.minutes(0.0)] == [True, True, True, False]


def test_minutes_keep_their_batches(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite")
    first = Minute(10.0, 60.0, "W1", "w1", 50.0, 7, 0, 12.5, {4: BatchStatistics(3, 1, 2, 3)})
    idle = Minute(70.0, 60.0, "W1", "w1", 60.0, 0, 0, None, {})
    unknown = Minute(130.0, 60.0, "W1", "w1", 60.0, 5, 1, 9.5, None)
    history.write_minutes([first, idle, unknown])
    assert history.minutes(0.0) == (first, idle, unknown)
    assert history.minutes(71.0) == (unknown,)
