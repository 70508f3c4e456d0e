"""What one Triton answers, a fleet answers; what differs is in docs/compatibility.md, and nothing else is.

`make test` runs it on processes, `make conformance` (`CONFORMANCE=all`) on Docker too, and writes how many
calls are equal.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import conformance_zoo
import pytest
import triton_image
from bare_triton import HOST, bare_triton
from conformance_calls import CASES, Case, Target
from ctl_fleet import ROOT, Ctl
from host_ports import free_ports

pytestmark = pytest.mark.long

_ROW = re.compile(r"^\| `([a-z0-9-]+)` \|.*?(?:`(tests/[^`]+)` )?\|$", re.MULTILINE)
PAGE = ROOT / "docs/compatibility.md"
ROWS = dict(_ROW.findall(PAGE.read_text()))
"""The table's rows, each with its test where that is not this one."""
COMPARED = "Calls with equal answers: "
ALL = os.environ.get("CONFORMANCE") == "all"
DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.soak])
COLUMNS = {
    "HTTP": ("http", "metrics", "statistics"),
    "HTTP aio": ("http-aio",),
    "gRPC": ("grpc", "queue"),
    "gRPC aio": ("grpc-aio",),
    "stream": ("stream",),
}
"""Clients, each with what the names of its cases begin with."""


@dataclass(frozen=True)
class Sides:
    """The two that get the same calls."""

    plain: Target
    fleet: Target


@pytest.fixture(scope="module", params=["process", DOCKER])
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    here = tmp_path_factory.mktemp("conformance")
    (metrics_port,) = free_ports(1)
    conformance_zoo.write(here / "plain")
    more = ("--allow-metrics=true", f"--metrics-port={metrics_port}", f"--metrics-address={HOST}")
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(triton_image.docker_engine()) if request.param == "docker" else None
        fleet = stack.enter_context(Ctl(here, models=here / "plain"))
        if engine is not None:
            fleet.in_containers(*engine)
        more = (*more, *conformance_zoo.ARGUMENTS)
        bare = stack.enter_context(bare_triton(here / "plain", here / "plain.log", *more, deadline_s=120))
        fleet.apply(
            conformance_zoo.plan(),
            "--allow",
            "all-cores",
            "--no-controller",
            "--set=serve.fleet_wide_calls=true",
        )

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
    assert {row for row, test in ROWS.items() if not test} == {c.row for c in CASES if c.row is not None}
    for row, test in ROWS.items():
        if test:
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), row


def _counted() -> str:
    equal = Counter(one.name.partition(": ")[0] for one in CASES if one.row is None)
    over = (f"{column} {sum(equal.pop(kind, 0) for kind in kinds)}" for column, kinds in COLUMNS.items())
    said = f"{COMPARED}{', '.join(over)}. With those of the rows above {len(CASES)} calls are compared.\n"
    assert not equal
    return said


def test_the_page_says_how_many_calls_are_compared() -> None:
    head, _, _ = PAGE.read_text().partition(COMPARED)
    if ALL:
        PAGE.write_text(head + _counted())
    assert PAGE.read_text() == head + _counted()


def test_the_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
