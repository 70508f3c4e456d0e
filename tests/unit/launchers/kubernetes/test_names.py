from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchers.kubernetes import names

pytestmark = pytest.mark.unit

SAFE = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


@given(SAFE)
def test_every_name_becomes_a_legal_label_value(name: str) -> None:
    value = names.label_value(name)
    assert len(value) <= 63
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", value)


@given(st.lists(SAFE, min_size=1, max_size=4))
def test_every_name_becomes_a_legal_object_name(parts: list[str]) -> None:
    name = names.object_name(*parts)
    assert len(name) <= 63, "a pod's hostname is cut there"
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)


def test_names_that_look_alike_stay_apart() -> None:
    assert names.object_name("W1") != names.object_name("w1")
    assert names.object_name("a", "b-c") != names.object_name("a-b", "c")
    assert names.label_value("fleet-") != names.label_value("fleet_")
