"""Rates from a source in place of those of a spec."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from host_ports import free_ports
from http_server import Quiet, serving

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.observation import RateSeen
from controlplane.domain.workload import GpuRequest, Spec, Workload
from controlplane.files.fleets import FleetFiles, state_root
from controlplane.files.following import RatesSeen, write_rates
from controlplane.runtime.jobs.rates import with_rates

SPEC = Spec((GpuRequest("cpu"),), tuple(Workload(n, "m", 100.0, 10.0, n) for n in ("seen", "new")))


@pytest.mark.parametrize(
    ("seen", "dispersion"),
    [
        (RateSeen("seen", 10.0, 40.0, 38.0, 42.5, 1.0, False), 1.0),
        # Bursts become a dispersion, and no higher rate.
        (RateSeen("seen", 10.0, 40.0, 38.0, 52.5, 4.0, True, bursts_rps=10.0), 4.0),
    ],
)
def test_the_forecast_of_a_fleet_replaces_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: RateSeen, dispersion: float
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    files = FleetFiles(state_root(), "f")
    files.directory.mkdir(parents=True)
    write_rates(files.rates, RatesSeen(0.0, "yes", (seen,)))
    told = list[str]()
    found = with_rates(SPEC, "fleet:f", None, told.append)
    assert [(w.rate_rps, w.dispersion) for w in found.workloads] == [(42.5, dispersion), (10.0, 1.0)]
    assert told == ["the rates of the spec, since fleet has none: new"]


@pytest.mark.parametrize("source", ["fleet:nothing", "fleet:", "f", "prometheus:http://x"])
def test_a_source_without_rates_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"--(rates|query): "):
        with_rates(SPEC, source, None, print)


@contextlib.contextmanager
def prometheus(content: object) -> Iterator[tuple[str, list[str]]]:
    """A server that answers every query with `content`, and the queries."""
    asked: list[str] = []

    class Handler(Quiet):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query)["query"][0])
            self.answer(content)

    with serving(Handler) as port:
        yield f"prometheus:http://127.0.0.1:{port}", asked


def vector(*series: tuple[dict[str, str], str]) -> dict[str, object]:
    result = [{"metric": metric, "value": [0, value]} for metric, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def test_a_query_gives_rates_by_endpoint() -> None:
    with prometheus(vector(({"endpoint": "seen"}, "31.5"), ({"endpoint": "new"}, "NaN"))) as (source, asked):
        found = with_rates(SPEC, source, "sum by (endpoint) (rate(x[5m]))", print)
    assert {w.name: w.rate_rps for w in found.workloads} == {"seen": 31.5, "new": 10.0}
    assert asked == ["sum by (endpoint) (rate(x[5m]))"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"status": "error", "error": "parse error"}, "the server refuses it: parse error"),
        (
            {"status": "success", "data": {"resultType": "matrix", "result": []}},
            "must give an instant vector",
        ),
        (vector(({"job": "x"}, "1")), "must keep one of the labels"),
        (vector(({"model": "m"}, "1"), ({"model": "m"}, "2")), "gives 'm' twice"),
    ],
)
def test_what_is_no_rate_of_a_workload_is_refused(content: object, problem: str) -> None:
    with prometheus(content) as (source, _), pytest.raises(InputError, match=f"--query: {problem}"):
        with_rates(SPEC, source, "x", print)


def test_a_url_with_credentials_is_refused() -> None:
    with pytest.raises(InputError, match="must hold no credentials"):
        with_rates(SPEC, "prometheus:http://user:word@127.0.0.1:1", "x", print)


def test_a_server_that_is_away_is_named() -> None:
    with pytest.raises(EngineError, match=r"127\.0\.0\.1: no answer"):
        with_rates(SPEC, f"prometheus:http://127.0.0.1:{free_ports(1)[0]}", "x", print)
