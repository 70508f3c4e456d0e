"""The table of P99s from the queue itself: controlplane/planning/capacity/p99_table.csv.

    .venv/bin/python tests/support/make_p99_table.py > p99_table.csv

P99 of a request over the time of a full batch, to four digits; a batch of one has no shape. Some minutes.
"""

import numpy as np

from controlplane.latency.protocol import FloatArray
from controlplane.latency.queueing import batch_queue
from controlplane.planning.capacity.p99_table import BATCHES, LOADS, POOL_SIZES, SHAPES


def row(servers: int, batch: int, shape: float) -> FloatArray:
    """Y at each of `LOADS`; see `p99_table`."""
    loads = np.array(LOADS)
    first = 1.0 / batch + shape * (1.0 - 1.0 / batch)
    curve = np.linspace(first, 1.0, batch) if batch > 1 else np.ones(1)
    p99 = batch_queue.solve(loads * 1000.0 * batch * servers, curve, batch, servers).p99_ms
    found: FloatArray = np.maximum.accumulate(loads * p99) / loads
    return found


def _digits(value: float) -> str:
    return f"{float(f'{value:.4g}'):.3f}".rstrip("0").rstrip(".")


def main() -> None:
    print("servers,batch,shape," + ",".join(f"{load:g}" for load in LOADS))
    for servers in POOL_SIZES:
        for batch in BATCHES:
            for shape in SHAPES if batch > 1 else SHAPES[:1]:
                values = ",".join(_digits(y) for y in row(servers, batch, shape).tolist())
                print(f"{servers},{batch},{shape:g},{values}", flush=True)


if __name__ == "__main__":
    main()
