"""Queues of inference requests: the time from arrival to answer, and the largest rate that holds an SLO.

`sojourn` checks the questions, `batch_queue` arranges the arrays, `kernel` holds the loops. `turns` bounds
the times of several models of which one executes at a time.
"""

from controlplane.latency.queueing.sojourn import P99, QueueResult, largest_rate, solve

__all__ = ["P99", "QueueResult", "largest_rate", "solve"]
