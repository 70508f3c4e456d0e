import os
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from build import gateway_settings
from certificates import Authority

from controlplane.domain.errors import GatewayError, InputError
from controlplane.domain.fleet import AccessConfig, Backend, GatewayConfig, Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import startup, store
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.gateway.processes import Listeners
from controlplane.gateway.running import Unreachable
from controlplane.gateway.slots import Phase, SlotTable, assign
from controlplane.gateway.startup import Startup

ONE = Backend("one", "127.0.0.1", 9000, 9001)
TWO = Backend("two", "127.0.0.1", 9010, 9011)
SETTINGS = gateway_settings()


def test_a_table_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    places = GatewayPaths.of(tmp_path)
    table = assign(SlotTable.empty(4, 2), {"m": Route((ONE, TWO)), "n": Route((ONE,), TWO)}).table
    table = assign(table, {"m": Route((TWO,))}).table
    assert [slot.phase for slot in table.slots] == [Phase.DRAINING, Phase.DRAINING, Phase.ACTIVE, Phase.FREE]
    store.save(places, 7, table)
    assert store.load(places, SETTINGS) == (7, table)
    assert places.models_map.read_text() == "m 2\n"
    assert "generation 7\n" in places.checks_map.read_text()


def test_more_slots_are_added_to_the_table_on_disk(tmp_path: Path) -> None:
    places = GatewayPaths.of(tmp_path)
    table = assign(SlotTable.empty(4, 2), {"m": Route((ONE,))}).table
    store.save(places, 7, table)
    more = replace(SETTINGS, slots=9)
    assert store.load(places, more) == (7, table), "HAProxy has the slots it was started with"
    with socket.socket() as one, socket.socket() as two:
        text = store.config(places, more, Listeners(one, two), log_fd=7)
    generation, grown = store.load(places, SETTINGS)
    assert (generation, len(grown.slots), grown.routes()) == (7, 9, table.routes())
    assert store.fingerprint(places, more) in text
    assert store.fingerprint(places, more) != store.fingerprint(places, SETTINGS)
    assert "backend h_8\n" in text


def test_no_file_is_an_empty_table_and_a_broken_one_is_named(tmp_path: Path) -> None:
    places = GatewayPaths.of(tmp_path)
    assert store.load(places, SETTINGS) == (0, SlotTable.empty(4, 2))
    places.slots.write_text('{"schema_version": 1, "generation": "x", "slots": []}')
    with pytest.raises(InputError, match=r"slots\.json:1: generation"):
        store.load(places, SETTINGS)


def test_hundreds_of_endpoints_move_at_once_and_again() -> None:
    table = SlotTable.empty(store.slot_count(300, 10**6), 8)
    for route in (Route((ONE,), TWO), Route((TWO,)), Route((TWO,), ONE)):
        table = assign(table, {f"w{n}": route for n in range(300)}).table
    assert len(table.routes()) == 300
    assert len(assign(table, {f"w{n}": Route((ONE,)) for n in range(300)}).left) == 300


def test_connections_stay_below_the_descriptor_limit() -> None:
    for limit in (1024, 2048, 4096, 20000):
        slots = store.slot_count(limit // 108, limit)
        settings = replace(SETTINGS, slots=slots, members=8)
        assert 16 < 2 * store.maxconn(limit, settings) + 3 * slots * 9 < limit
    assert store.slot_count(2, resource.RLIM_INFINITY) == store.slot_count(2, 20000) == 96
    with pytest.raises(GatewayError, match=r"500 endpoints need 1000 slots .* allow 75; .* to 54000"):
        store.slot_count(500, 4096)
    assert store.maxconn(resource.RLIM_INFINITY, SETTINGS) == store.maxconn(10**6, SETTINGS) == 8192


def test_sockets_move_where_the_path_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = GatewayPaths.of(Path("/tmp/x")), GatewayPaths.of(tmp_path / ("d" * 90))
    assert near.sockets == Path("/tmp/x/run")
    assert far.sockets.parent == Path("/tmp")
    assert far.sockets != GatewayPaths.of(tmp_path / ("e" * 90)).sockets
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
        assert GatewayPaths.of(tmp_path / ("d" * 90)) == far, "cron, sudo and a login find the same gateway"


def test_directories_are_closed_to_others_and_only_the_users_own_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(name: str) -> None:
        GatewayPaths(tmp_path / name, tmp_path / name / "run").make()

    (tmp_path / "readable").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "readable")
    make("readable")
    assert (tmp_path / "readable").stat().st_mode & 0o777 == 0o700
    with pytest.raises(GatewayError, match="is a link"):
        make("link")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(GatewayError, match="another user"):
        make("readable")


@pytest.mark.parametrize(("state", "client_ca"), [("my state", None), ("state", "/etc/our,ca.pem")])
def test_a_path_that_haproxy_cannot_read_is_refused_before_anything_starts(
    tmp_path: Path, state: str, client_ca: str | None
) -> None:
    wanted = GatewayConfig(protection=AccessConfig("/c", "/k", client_ca))
    paths = GatewayPaths.of(tmp_path / state)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(startup, "check_exposure", lambda *_: None)
        with pytest.raises(InputError, match="blank") as refused:
            Startup(paths).start(wanted, 1)
    assert refused.value.file == (client_ca or str(paths.state))
    assert not paths.state.exists()


def test_a_certificate_that_haproxy_did_not_take_is_loaded_again(tmp_path: Path) -> None:
    signed = Authority(tmp_path).sign("gateway")
    protection = AccessConfig(certificate=str(signed.certificate), key=str(signed.key))
    settings = replace(SETTINGS, protection=protection)
    places = GatewayPaths.of(tmp_path)
    loaded: list[bytes] = []

    def hangs(_: bytes) -> None:
        raise Unreachable("timed out")

    with pytest.raises(Unreachable):
        store.write_certificate(places, settings, hangs)
    assert store.write_certificate(places, settings, loaded.append)
    assert not store.write_certificate(places, settings, loaded.append)
    assert loaded == [places.certificate.read_bytes()]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_no_gateway_listens_beyond_loopback_in_plain_text(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match=r"serve\.listen\.host"):
        HaproxyGateway(tmp_path / "gateway").start(GatewayConfig(host))
    assert not (tmp_path / "gateway").exists()
