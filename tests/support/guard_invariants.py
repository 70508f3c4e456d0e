"""What must always hold of the guard's state."""

from dataclasses import replace

from controlplane.control.guard.state import WHOLE_PERCENT, GuardState, overdrawn, percent_in_use


def validate_state(state: GuardState) -> None:
    """Raise AssertionError where the state breaks what must always hold.

    A GPU may be overdrawn only by servers that took over from dead
    ones and give the excess back: one of its partitions owns more than was planned.
    """
    names: dict[str, object] = {}
    seated: set[str] = set()
    for watch in state.watches.values():
        for placed in (watch.active, watch.standby):
            if placed is None:
                continue
            one_of = (placed.server, watch.partition.shared if placed.shared else None)
            assert names.setdefault(placed.server, one_of) == one_of, f"{placed.server} has two places"
            assert placed.shared or placed.server not in seated, f"{placed.server} has two places"
            assert 0.0 < placed.percent <= WHOLE_PERCENT + 1e-6, f"{placed} is no share"
            seated.add(placed.server)
        for queue, planned in zip(watch.queues, watch.partition.promises, strict=True):
            batch = queue.promise.batch
            execution_ms = planned.execution_ms if batch == planned.batch else None
            assert queue.promise == replace(planned, batch=batch, execution_ms=execution_ms)
            assert batch == planned.batch or planned.batch < batch <= planned.largest
        assert watch.launches.failures >= 0
        assert not watch.launches.open or watch.launches.failures >= state.limits.failures
        assert watch.broken_s is None or watch.broken_s <= state.now_s
        assert all(mean >= 0.0 for queue in watch.queues for mean in queue.rates_rps)
    used = percent_in_use(state.watches.values())
    for gpu in used:
        if overdrawn(used, gpu):
            moved = [
                w
                for w in state.watches.values()
                if w.active.gpu == gpu and (w.partition.gpu != gpu or w.active.percent > w.partition.percent)
            ]
            assert moved, f"{gpu} is overdrawn and no partition on it can give back"
