from __future__ import annotations

import numpy as np
import planning
import pytest
from planning import published

from controlplane.domain.plan import Rule
from controlplane.latency import queueing
from controlplane.planners.board import Board, Queues, loads
from controlplane.planners.finish import gpu_of, partition_of
from controlplane.planners.hearing import Hearing
from controlplane.planners.menu import Alone, Correction, Item, Menu
from controlplane.planners.packing import Packing

pytestmark = pytest.mark.unit

QUANTILE = 0.95


def test_a_queue_is_solved_once_and_as_the_queue_itself_would(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, batch = np.array([100.0, 300.0, 100.0]), np.array([1, 4, 1])
    curves = np.array([[5.0, 5.0, 5.0, 5.0], [4.0, 5.0, 6.0, 7.0], [5.0, 9.0, 9.0, 9.0]])
    servers, constant = np.array([1, 2, 1]), np.zeros(3, dtype=np.bool_)
    expected = queueing.solve(rate, curves, batch, servers)
    solved: list[int] = []
    solve = queueing.solve

    def counted(rate: np.ndarray, *rest: object) -> queueing.QueueResult:
        solved.append(rate.size)
        return solve(rate, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(queueing, "solve", counted)
    queues = Queues()
    for _ in range(2):
        found = queues.solve(rate, curves, batch, servers, constant)
        np.testing.assert_array_equal(found, np.column_stack([expected.mean_ms, expected.p99_ms]))
    # The first and the third differ beyond their batch only.
    assert solved == [2]


def test_what_is_heard_is_what_the_judge_says_also_after_one_gpu_has_changed() -> None:
    device, (w2, w6, w7, w12) = planning.v100("ours"), (published(12)[n] for n in (1, 5, 6, 11))
    pool = Item((w12,), 2)
    items = [Item((w2,)), Item((w6,)), Item((w7,)), pool, pool]
    menu = Menu.of(items, device, Rule.P99, QUANTILE, Alone.of(device, QUANTILE))
    packing = Packing(menu, QUANTILE, None)
    assert packing.open(3)
    assert packing.open(4)
    assert packing.open(2)
    assert packing.regrow(0, [3, 0])
    hearing = Hearing.of(items, {"v100": menu}, QUANTILE, Queues())
    none = Correction.none(len(items))
    for group in ([3, 0], [3, 0, 1], [3]):
        assert packing.regrow(0, group)
        said = hearing.ask({"v100": packing}, none)
        gpus = [
            gpu_of(
                n,
                device,
                [
                    partition_of(
                        f"p{i}", items[i].workloads, float(menu.percents[s]), int(menu.batch[i, s]), None,
                        1.0 / items[i].servers,
                    )
                    for i, s in zip(group, shares, strict=True)
                ],
            )
            for n, (group, shares) in enumerate(zip(packing.groups, packing.shares, strict=True))
        ]  # fmt: skip
        board = Board.of(gpus, device)
        judged = loads({"v100": board}, {"v100": device}, Rule.P99, QUANTILE)["v100"]
        late = {
            i
            for n, group in enumerate(packing.groups)
            for j, i in enumerate(group)
            if judged.p99_ms[n, j] > items[i].slo_ms or items[i].rate_rps > judged.times.capacity_rps[n, j]
        }
        assert said.refused == late
        for n, group in enumerate(packing.groups):
            np.testing.assert_allclose(hearing.execution[group], judged.times.execution_ms[n, : len(group)])
