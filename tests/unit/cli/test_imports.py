"""What a verb imports and compiles is most of the time that a short command takes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from numba.core import caching

from controlplane import kernels
from controlplane.cli.output import say_when_compiling


def loaded_after(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after this code."""
    code += "\nimport sys; print('\\n'.join(sys.modules))"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


def imported(module: str) -> set[str]:
    return loaded_after(f"import {module}")


def test_the_list_of_verbs_imports_no_verb() -> None:
    assert not {
        name for name in imported("controlplane.cli.main") if name.startswith("controlplane.cli.jobs")
    }


def test_the_help_of_verbs_imports_neither_numbers_nor_yaml_nor_an_extra() -> None:
    helped = """
from controlplane.cli.main import run
from controlplane.cli.verbs import VERBS
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()):
    codes = [run([verb, "-h"]) for verb in VERBS]
assert set(codes) == {0}, codes
"""
    unneeded = {"numpy", "numba", "scipy", "yaml", "httpx", "docker", "rich", "tritonclient"}
    assert not unneeded & loaded_after(helped)


@pytest.mark.parametrize("verb", ["status", "events", "list", "logs search", "wait --timeout 0"])
def test_verbs_that_only_look_import_no_planning_no_tls_and_no_toml(verb: str, tmp_path: Path) -> None:
    looked = f"""
import os
os.environ["XDG_STATE_HOME"] = {str(tmp_path)!r}
from controlplane.domain.plan import Plan, Rule
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
FleetFiles(state_root(), "default").write_settings(FleetSettings("process", "/m", "/o", {{}}))
from controlplane.cli.main import run
run({verb.split()!r})
"""
    assert not {"numpy", "numba", "scipy", "yaml", "tomllib"} & loaded_after(looked)


def test_planning_imports_no_compiler_and_no_training() -> None:
    assert not {"numba", "scipy", "torch", "docker", "tritonclient"} & imported("controlplane.cli.jobs.plan")


def test_fitting_the_default_latency_model_of_few_points_imports_no_scipy() -> None:
    fitted = """
from controlplane.files import catalogue
from controlplane.latency import registry
registry.build(registry.DEFAULT, catalogue.device("v100"), catalogue.profiles("v100"))
"""
    assert not any(name.partition(".")[0] == "scipy" for name in loaded_after(fitted))


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
