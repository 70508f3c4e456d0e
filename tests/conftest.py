"""For every test. Hypothesis: the same examples in every run, and no clock, which a busy host would fail.

Other examples are sought by hand: `pytest --hypothesis-profile=search --hypothesis-seed=N`. By itself
Hypothesis also tries the literals of the project's modules: every edit of any of them, the order of imports
and even the name of the clone's folder (`tests`) would bring examples that no run has passed on.
"""

from __future__ import annotations

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: one begun last would keep a single process busy after the others' end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def nearby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`tmp_path`, by a relative path: a socket's may have 107 characters, which pytest's can exceed."""
    monkeypatch.chdir(tmp_path)
    return Path()
