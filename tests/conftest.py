"""Hypothesis, for every test: the same examples in every run, and no clock, which a busy host would fail.

Other examples are sought by hand: `pytest --hypothesis-profile=search --hypothesis-seed=N`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")
