"""For every test. Hypothesis: the same examples in every run, and no clock, which a busy host would fail.

Other examples are sought by hand: `pytest --hypothesis-profile=search --hypothesis-seed=N`. By itself
Hypothesis also tries the literals of the project's modules: every edit of any of them, the order of imports
and even the name of the clone's folder (`tests`) would bring examples that no run has passed on.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

pytest_plugins = ["kube.fixtures"]
"""Here, since the contract of launchers and the stories of Kubernetes share one cluster."""

settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")
providers._get_local_constants = providers.Constants


TESTS = Path(__file__).parent
KINDS = {
    "unit": "unit",
    "property": "unit",
    "golden": "unit",
    "chaos": "e2e",
    "conformance": "e2e",
    "e2e": "e2e",
    "security": "e2e",
    "kubernetes": "kubernetes",
}
"""Folder -> the marker of all tests in it. Those of `contract` and `gpu` differ, and have their own."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and begin with the longest files.

    One begun last would keep a single process busy after the others' end.
    """
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in KINDS:
            item.add_marker(KINDS[folder])
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def nearby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`tmp_path`, by a relative path: a socket's may have 107 characters, which pytest's can exceed."""
    monkeypatch.chdir(tmp_path)
    return Path()
