from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.plan import Partition, Placement, ServedModel
from controlplane.domain.serving import Serving
from controlplane.files.plans import read_spec
from controlplane.profiler.session import Place
from controlplane.runtime.demo import clients
from controlplane.runtime.demo.clients import Seen, Tensor
from controlplane.runtime.demo.demo import Demo, Scene

MODELS = Path(__file__).parents[4] / "model_repository"
POISSON_S = 40.0


def test_the_demos_own_spec_is_read() -> None:
    spec, _ = read_spec(MODELS / "demo.yaml")
    assert len(spec.workloads) == 3


@pytest.mark.parametrize("client_batch", [1, 4])
def test_every_client_sends_requests_of_the_workloads_client_batch(
    client_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[float, int]] = []

    def tritonclient(_: str, __: str, tensors: Sequence[Tensor], due_s: Sequence[float]) -> Seen:
        sent.append((len(due_s) / POISSON_S, tensors[0].value.shape[0]))
        return Seen(np.empty(0), np.empty(0), ())

    monkeypatch.setattr(clients, "over_grpc", tritonclient)
    scene = Scene(Path(), MODELS, Path(), Path(), Serving(), poisson_s=POISSON_S)
    place = Place(Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID), "cpu-0")
    demo = Demo(scene, cast(Any, None), place, *cast(Any, (None, None)))
    placements = [
        Placement(name, name, "transformer_tiny", 100.0, 100.0, client_batch=client_batch) for name in "abc"
    ]
    served = (ServedModel("transformer_tiny", 8),)
    demo._poisson([(Partition(p.name, 50.0, served, (p,)), p) for p in placements])
    assert [size for _, size in sent] == [client_batch] * 3
    assert [rate for rate, _ in sent] == pytest.approx([100.0 / client_batch] * 3, rel=0.2)
