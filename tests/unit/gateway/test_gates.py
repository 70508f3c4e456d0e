from __future__ import annotations

import pytest

from controlplane.domain.fleet import Backend, Route
from controlplane.domain.order import Precedence
from controlplane.files.gateway import Traits
from controlplane.gateway import slots
from controlplane.gateway.slots import SlotTable, assign

pytestmark = pytest.mark.unit

ONE = Route((Backend("one", "127.0.0.1", 9000, 9001),))
TWO = Route((Backend("two", "127.0.0.1", 9010, 9011),))
ORDER = {
    "short": Precedence("P1", 0, 8, 20, 1000),
    "long": Precedence("P1", 700, 8, 20, 100),
    "other": Precedence("P2", 0, 1, 5, 50),
}


def test_endpoints_of_a_partition_share_a_gate() -> None:
    table = assign(SlotTable.empty(6, 2), {"alone": TWO, "short": ONE, "long": ONE, "other": TWO}).table
    assert slots.gates(table, ORDER) == {"short": 1, "long": 1, "other": 3}
    assert slots.gate_map(table, ORDER)["long"] == "1/700/20/100"
    assert slots.gate_commands(table, ORDER) == (
        "set maxconn server q_1/gate 8",
        "set maxconn server q_3/gate 1",
    )


def test_a_redirected_partition_moves_to_another_gate_as_a_whole() -> None:
    table = assign(SlotTable.empty(6, 2), {"short": ONE, "long": ONE}).table
    table = assign(table, {"short": TWO, "long": TWO}).table
    assert slots.gates(table, ORDER) == {"short": 2, "long": 2}


def test_an_endpoint_with_sequences_or_without_an_order_has_no_gate() -> None:
    routes = {"short": ONE, "long": ONE, "unordered": ONE}
    table = assign(SlotTable.empty(6, 2), routes, {"long": Traits(sequence_idle_us=1)}).table
    assert slots.gates(table, ORDER) == {"short": 0}
