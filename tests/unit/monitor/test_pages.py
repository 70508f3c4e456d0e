"""The gateway's own rows on the page of metrics, and those of the Tritons without what the fleet asked."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from controlplane.domain.fleet import Backend, Route
from controlplane.files.gateway import SlotRecord, SlotsRecord, Traits, discounts
from controlplane.files.gateway.discounts import add_discounts
from controlplane.gateway.slots import Phase, SlotTable, assign
from controlplane.monitor.metrics import Page
from controlplane.monitor.pages import ClientsCounters, read_page, tritons, write_slots

ONE, TWO = (Backend(name, "127.0.0.1", port, port + 1) for name, port in (("one", 9000), ("two", 9010)))
NOWHERE = Path("/nonexistent")
POOL, ALONE = Route((ONE, TWO)), Route((ONE,))


def table() -> SlotTable:
    """A pool with two aliases of `m`, another one of theirs by itself, and what the pool was before."""
    traits = {e: Traits(executes="m") for e in "mab"}
    old = assign(SlotTable.empty(8, 2), {"m": Route((TWO, ONE)), "a": Route((TWO, ONE))}, traits).table
    return assign(old, {"m": POOL, "a": POOL, "b": ALONE, "x": POOL}, {**traits, "x": Traits()}).table


def record(of: SlotTable) -> SlotsRecord:
    used = [s for s in of.slots if s.endpoint is not None and s.route is not None]
    return SlotsRecord(
        1,
        None,
        tuple(
            SlotRecord.of(s.index, s.phase is Phase.DRAINING, s.endpoint or "", s.route or ALONE, s.traits)
            for s in used
        ),
    )


def test_the_page_of_a_server_with_many_models_is_read_to_its_end() -> None:
    page = b"a_metric 1\n" * 100_000

    async def send(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for at in range(0, len(page), 50_000):
            await answer.write(page[at : at + 50_000])
        return answer

    async def read() -> str | None:
        app = web.Application()
        app.router.add_get("/metrics", send)
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            return await read_page(session.get(server.make_url("/metrics")))

    assert asyncio.run(read()) == page.decode()


def test_a_row_is_labelled_with_every_endpoint_whose_requests_it_counts() -> None:
    carried = record(table()).carried()
    assert carried == {0: ("m", "a"), 1: ("m", "a"), 2: ("m", "a"), 3: (), 4: ("b",), 5: ("x",)}
    for endpoint, slot in table().model_map().items():
        assert endpoint in carried[int(slot)]


def test_a_backend_in_use_is_told_with_its_endpoints() -> None:
    endpoints = {f"{p}_{i}": e for i, e in record(table()).carried().items() if e for p in "hg"}
    page = Page()
    write_slots(page, endpoints)
    (family,) = text_string_to_metric_families(page.text())
    told = {s.labels["proxy"]: s.labels["endpoint"] for s in family.samples}
    assert told == {
        f"{p}_{i}": e for p in "hg" for i, e in [(0, "m,a"), (1, "m,a"), (2, "m,a"), (4, "b"), (5, "x")]
    }


@given(st.lists(st.text(max_size=60) | st.sampled_from(["a 1\n", "a{", "# TYPE a b c", "a{x=0} nan"])))
def test_a_malformed_page_costs_its_own_rows_only(pieces: list[str]) -> None:
    pages = [(ONE, "\n".join(pieces)), (TWO, "good 3\n")]
    found = {
        family.name: family.samples
        for family in text_string_to_metric_families(tritons(pages, ClientsCounters(NOWHERE)))
    }
    assert [s.value for s in found["good"] if s.labels["partition"] == "two"] == [3]


def test_a_tritons_metrics_keep_their_names_and_types() -> None:
    own = """# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 5
# HELP nv_inference_request_summary_us Summary
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{model="m",version="1"} 4
nv_inference_request_summary_us{model="m",version="1",quantile="0.5"} Nan
# HELP nv_pinned_memory_pool_used_bytes Pinned memory pool used memory size, in bytes
# TYPE nv_pinned_memory_pool_used_bytes gauge
nv_pinned_memory_pool_used_bytes 0
"""
    servers = [Backend(f"f.{p}.active.1", "127.0.0.1", 9000, 9001) for p in "ab"]
    lines = tritons([(server, own) for server in servers], ClientsCounters(NOWHERE)).splitlines()
    assert [line for line in lines if line.startswith("#")] == [x for x in own.splitlines() if x[0] == "#"]
    for partition in "ab":
        where = f'partition="{partition}",role="active"'
        assert f'nv_inference_request_success{{model="m",version="1",{where}}} 5' in lines
        assert f"nv_pinned_memory_pool_used_bytes{{{where}}} 0" in lines


LABELS = 'model="m",version="1"'


def asked(folder: Path, times: int) -> None:
    stats = {"success": {"count": times, "ns": 2_000 * times}, "fail": {"count": times, "ns": 0}}
    add_discounts(
        folder,
        "s",
        [
            {
                "name": "m",
                "version": "1",
                "inference_count": times,
                "execution_count": times,
                "inference_stats": stats,
            }
        ],
    )


def shown(counters: ClientsCounters, name: str, value: str, labels: str = LABELS) -> str:
    return counters.value("s", counters.of("s"), name, labels, value)


def test_what_the_fleet_asked_is_left_out(tmp_path: Path) -> None:
    counters = ClientsCounters(tmp_path)
    asked(tmp_path, 3)
    assert shown(counters, "nv_inference_request_success", "5") == "2"
    assert shown(counters, "nv_inference_exec_count", "5") == "2"
    assert shown(counters, "nv_inference_request_duration_us", "10") == "4"
    assert shown(counters, "nv_inference_request_summary_us_count", "5") == "2"
    assert shown(counters, "nv_inference_request_summary_us_sum", "10") == "4"
    assert shown(counters, "nv_inference_request_success", "5", 'model="other",version="1"') == "5"
    assert shown(counters, "nv_gpu_utilization", "0.25", "") == "0.25"


@pytest.mark.parametrize(("reason", "left"), [("BACKEND", "2"), ("OTHER", "2"), ("REJECTED", "5")])
def test_its_failures_are_left_out_too(tmp_path: Path, reason: str, left: str) -> None:
    asked(tmp_path, 3)
    labels = f'model="m",reason="{reason}",version="1"'
    assert shown(ClientsCounters(tmp_path), "nv_inference_request_failure", "5", labels) == left


def test_a_counter_decreases_only_where_the_servers_own_does(tmp_path: Path) -> None:
    counters = ClientsCounters(tmp_path)
    asked(tmp_path, 1)
    found = [shown(counters, "nv_inference_count", "5")]
    asked(tmp_path, 1)  # before the server has counted it
    found += [shown(counters, "nv_inference_count", value) for value in ("5", "6", "7", "3")]
    assert found == ["4", "4", "4", "5", "1"]


def test_files_of_servers_that_ended_long_ago_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discounts, "_MOST_FILES", 2)
    for server in "abcd":
        add_discounts(tmp_path, server, ())
    assert len(list(tmp_path.iterdir())) == 3
    assert discounts.read_discounts(tmp_path, "a/b") == {}
