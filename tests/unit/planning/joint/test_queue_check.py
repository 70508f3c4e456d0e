import numpy as np
import planning
import pytest
from planning import published

from controlplane.domain.plan import Rule
from controlplane.latency.queueing import batch_queue
from controlplane.latency.queueing.turns import SojournTimes
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.joint.packing import Packing
from controlplane.planning.joint.queue_check import QueueCheck
from controlplane.planning.judge.evaluate import Terms, evaluate
from controlplane.planning.judge.placements import gpu_of, partition_of
from controlplane.planning.judge.queues import QueueCache


def test_a_queue_is_solved_once_and_as_the_queue_itself_would(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, batch = np.array([100.0, 300.0, 100.0]), np.array([1, 4, 1])
    curves = np.array([[5.0, 5.0, 5.0, 5.0], [4.0, 5.0, 6.0, 7.0], [5.0, 9.0, 9.0, 9.0]])
    servers, poisson = np.array([1, 2, 1]), np.ones(3)
    expected = batch_queue.solve(rate, curves, batch, servers)
    solved: list[int] = []
    solve = batch_queue.solve

    def counted(rate: np.ndarray, *rest: object) -> SojournTimes:
        solved.append(rate.size)
        return solve(rate, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(batch_queue, "solve", counted)
    queues = QueueCache()
    for _ in range(2):
        found = queues.solve(rate, curves, batch, servers, poisson)
        np.testing.assert_array_equal(found, np.column_stack([expected.mean_ms, expected.p99_ms]))
    # The first and the third differ beyond their batch only.
    assert solved == [2]


def test_the_check_agrees_with_the_judge_also_after_one_gpu_has_changed() -> None:
    device, gpu_type = planning.v100("ours"), planning.gpu_type("ours")
    w2, w6, w7, w12 = (published(12)[n] for n in (1, 5, 6, 11))
    pool = Item((w12,), 2)
    items = [Item((w2,)), Item((w6,)), Item((w7,)), pool, pool]
    table = ToleranceTable.of(items, gpu_type)
    packing = Packing(table, None)
    for item in (3, 4, 2):
        assert packing.open([item])
    check = QueueCheck.of(items, {"v100": table}, QueueCache())
    for group in ([3, 0], [3, 0, 1], [3]):
        assert packing.replace(0, group)
        verdict = check.ask({"v100": packing}, np.ones(len(items)))
        gpus = []
        for n, sized in enumerate(packing.gpus):
            partitions = []
            for i, s in zip(sized.items, sized.shares, strict=True):
                percent, batch = float(gpu_type.percents[s]), int(table.tolerance.batch[i, s])
                part = 1.0 / items[i].servers
                partitions.append(partition_of(f"p{i}", items[i].workloads, percent, batch, None, part))
            gpus.append(gpu_of(n, device, partitions))
        judged = evaluate(gpus, {"v100": device}, Terms(Rule.P99, gpu_type.quantile))["v100"]
        late = {
            i
            for n, sized in enumerate(packing.gpus)
            for j, i in enumerate(sized.items)
            if judged.p99_ms[n, j] > items[i].slo_ms or items[i].rate_rps > judged.times.capacity_rps[n, j]
        }
        assert verdict.late == late
        for n, sized in enumerate(packing.gpus):
            expected = judged.times.execution_ms[n, : len(sized.items)]
            np.testing.assert_allclose(check.standing.execution_ms[list(sized.items)], expected)
