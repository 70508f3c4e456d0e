from __future__ import annotations

from collections.abc import Callable

import pytest
from numba.core import caching

from controlplane import kernels
from controlplane.cli.output import say_when_compiling


def test_kernels_are_announced_as_they_are_compiled_and_parts_of_numba_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listeners: list[Callable[[str], None]] = []
    monkeypatch.setattr(kernels, "on_compilation", listeners.append)
    compiled = say_when_compiling()
    for name in ("numba.np.arrayobj.impl", "controlplane.latency.queueing.kernel.chain"):
        assert not compiled()
        listeners[0](name)
    assert compiled()
    assert capsys.readouterr().err.splitlines() == [
        "compiling for this processor, once in an installation:",
        "  latency.queueing.kernel.chain",
    ]


def test_a_kernel_runs_where_no_folder_takes_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert kernels.kernel(doubled)(2.0) == 4.0


def doubled(value: float) -> float:
    return 2.0 * value
