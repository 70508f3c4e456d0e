import sys

import pytest
from fake_nvml import FakeGpu, FakeNvml

from controlplane.domain.device import DeviceLimits
from controlplane.runtime.devices import by_type, gpu_type, host_devices
from launchers.gpu import gpus


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GB10", "gb10"),
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
    monkeypatch.setitem(
        sys.modules, "pynvml", FakeNvml(FakeGpu("GPU-1"), FakeGpu("GPU-0", lost=True), FakeGpu("GPU-2"))
    )
    found = host_devices()
    assert found["v100"] == ("GPU-1", "GPU-2")
    assert found["cpu"][0].startswith("cpu-")


def test_without_a_driver_there_are_only_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert list(host_devices()) == ["cpu"]


def test_the_drivers_answers_are_a_gpus_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = FakeGpu("GPU-1", "Tesla T4", 15360 * 2**20, None, 9_500, 300, 70_000, 1590, (3, 8))
    old = FakeGpu("GPU-2", power_limit_mw=None)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(idle, old))
    assert gpus.limits("GPU-1") == DeviceLimits(
        "Tesla T4", "550.54.15", 15360.0, 70.0, 1590, 9.5, 300, pcie_generation=3, pcie_lanes=8
    )
    found = gpus.limits("GPU-2")
    assert found is not None
    assert found.power_limit_w is None
    assert gpus.limits("cpu-0") is None
