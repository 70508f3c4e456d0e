"""What a verb imports is most of the time that a short command takes."""

from __future__ import annotations

import subprocess
import sys

import pytest


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


@pytest.mark.parametrize("verb", ["status", "events"])
def test_verbs_that_only_look_import_no_planning_and_no_yaml(verb: str) -> None:
    assert not {"numpy", "numba", "scipy", "yaml"} & imported(f"controlplane.cli.fleet.{verb}")


def test_a_fleets_events_import_no_plan_and_no_package_metadata() -> None:
    unneeded = {"controlplane.domain.plan", "controlplane.files.plans", "controlplane.files.specs"}
    assert not unneeded & imported("controlplane.cli.fleet.events")
    assert "importlib.metadata" not in imported("controlplane.cli.endings")


def test_a_look_at_a_fleet_imports_no_tls_and_no_toml() -> None:
    assert not {"ssl", "tomllib"} & imported("controlplane.cli.fleet.status")


def test_planning_imports_no_compiler_and_no_training() -> None:
    assert not {"numba", "scipy", "torch", "docker", "tritonclient"} & imported("controlplane.cli.jobs.plan")


def test_fitting_the_default_latency_model_of_few_points_imports_no_scipy() -> None:
    fitted = """
from controlplane.files import catalogue
from controlplane.latency import registry
registry.build(registry.DEFAULT, catalogue.device("v100"), catalogue.profiles("v100"))
"""
    assert not any(name.partition(".")[0] == "scipy" for name in loaded_after(fitted))
