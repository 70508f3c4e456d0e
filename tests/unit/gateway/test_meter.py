from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.files.limits import Limit
from controlplane.gateway.facade.callers import ANY_REGION, NotOwned, Regions
from controlplane.gateway.facade.refusals import LimitReached, Meter

pytestmark = pytest.mark.unit


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 5), st.data())
def test_no_endpoint_exceeds_its_limits(gaps: list[float], rate: int, most: int, data: st.DataObject) -> None:
    meter, limit = Meter(), Limit(max_rate_rps=rate, max_requests=most)
    now, running, begun = 0.0, 0, []
    for gap in gaps:
        now += gap
        if running and data.draw(st.booleans()):
            meter.leave("a")
            running -= 1
        recent = sum(at > now - 1.0 for at in begun)
        try:
            meter.enter("a", limit, now)
        except LimitReached:
            assert recent >= rate or running >= most
        else:
            running += 1
            begun.append(now)
            assert running <= most
            assert sum(at > now - 1.0 for at in begun) <= rate


def test_an_endpoint_without_limits_is_only_counted() -> None:
    meter = Meter()
    for _ in range(1000):
        meter.enter("a", Limit(), 0.0)
    with pytest.raises(LimitReached):
        meter.enter("a", Limit(max_requests=1000), 0.0)


def test_a_clients_regions_begin_with_its_prefix_and_its_keys_with_its_name() -> None:
    own = Regions("shop", "shop.f00.")
    own.check("shop.f00.r", "/shop.r")
    own.check("shop.f00.r")
    for name, key in (
        ("r", "/shop.r"),
        ("shop.f00.", "/shop.r"),
        ("web.f00.r", "/shop.r"),
        ("shop.f00.r", "/web.r"),
        ("shop.f00.r", "/shopping"),
        ("shop.f00.r", ""),
    ):
        with pytest.raises(NotOwned):
            own.check(name, key)
    with pytest.raises(NotOwned, match="anew"):
        Regions("old", None).check("r")
    ANY_REGION.check("r", "/k")
