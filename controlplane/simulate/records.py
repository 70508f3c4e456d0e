"""The state of the event loop: one record for each executor, server, queue, pool, GPU and workload. In ms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Records = NDArray[np.void]

EXECUTOR = np.dtype(
    [
        ("server", np.int64),
        ("size", np.int64),  # of the running batch, 0 while idle
        ("started", np.float64),
        ("end", np.float64),  # inf while idle
        ("since", np.float64),  # idle since
        ("remaining", np.float64),  # ms of work, as of `stamp`
        ("stamp", np.float64),
        ("pace", np.float64),  # ms of time a ms of work has taken since
    ]
)
SERVER = np.dtype(
    [
        ("gpu", np.int64),
        ("bit", np.int64),  # in its GPU's set of busy servers
        ("first", np.int64),  # its executors are first:last
        ("last", np.int64),
        ("batch", np.int64),
        ("running", np.int64),  # busy executors
        ("salt", np.uint64),  # seeds the draws of jitter
        ("draws", np.uint64),
        ("served", np.int64),  # requests
        ("batches", np.int64),
        ("busy", np.float64),  # ms of executor time
    ]
)
QUEUE = np.dtype(
    [
        ("greedy", np.bool_),  # an instance that frees takes all that waits, up to the server's batch
        ("delay", np.float64),  # ms
        ("preferred", np.float64),  # the preferred size, in requests, of a batcher that is not greedy
        ("largest", np.int64),  # what it may send beyond
        ("ahead", np.int64),  # payloads formed ahead: two an instance
        ("limit", np.int64),  # requests that may wait
        ("timeout", np.float64),  # ms a request may wait
        ("wake", np.float64),  # when the queue must be looked at next
        ("head", np.int64),  # of its ring
        ("waiting", np.int64),
        ("bound", np.int64),  # of those, the oldest that are in payloads
        ("payloads", np.int64),
        ("open", np.int64),  # 1 while the last payload takes more
        ("next_preferred", np.float64),  # the batcher sleeps on until so many wait
        ("timer", np.float64),  # or until this time
        ("next", np.int64),  # its own arrivals still to come are times[next:stop]
        ("stop", np.int64),
    ]
)
POOL = np.dtype(
    [
        ("members", np.int64),
        ("next", np.int64),  # the arrivals still to come are times[next:stop]
        ("stop", np.int64),
    ]
)
POST = np.dtype(
    [
        ("flying", np.int64),  # a pool's requests at one server
        ("since", np.float64),  # so many of them
    ]
)
GPU = np.dtype(
    [
        ("first", np.int64),  # its servers are first:last
        ("last", np.int64),
        ("first_executor", np.int64),
        ("last_executor", np.int64),
        ("next", np.float64),  # when something happens on it:
        ("ends", np.int64),  # this executor's batch ends, or -1
        ("wakes", np.int64),  # and this queue must be looked at
        ("mask", np.int64),  # busy servers, as the paces have it
        ("wanted", np.int64),  # and as it is after the event at hand
        ("since", np.float64),
    ]
)
TALLY = np.dtype(
    [
        ("pool", np.int64),  # -1 where one server answers
        ("slo", np.float64),
        ("requests", np.int64),
        ("drops", np.int64),
        ("late", np.int64),
        ("sum_ms", np.float64),
        ("max_ms", np.float64),
    ]
)
