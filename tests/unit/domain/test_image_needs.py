"""Which of NVIDIA's images runs on a GPU, by their release notes."""

from __future__ import annotations

import pytest

from controlplane.domain.triton_releases import unfit

VENDOR = "nvcr.io/nvidia/tritonserver"


@pytest.mark.parametrize(
    ("image", "capability", "driver", "why"),
    [
        (f"{VENDOR}:26.07-py3", (7, 0), "580.65.06", "compute capability 7.5, and this GPU has 7.0"),
        (f"{VENDOR}:24.10-py3", (7, 0), "580.65.06", None),
        (f"{VENDOR}:26.07-py3", (8, 0), "580.65.06", None),
        (f"{VENDOR}:26.07-py3", (8, 0), "555.42.02", "driver 575"),
        (f"{VENDOR}:26.07-py3", (8, 0), "535.129.03", None),
        (f"{VENDOR}:25.03-py3", (7, 5), "560.35", None),
        (f"{VENDOR}@sha256:abc", (7, 0), "470.57", None),
        (f"{VENDOR}:26.07-py3", None, None, None),
    ],
)
def test_an_image_is_compared_with_gpu_and_driver(
    image: str, capability: tuple[int, int] | None, driver: str | None, why: str | None
) -> None:
    found = unfit(image, capability, driver)
    assert found is None if why is None else why in str(found)
