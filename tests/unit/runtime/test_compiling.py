from __future__ import annotations

import pytest
from numba import njit

from controlplane.runtime.compiling import say_when_compiling

pytestmark = pytest.mark.unit


def test_the_first_compilation_is_told_and_no_other() -> None:
    told: list[str] = []
    compiled = say_when_compiling(told.append)
    assert not compiled()
    for step in (1.0, 2.0):
        assert njit(lambda x, step=step: x + step)(1.0) == 1.0 + step
    assert len(told) == 1
    assert compiled()
    assert "once for each verb" in told[0]
