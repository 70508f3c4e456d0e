from typing import Any

import pytest

from controlplane.domain.errors import EngineError
from controlplane.domain.observation import BatchStatistics
from controlplane.triton.statistics import compute_ms, difference, execution_ms, parse_statistics, queue_ms


def answer(inferences: int, queue_ns: int, **batches: tuple[int, int]) -> dict[str, Any]:
    """As Triton answers; `b4=(2, 6_000_000)` are two executions of batch 4 that took 6 ms in all."""
    return {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "inference_count": inferences,
                "execution_count": sum(n for n, _ in batches.values()),
                "inference_stats": {
                    "success": {"count": inferences, "ns": 10 * queue_ns},
                    "queue": {"count": inferences, "ns": queue_ns},
                },
                "batch_stats": [
                    {
                        "batch_size": int(name[1:]),
                        "compute_input": {"count": n, "ns": ns // 4},
                        "compute_infer": {"count": n, "ns": ns // 2},
                        "compute_output": {"count": n, "ns": ns // 4},
                    }
                    for name, (n, ns) in batches.items()
                ],
            }
        ]
    }


def test_a_window_gives_exact_means_per_batch_size() -> None:
    before = parse_statistics("m", answer(6, 1_000_000, b1=(2, 4_000_000), b4=(1, 8_000_000)))
    after = parse_statistics("m", answer(14, 5_000_000, b1=(2, 4_000_000), b4=(3, 20_000_000)))
    window = difference(before, after)
    assert (window.inferences, window.executions, window.successes, window.failures) == (8, 2, 8, 0)
    assert window.batches == {4: BatchStatistics(2, 3_000_000, 6_000_000, 3_000_000)}
    assert execution_ms(window.batches[4]) == pytest.approx(6.0)
    assert queue_ms(window) == pytest.approx(0.5)
    assert compute_ms(window) == pytest.approx(6.0)


def test_the_mean_over_batch_sizes_weighs_executions() -> None:
    statistics = parse_statistics("m", answer(6, 0, b1=(2, 4_000_000), b4=(1, 8_000_000)))
    assert compute_ms(statistics) == pytest.approx(4.0)


def test_a_model_that_never_ran_has_no_means() -> None:
    idle = parse_statistics("m", {"model_stats": [{"name": "m", "inference_stats": {}}]})
    assert (idle.inferences, idle.batches, queue_ms(idle), compute_ms(idle)) == (0, {}, None, None)


def test_versions_are_added_up() -> None:
    both = answer(2, 10, b1=(2, 4_000_000))
    both["model_stats"] *= 2
    statistics = parse_statistics("m", both)
    assert statistics.inferences == 4
    assert statistics.batches[1].executions == 4


def test_counters_that_went_back_are_no_window() -> None:
    before = parse_statistics("m", answer(6, 1_000, b1=(6, 4_000_000)))
    with pytest.raises(EngineError, match="decreased between two readings"):
        difference(before, parse_statistics("m", answer(7, 1_200, b1=(5, 5_000_000))))
    with pytest.raises(EngineError, match="decreased between two readings"):
        difference(before, parse_statistics("m", answer(1, 100, b2=(1, 5_000_000))))
