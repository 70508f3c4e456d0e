"""What one Triton answers, a fleet answers; what differs is in docs/compatibility.md, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import conformance_zoo
import pytest
from bare_triton import HOST, bare_triton
from conformance_calls import CASES, Case, Target
from ctl_fleet import ROOT, Ctl
from host_ports import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.long]

_ROW = re.compile(r"^\| `([a-z0-9-]+)` \|.*\| ([^|]+) \|$", re.MULTILINE)
ROWS = dict(_ROW.findall((ROOT / "docs/compatibility.md").read_text()))
"""The table's rows, each with its test."""
SUITE = "the suite"


@dataclass(frozen=True)
class Sides:
    """The two that get the same calls."""

    plain: Target
    fleet: Target


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    here = tmp_path_factory.mktemp("conformance")
    (metrics_port,) = free_ports(1)
    conformance_zoo.write(here / "plain")
    more = ("--allow-metrics=true", f"--metrics-port={metrics_port}", f"--metrics-address={HOST}")
    with (
        Ctl(here, models=here / "plain") as fleet,
        bare_triton(
            here / "plain", here / "plain.log", *more, *conformance_zoo.ARGUMENTS, deadline_s=120
        ) as bare,
    ):
        fleet.apply(conformance_zoo.plan(), "--all-cores", "--no-serve", "--fleet-wide-calls")

        def redirect() -> None:
            fleet.ctl("redirect", "plain")

        yield Sides(
            Target(HOST, bare.http_port, bare.grpc_port, metrics_port, lambda: None),
            Target(HOST, fleet.http, fleet.grpc, fleet.metrics, redirect),
        )


def _parameter(case: Case) -> object:
    return pytest.param(case, id=case.name, marks=[pytest.mark.soak] if case.slow else [])


@pytest.mark.parametrize("case", [_parameter(case) for case in CASES])
def test_a_fleet_answers_as_one_triton_does(sides: Sides, case: Case) -> None:
    plain, fleet = case.call(sides.plain), case.call(sides.fleet)
    if case.row is None:
        assert fleet == plain
    else:
        assert fleet != plain, f"equal by now: the row {case.row} goes"


def test_each_row_of_the_table_has_a_test_and_each_difference_a_row() -> None:
    assert {row for row, test in ROWS.items() if test == SUITE} == {c.row for c in CASES if c.row is not None}
    for row, test in ROWS.items():
        if test != SUITE:
            path, _, name = test.strip("`").partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), row


def test_the_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
