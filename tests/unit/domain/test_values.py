"""Values of the domain: errors, what images need, profiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.device import ShareKind
from controlplane.domain.errors import server_words
from controlplane.domain.profile import Profile
from controlplane.domain.triton_releases import unfit


def test_a_servers_message_is_shown_without_the_traceback_of_a_models_code() -> None:
    text = "ValueError: no such weights\n\nAt:\n  /models/m/1/model.py(1): <module>\n"
    assert server_words(text) == "ValueError: no such weights"
    assert server_words("load failed for model 'm';") == "load failed for model 'm'"
    assert len(server_words(400 * "x")) == 300


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


def law(by_batch: dict[int, float], memory_mb: float | None = 700.0) -> tuple[float, float] | None:
    made = Profile("m", "v100", ShareKind.MPS_PERCENT, memory_mb=memory_mb, memory_by_batch=by_batch)
    return made.memory_law


def test_two_batches_make_a_line_and_one_counts_for_all() -> None:
    assert law({1: 500.0, 5: 700.0}) == (450.0, 50.0)
    assert law({5: 700.0}) == (700.0, 0.0)
    assert law({}, None) is None


@given(st.dictionaries(st.integers(1, 64), st.floats(1.0, 1e5), min_size=2))
def test_no_measurement_is_above_the_line_and_it_never_falls(by_batch: dict[int, float]) -> None:
    found = law(by_batch)
    assert found is not None
    fixed, each = found
    assert each >= 0.0
    assert all(mb <= (fixed + each * batch) * (1.0 + 1e-9) for batch, mb in by_batch.items())
