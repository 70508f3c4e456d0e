"""A plan with other batches: the servers that run take them, under load, and no request notices."""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from background import Clients, until
from ctl_fleet import Ctl, partition, plan
from model_files import timed, write

from controlplane.domain.fleet import Role
from controlplane.triton.client import TritonClient
from launchers.process import ProcessLauncher

pytestmark = pytest.mark.long

NAMES = ("a", "b", "c", "d")
CLIENTS = 12
"""For each endpoint: more than its largest batch and the next one together hold, so that batches fill."""
CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "X", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 4 ] } ]
dynamic_batching { }
"""


class BatchLoad(Clients):
    """Clients that send one request after another to each endpoint."""

    def __init__(self, host: Ctl, endpoints: Sequence[str]) -> None:
        super().__init__(CLIENTS * len(endpoints))
        self._urls = [f"http://127.0.0.1:{host.http}/v2/models/{e}/infer" for e in endpoints]

    def await_more(self, count: int, deadline_s: float = 60.0) -> None:
        """Return once every endpoint has given so many answers more."""
        before = self._by_endpoint()
        until(
            lambda: all(now >= n + count for now, n in zip(self._by_endpoint(), before, strict=True)),
            deadline_s,
            f"{count} more answers of each endpoint",
        )

    def _by_endpoint(self) -> list[int]:
        return [sum(self.answered[i :: len(self._urls)]) for i in range(len(self._urls))]

    def call(self, number: int) -> Callable[[], object]:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        body = json.dumps({"inputs": [tensor]}).encode()

        def send() -> None:
            request = urllib.request.Request(self._urls[number % len(self._urls)], body)
            with urllib.request.urlopen(request, timeout=30) as answer:
                answer.read()

        return send


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path, "live") as here:
        write(here.repository, "paced", timed(30.0), CONFIG)
        yield here


def with_batches(*batches: int, shadow: bool = False) -> dict[str, Any]:
    served = zip(NAMES, batches, strict=False)
    return plan(*(partition(n, 15, model="paced", shadow=shadow, batch=b, rate_rps=1) for n, b in served))


def batch_counts(host: Ctl, name: str) -> Counter[int]:
    """Executions by batch size, by Triton's own statistics of a partition's active server."""
    running = ProcessLauncher(host.files.parent).servers(host.fleet)
    (server,) = [s for s in running if (s.spec.labels.partition, s.spec.labels.role) == (name, Role.ACTIVE)]
    found = TritonClient(server).statistics(name).batches
    return Counter({size: batch.executions for size, batch in found.items()})


def test_all_batches_of_four_models_change_under_load_without_a_new_server(host: Ctl) -> None:
    host.apply(with_batches(4, 2, 8, 6))
    before, changed = ports_of(host), (2, 5, 3, 8)
    with BatchLoad(host, NAMES) as load:
        for name, batch in zip(NAMES, (4, 2, 8, 6), strict=True):
            until(lambda name=name, batch=batch: batch in batch_counts(host, name), 30, f"{name} at {batch}")
            assert max(batch_counts(host, name)) == batch
        told = host.apply(with_batches(*changed), ports=False)
        # A batch under way keeps its size.
        load.await_more(30)
        settled = {name: batch_counts(host, name) for name in NAMES}
        for name, batch in zip(NAMES, changed, strict=True):

            def grown(name: str = name) -> Counter[int]:
                return batch_counts(host, name) - settled[name]

            until(lambda grown=grown, batch=batch: batch in grown(), 30, f"{name} at {batch}")
            assert max(grown()) == batch
        assert "batch of a 4 -> 2" in told.stderr + told.stdout
        changes = host.events("batch")
        assert {change.subject for change in changes} == set(NAMES)
        host.ctl("rollback", "--yes")
        both = changes, host.events("batch")[len(changes) :]
        within_s = [each[-1].at_s - each[0].at_s for each in both]
        print(f"four batches changed within {within_s[0]:.3f} s, and back within {within_s[1]:.3f} s")
        # A moment in which the host stood still spoils one of two.
        assert min(within_s) < 1.0
        limits = {n: s for n, s in zip(NAMES, (4, 2, 8, 6), strict=True)}
        assert files_of(host) == limits
    assert load.failed == []
    assert ports_of(host) == before, "no server was started or touched"


def ports_of(host: Ctl) -> set[tuple[str, str, str]]:
    return {(s["partition"], s["role"], s["http"]) for s in host.servers()}


def files_of(host: Ctl) -> dict[str, int]:
    found = {}
    for path in (host.files / "batches").glob("*/limits/*"):
        found[path.name] = int.from_bytes(path.read_bytes()[:4], "little")
    return found


def test_a_server_that_crashed_has_the_plans_batch_and_not_the_one_of_its_start(host: Ctl) -> None:
    host.apply(with_batches(4, shadow=True))
    host.apply(with_batches(2, shadow=True), ports=False)
    killed_s = time.time()
    host.kill("a")
    host.await_event("redirect", since_s=killed_s)
    until(host.guarded, 90, "a shadow that stands by again")
    files = (host.files / "batches").glob("*/limits/a")
    assert {int.from_bytes(path.read_bytes()[:4], "little") for path in files} == {2}
