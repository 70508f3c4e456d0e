import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.fleet_wide import broadcast
from controlplane.gateway.facade.fleet_wide.broadcast import (
    LARGEST_ENTRY_BYTES,
    Broadcast,
    Call,
    HttpRefused,
    Kept,
    Refused,
    Region,
)
from controlplane.gateway.facade.refusals import Refusal

A, B, C = (Backend(name, "127.0.0.1", 1, 2, None) for name in "abc")
REFUSAL = HttpRefused("no", web.Response(status=400))
Tell = Callable[[Backend], Awaitable[str]]


class Servers:
    """Servers that do what is sent, refuse it, or never answer."""

    def __init__(self, *, refusing: tuple[Backend, ...] = (), silent: tuple[Backend, ...] = ()) -> None:
        self._refusing, self._silent = refusing, silent
        self.undone: list[Backend] = []

    async def tell(self, backend: Backend) -> str:
        if backend in self._refusing:
            raise REFUSAL
        if backend in self._silent:
            await asyncio.Event().wait()
        return backend.server

    async def undo(self, backend: Backend) -> None:
        self.undone.append(backend)
        if backend in self._silent:
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "ANSWER_S", 0.05)


@pytest.fixture
def made(tmp_path: Path) -> Broadcast:
    return Broadcast(cast(aiohttp.ClientSession, None), Kept(tmp_path / "kept.json"))


def test_the_first_answer_is_returned_where_all_agree(made: Broadcast) -> None:
    servers = Servers()
    assert asyncio.run(made.send((A, B, C), Call(servers.tell, servers.undo))) == "a"
    assert servers.undone == []


@pytest.mark.parametrize(
    ("servers", "by", "undone"),
    [
        (Servers(refusing=(A,)), A, []),
        (Servers(refusing=(B,)), B, [A, C]),
        (Servers(silent=(A,)), A, [A]),
        (Servers(silent=(C,)), C, [A, B, C]),
        (Servers(silent=(B, C)), B, [A, B, C]),
    ],
    ids=["the first refuses", "a later one refuses", "the first is silent", "the last", "two"],
)
def test_what_a_server_refuses_or_may_have_done_is_undone_on_those_that_may_have_it(
    made: Broadcast, servers: Servers, by: Backend, undone: list[Backend]
) -> None:
    with pytest.raises(Refused, match=r"^no$|no answer within") as caught:
        asyncio.run(made.send((A, B, C), Call(servers.tell, servers.undo)))
    assert (caught.value.backend, caught.value.first, servers.undone) == (by, by == A, undone)


def test_a_silent_server_does_not_keep_the_next_call_waiting(made: Broadcast) -> None:
    async def run() -> object:
        silent, well = Servers(silent=(A,)), Servers()
        first = asyncio.create_task(made.send((A,), Call(silent.tell, silent.undo)))
        await asyncio.sleep(0)
        second = await asyncio.wait_for(made.send((A,), Call(well.tell, well.undo)), 30)
        assert first.done()
        first.exception()
        return second

    assert asyncio.run(run()) == "a"


