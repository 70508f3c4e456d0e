from __future__ import annotations

import sys

import pytest
from fake_nvml import FakeGpu, FakeNvml

from controlplane.runtime.devices import by_type, gpu_type, host_devices

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H200", "h200"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
    ],
)
def test_what_plans_call_a_gpu(name: str, kind: str) -> None:
    assert gpu_type(name) == kind


def test_gpus_are_counted_by_type() -> None:
    found = by_type([("Tesla T4", "GPU-1"), ("NVIDIA H200", "GPU-2"), ("Tesla T4", "GPU-3")])
    assert found == {"t4": ("GPU-1", "GPU-3"), "h200": ("GPU-2",)}


def test_a_host_has_cores_and_the_gpus_nvml_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu("GPU-1"), FakeGpu("GPU-2")))
    found = host_devices()
    assert found["v100"] == ("GPU-1", "GPU-2")
    assert found["cpu"][0].startswith("cpu-")


def test_without_a_driver_there_are_only_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert list(host_devices()) == ["cpu"]
