import contextlib
import errno
import os
import time
from pathlib import Path

import pytest
from build import gateway_settings
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import InputError, NotNow
from controlplane.domain.fleet import AccessConfig
from controlplane.files.gateway import FormerFacade, GatewaySettings
from controlplane.files.gateway.access import (
    REMEMBERED_S,
    Client,
    Held,
    Limit,
    hashed,
    read_clients,
    write_clients,
    write_held,
)
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import store
from controlplane.gateway.facade.callers import ANY_REGION, Callers, Regions
from controlplane.gateway.facade.refusals import LimitReached, Meter, Refusal
from controlplane.gateway.security.certificate import check_exposure
from controlplane.gateway.security.registry import ClientRegistry, LimitRegistry

ONE = Client("one", ("a", "b"), token_sha256=hashed("secret"), max_rate_rps=5)
TWO = Client("two", ("*",), certificate="two.example", max_requests=3)


def settings(*, tokens: bool, former: FormerFacade | None = None) -> GatewaySettings:
    return gateway_settings(former=former, protection=AccessConfig(tokens=tokens))


def test_the_maps_of_haproxy_hold_credentials_grants_limits_and_refusals(tmp_path: Path) -> None:
    paths = GatewayPaths.of(tmp_path)
    write_clients(paths.clients, (ONE, TWO))
    write_held(paths.limits, Held({"a": Limit(max_body_bytes=9)}, {("text", ""): 7, ("text", "bad"): 8}))
    of_endpoints = {
        paths.endpoint_limits_map: {"a": "0/0/9"},
        paths.refusals_map: {"text": "7", "bad/text": "8"},
    }
    assert store.access_maps(paths, settings(tokens=False)) == of_endpoints
    assert store.access_maps(paths, settings(tokens=True)) == {
        **of_endpoints,
        paths.clients_map: {hashed("secret").upper(): "one", "cn=two.example": "two"},
        paths.grants_map: {"one/a": "1", "one/b": "1", "two/*": "1"},
        paths.client_limits_map: {"one": "5/0/0", "two": "0/3/0"},
    }


def test_a_client_is_created_once_and_revoked_by_name(tmp_path: Path) -> None:
    registry = ClientRegistry(tmp_path / "gateway")
    token = registry.create(Client("one", ("a",)))
    assert token is not None
    assert registry.create(Client("two", ("a",), certificate="two")) is None
    with pytest.raises(InputError, match="revoke it first"):
        registry.create(Client("one", ("b",)))
    with pytest.raises(InputError, match="another client's"):
        registry.create(Client("three", ("b",), certificate="two"))
    assert [c.token_sha256 for c in registry.clients()] == [hashed(token), None]
    registry.revoke("one")
    with pytest.raises(InputError, match="there are: two"):
        registry.revoke("one")
    assert [c.name for c in read_clients(GatewayPaths.of(tmp_path / "gateway").clients)] == ["two"]


def test_a_caller_is_known_by_what_haproxy_says_and_loses_grants_at_once(tmp_path: Path) -> None:
    registry = ClientRegistry(tmp_path / "gateway")
    registry.create(Client("one", ("a",)))
    callers = Callers(GatewayPaths.of(tmp_path / "gateway").clients, settings(tokens=True))
    with pytest.raises(Refusal):
        callers.of({})
    nobody = callers.of({"x-trisect-client": ""})
    assert (nobody.may_call("a"), nobody.may_operate) == (False, False)
    caller = callers.of({"x-trisect-client": "one"})
    assert (caller.may_call("a"), caller.may_call("b"), caller.may_operate) == (True, False, False)
    registry.revoke("one")
    assert not caller.may_call("a")


def test_each_haproxy_has_its_own_rules_and_without_tokens_everything_is_permitted(tmp_path: Path) -> None:
    callers = Callers(tmp_path / "none", settings(tokens=True, former=FormerFacade(tokens=False)))
    before, after = callers.of({}), callers.of({"x-trisect-client": "one"})
    assert (before.may_call("a"), before.may_operate, after.may_call("a")) == (True, True, False)
    callers.take(settings(tokens=True))
    with pytest.raises(Refusal):
        callers.of({})
    callers.take(settings(tokens=False))
    assert callers.of({}).may_call("a")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_needs_no_certificate(host: str) -> None:
    check_exposure(host, AccessConfig())


@pytest.mark.parametrize(
    ("protection", "said"),
    [
        (AccessConfig(), "plain text"),
        (AccessConfig("/none", "/none"), "cannot be read"),
        (AccessConfig(os.devnull, os.devnull), "no certificate in PEM"),
    ],
)
def test_what_protects_nothing_is_refused(protection: AccessConfig, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_exposure("0.0.0.0", protection)
    check_exposure("0.0.0.0", AccessConfig(plain_text=True))


def test_a_refusal_ends_by_itself_or_by_hand(tmp_path: Path) -> None:
    registry, now_s = LimitRegistry(tmp_path / "gateway"), time.time()
    registry.refuse("text", "", now_s + 30.0)
    registry.refuse("text", "bad", now_s + 60.0)
    registry.refuse("long ago", "", now_s - REMEMBERED_S - 1.0)
    registry.refuse("before the clock was set back", "", now_s + 3600.0)
    assert registry.held().refusals.keys() == {("text", ""), ("text", "bad")}
    registry.set("near", Limit(max_requests=1))
    registry.remove("text")
    assert registry.held() == Held({"near": Limit(max_requests=1)}, {})
    with pytest.raises(InputError, match="with limits: near"):
        registry.remove("text")


@pytest.mark.parametrize("written", [0, 1])
def test_a_disk_that_is_full_after_some_files_leaves_nothing_half_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    registry, replace, left = LimitRegistry(tmp_path / "gateway"), os.replace, [written]
    registry.set("text", Limit(max_requests=1))
    registry.refuse("text", "", time.time() + 30.0)
    before = registry.held()

    def fill(source: str, target: Path) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        replace(source, target)

    monkeypatch.setattr(os, "replace", fill)
    with contextlib.suppress(NotNow):
        registry.remove("text")
    assert registry.held() == (Held() if written else before)


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
        with pytest.raises(Refusal):
            own.check(name, key)
    ANY_REGION.check("r", "/k")
