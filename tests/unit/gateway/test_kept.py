from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.facade.fleet_wide import kept
from controlplane.gateway.facade.fleet_wide.kept import Kept, NotKept, Region, setting_key

pytestmark = pytest.mark.unit

REGION = {"key": "/mine", "offset": 0, "byte_size": 16}


def test_what_is_kept_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "broadcasts.json"
    Kept(file).put(Region("system", "mine").key, REGION)
    assert Kept(file).entries() == {"/v2/systemsharedmemory/region/mine/register": REGION}


def test_settings_of_one_key_are_put_together_and_regions_replaced(tmp_path: Path) -> None:
    entries = Kept(tmp_path / "broadcasts.json")
    entries.put(setting_key("logging"), {"log_verbose_level": 1})
    entries.put(setting_key("logging"), {"log_info": False})
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
    with pytest.raises(NotKept, match="letters"):
        assert Region("system", name).key


def test_the_number_of_entries_is_bounded(tmp_path: Path) -> None:
    entries = Kept(tmp_path / "broadcasts.json")
    for number in range(kept.MOST_ENTRIES):
        entries.put(Region("system", f"r{number}").key, {})
    with pytest.raises(NotKept, match="unregister some"):
        entries.check(Region("system", "one-more").key, {})
    entries.check(Region("system", "r0").key, {})


def test_the_size_of_an_entry_is_bounded_over_all_calls_that_make_it(tmp_path: Path) -> None:
    entries = Kept(tmp_path / "broadcasts.json")
    half = "x" * (kept.LARGEST_ENTRY_BYTES // 2)
    entries.check(setting_key("logging"), {"a": half})
    entries.put(setting_key("logging"), {"a": half})
    with pytest.raises(NotKept, match="bytes"):
        entries.check(setting_key("logging"), {"b": half})


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
        json.dumps({Region("system", f"r{i}").key: {} for i in range(kept.MOST_ENTRIES + 1)}).encode(),
        b" " * (2 * kept.MOST_ENTRIES * kept.LARGEST_ENTRY_BYTES + 1),
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
