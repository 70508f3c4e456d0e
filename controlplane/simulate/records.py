"""The state of the event loop: one record for each executor, server, pool, GPU and workload. In ms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controlplane.latency.protocol import FloatArray, IntArray

Records = NDArray[np.void]

EXECUTOR = np.dtype(
    [
        ("server", np.int64),
        ("size", np.int64),  # of the running batch, 0 while idle
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
        # Its partition's servers, one of which runs at a time, are turn_first:turn_last.
        ("turn_first", np.int64),
        ("turn_last", np.int64),
        ("after", np.float64),  # ms added to the arrival of its requests for its turn; -1 without an order
        ("batch", np.int64),
        ("running", np.int64),  # busy executors
        ("salt", np.uint64),  # seeds the draws of jitter
        ("draws", np.uint64),
        ("served", np.int64),  # requests
        ("batches", np.int64),
        # Its queue:
        ("greedy", np.bool_),  # a free instance takes all waiting requests, up to the server's batch
        ("delay", np.float64),  # ms
        ("preferred", np.float64),  # the preferred size, in requests, of a batcher that is not greedy
        ("largest", np.int64),  # its largest batch
        ("ahead", np.int64),  # payloads formed ahead: two an instance
        ("limit", np.int64),  # the longest queue
        ("drop", np.float64),  # ms after which a batch that starts leaves a request out; inf for never
        ("wake", np.float64),  # its next event
        ("head", np.int64),  # of its ring
        ("waiting", np.int64),
        ("bound", np.int64),  # of those, the oldest that are in payloads
        ("payloads", np.int64),
        ("open", np.int64),  # 1 while the last payload can grow
        ("next_preferred", np.float64),  # the batcher sleeps until so many wait
        ("timer", np.float64),  # or until this time
        ("next", np.int64),  # its own arrivals still to come are times[next:stop]
        ("stop", np.int64),
    ]
)
REQUEST = np.dtype([("arrival", np.float64), ("workload", np.int64)])
POOL = np.dtype(
    [
        ("members", np.int64),
        ("next", np.int64),  # the arrivals still to come are times[next:stop]
        ("stop", np.int64),
    ]
)
IN_FLIGHT = np.dtype(
    [
        ("count", np.int64),  # a pool's requests at one server
        ("since", np.float64),  # when the count changed last
    ]
)
GPU = np.dtype(
    [
        ("first", np.int64),  # its servers are first:last
        ("last", np.int64),
        ("first_executor", np.int64),
        ("last_executor", np.int64),
        ("next", np.float64),  # the time of its next event:
        ("ends", np.int64),  # the end of this executor's batch, or -1
        ("wakes", np.int64),  # the wake-up of this queue, or -1
        ("mask", np.int64),  # busy servers, as counted in the paces
        ("wanted", np.int64),  # busy servers after the current event
        ("since", np.float64),
    ]
)
TALLY = np.dtype(
    [
        ("pool", np.int64),  # -1 for a single server
        ("slo", np.float64),
        ("requests", np.int64),
        ("drops", np.int64),
        ("late", np.int64),
        ("sum_ms", np.float64),
        ("max_ms", np.float64),
    ]
)


class State(NamedTuple):
    """All that the event loop reads and writes.

    E executors, S servers, P pools, W workloads, G GPUs, B the largest batch, M sets of busy servers.
    pool_member: (P, size of the largest pool), each pool's servers. in_flight: (P, S). member: (E, B), the
    running batch. ring: (S, a power of two), the waiting requests. payload: (S, payloads), sizes, oldest
    first. work_ms: (S, B), how long a batch occupies an executor, solo; extra_ms: the rest of its requests'
    latency. pace: (S, M), ms per ms of work. jitter: (S, 1 or JITTER_ENTRIES), equally likely factors of the
    work. mask_time: (G, M), ms in each set. counts: (W, BINS). log: (L, 5), workload, arrival, latency, batch
    and server of the first answers.
    """

    executors: Records
    servers: Records
    gpus: Records
    pools: Records
    pool_member: IntArray
    in_flight: Records
    tallies: Records
    member: Records
    ring: Records
    payload: IntArray
    work_ms: FloatArray
    extra_ms: FloatArray
    pace: FloatArray
    jitter: FloatArray
    mask_time: FloatArray
    counts: IntArray
    log: FloatArray