def test_a_server_that_was_silent_as_it_joined_is_brought_up_to_date_later(
    made: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, told = {A}, []

    async def http(backend: Backend, method: str, path: str, body: bytes) -> Any:
        if backend in silent:
            await asyncio.Event().wait()
        told.append((backend, path))

    monkeypatch.setattr(made, "http", http)
    key = Region("system", "mine").key
    asyncio.run(made.send((C,), Call(Servers().tell, keep=(key, {}))))
    asyncio.run(made.tell_joining((A, B)))
    assert told == [(B, key)]
    silent.clear()
    asyncio.run(made.tell_joining((A, B)))
    assert told == [(B, key), (A, key)]


def test_a_call_beyond_the_bounds_reaches_no_server(made: Broadcast) -> None:
    body = {"key": "x" * LARGEST_ENTRY_BYTES}

    async def tell(_: Backend) -> str:
        raise AssertionError("reached a server")

    with pytest.raises(Refusal):
        asyncio.run(made.send((A,), Call(tell, keep=(Region("system", "mine").key, body))))


def test_a_server_that_joins_during_a_call_gets_it_afterwards(
    made: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = []

    async def http(backend: Backend, method: str, path: str, body: bytes) -> Any:
        joined.append((backend, path))

    async def run() -> None:
        answered = asyncio.Event()

        async def tell(backend: Backend) -> str:
            await answered.wait()
            return backend.server

        sending = asyncio.create_task(made.send((A,), Call(tell, keep=(key, {}))))
        await asyncio.sleep(0)
        joining = asyncio.create_task(made.tell_joining((A, B)))
        await asyncio.sleep(0)
        answered.set()
        await asyncio.gather(sending, joining)

    key = Region("system", "mine").key
    monkeypatch.setattr(made, "http", http)
    monkeypatch.setattr(broadcast, "ANSWER_S", 5.0)
    asyncio.run(run())
    assert (B, key) in joined


REGION = {"key": "/mine", "offset": 0, "byte_size": 16}


def test_what_is_kept_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "broadcasts.json"
    Kept(file).put(Region("system", "mine").key, REGION)
    assert Kept(file).entries() == {"/v2/systemsharedmemory/region/mine/register": REGION}


def test_settings_of_one_key_are_put_together_and_regions_replaced(tmp_path: Path) -> None:
    entries = Kept(tmp_path / "broadcasts.json")
    entries.put("/v2/logging", {"log_verbose_level": 1})
    entries.put("/v2/logging", {"log_info": False})
    entries.put(Region("cuda", "r").key, {"raw_handle": {}})
    entries.put(Region("cuda", "r").key, {"device_id": 0})
    assert list(entries.entries().values()) == [{"log_verbose_level": 1, "log_info": False}, {"device_id": 0}]


def test_one_region_or_all_are_forgotten(tmp_path: Path) -> None:
    entries = Kept(tmp_path / "broadcasts.json")
    for name in ("a", "ab"):
        entries.put(Region("system", name).key, REGION)
    entries.forget("/v2/systemsharedmemory/region/a/")
    assert list(entries.entries()) == [Region("system", "ab").key]
    entries.forget("/v2/systemsharedmemory/region/")
    assert entries.entries() == {}


@pytest.mark.parametrize("name", ["", "a/b", "a?x", "a b", "%61", "ä", "a" * 129, "a\n"])
def test_a_region_that_http_cannot_name_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match="letters"):
        assert Region("system", name).key


def test_the_number_of_entries_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "MOST_ENTRIES", 3)
    entries = Kept(tmp_path / "broadcasts.json")
    for number in range(broadcast.MOST_ENTRIES):
        entries.put(Region("system", f"r{number}").key, {})
    with pytest.raises(Refusal, match="unregister some"):
        entries.check(Region("system", "one-more").key, {})
    entries.check(Region("system", "r0").key, {})


def test_the_size_of_an_entry_is_bounded_over_all_calls_that_make_it(tmp_path: Path) -> None:
    entries = Kept(tmp_path / "broadcasts.json")
    half = "x" * (LARGEST_ENTRY_BYTES // 2)
    entries.check("/v2/logging", {"a": half})
    entries.put("/v2/logging", {"a": half})
    with pytest.raises(Refusal, match="bytes"):
        entries.check("/v2/logging", {"b": half})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"/v2/repository/models/echo/load": {}}',
        b'{"/v2/logging?x": {}}',
        b'{"/v2/logging": 3}',
        json.dumps({Region("system", f"r{i}").key: {} for i in range(broadcast.MOST_ENTRIES + 1)}).encode(),
        b" " * (2 * broadcast.MOST_ENTRIES * LARGEST_ENTRY_BYTES + 1),
    ],
    ids=range(10),
)
def test_a_file_that_cannot_be_read_is_put_aside(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broadcasts.json"
    file.write_bytes(content)
    assert Kept(file).entries() == {}
    assert not file.exists()
    assert file.with_suffix(".broken").read_bytes() == content
    assert str(file) in capsys.readouterr().out


def test_a_file_that_is_a_directory_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "broadcasts.json").mkdir()
    assert Kept(tmp_path / "broadcasts.json").entries() == {}


@given(content=st.binary(max_size=200))
def test_any_content_is_read_or_put_aside(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("kept") / "broadcasts.json"
    file.write_bytes(content)
    assert isinstance(Kept(file).entries(), dict)
