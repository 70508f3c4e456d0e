"""The rule by which a real Triton puts requests of several inferences together."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from bare_triton import BareTriton, bare_triton
from model_files import timed, write
from open_load import open_loop
from sleeping_triton import request
from triton_batches import SEEN, Case

EXECUTION_S = 0.4
APART_S = 0.02
"""All requests arrive within the first execution, each after the batcher has seen the one before."""
ATTEMPTS = 5
CONFIG = """
backend: "python"
max_batch_size: {most}
input {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
dynamic_batching {{ preferred_batch_size: [ {preferred} ] max_queue_delay_microseconds: 0 }}
"""


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareTriton]:
    """A model for each case: they sleep, so all can be loaded at once."""
    directory = tmp_path_factory.mktemp("batches")
    for case in SEEN:
        config = CONFIG.format(most=case.max_batch_size, preferred=case.preferred)
        write(directory / "models", case.name, timed(1000 * EXECUTION_S), config)
    with bare_triton(directory / "models", directory / "log") as running:
        yield running


def executions(triton: BareTriton, case: Case) -> Counter[int]:
    """How many executions had so many inferences."""
    answer = httpx.get(f"http://{triton.http}/v2/models/{case.name}/stats", trust_env=False).json()
    (model,) = answer["model_stats"]
    counted = {int(b["batch_size"]): int(b["compute_infer"]["count"]) for b in model.get("batch_stats", [])}
    return Counter(counted)


def together(triton: BareTriton, case: Case) -> Counter[int]:
    """What became of as many requests as the case has. A batch is counted after its answers."""
    before, sent = executions(triton, case), sum(case.together)
    open_loop(
        triton.grpc,
        request(case.name, case.client_batch),
        [APART_S * i for i in range(sent)],
        deadline_s=30.0,
    )
    deadline = time.monotonic() + 10.0
    while True:
        seen = executions(triton, case) - before
        if sum(size * count for size, count in seen.items()) == sent * case.client_batch:
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)


def test_requests_go_together_as_in_the_simulator(triton: BareTriton) -> None:
    """A host that stalls lets requests arrive at once, which is another case: such a one is tried again."""
    expected = {case: Counter(case.client_batch * n for n in case.together) for case in SEEN}
    left = dict[Case, Counter[int]]()
    for _ in range(ATTEMPTS):
        cases = list(left or SEEN)
        with ThreadPoolExecutor(len(cases)) as pool:
            seen = dict(zip(cases, pool.map(lambda case: together(triton, case), cases), strict=True))
        left = {case: counted for case, counted in seen.items() if counted != expected[case]}
        if not left:
            return
    raise AssertionError(left)
