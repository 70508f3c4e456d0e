from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.facade.bodies import Nesting
from controlplane.gateway.facade.refusals import BadBody
from controlplane.render.haproxy import DEEPEST_JSON

pytestmark = pytest.mark.unit

TEXTS = st.text(st.sampled_from('ab[]{}"\\\n'), max_size=8)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=30,
)


def refused(body: bytes, step: int) -> bool:
    nesting = Nesting()
    try:
        for at in range(0, len(body), step):
            nesting.feed(body[at : at + step])
    except BadBody:
        return True
    return False


def levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels, inner), default=0)


@given(VALUES, st.integers(0, 70), st.binary(max_size=50), st.integers(1, 40))
def test_a_body_is_refused_exactly_if_its_json_is_too_deep(
    value: Any, wrapped: int, tensors: bytes, step: int
) -> None:
    for _ in range(wrapped):
        value = [value]
    if not isinstance(value, list | dict):
        value = [value]
    body = b"\xef\xbb\xbf " + json.dumps(value).encode() + tensors
    assert refused(body, step) == (levels(value) > DEEPEST_JSON)


def test_brackets_behind_the_json_do_not_count() -> None:
    assert not refused(b'{"inputs": []}' + b"[" * 10_000, 100)


@pytest.mark.parametrize("opening", [b"[", b'{"":', b'[{"a":', b'["]",', b'["\\"]",'])
@pytest.mark.parametrize("at", [0, 31_000, 3_000_000])
def test_deep_json_is_refused_wherever_it_stands(opening: bytes, at: int) -> None:
    body = b'{"inputs": [' + b"1.5, " * (at // 5) + opening * 70
    assert refused(body, random.Random(at).randrange(1_000, 100_000))
