"""A plan's GPU ids become the host's devices, or the host's lack is told."""

from __future__ import annotations

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, PlannedGpu, Rule

pytestmark = pytest.mark.unit

HOST = {"cpu": ("cpu-0", "cpu-2"), "v100": ("GPU-a", "GPU-b")}


def mapped(*ids: str) -> dict[str, str]:
    from controlplane.runtime.fleet.fleet import map_devices

    gpus = tuple(PlannedGpu(i, i.rsplit("-", 1)[0], ()) for i in ids)
    return map_devices(Plan("igniter", Rule.P99, "ours", gpus), HOST)


def test_gpus_are_counted_and_cores_are_named() -> None:
    assert mapped("v100-1", "cpu-2") == {"v100-1": "GPU-b", "cpu-2": "cpu-2"}


@pytest.mark.parametrize(
    ("gpu", "says"), [("v100-2", "are 2"), ("cpu-1", "cpu-0, cpu-2"), ("t4-0", "no device of type 't4'")]
)
def test_what_the_host_lacks_is_told(gpu: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        mapped(gpu)
