from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Backend, Route, Routes
from controlplane.domain.order import Precedence
from controlplane.files.gateway import Traits
from controlplane.gateway import slots
from controlplane.gateway.slots import Phase, SlotTable, assign, release, restate, unknown

ONE = Backend("one", "127.0.0.1", 9000, 9001)
TWO = Backend("two", "127.0.0.1", 9010, 9011)
THREE = Backend("three", "127.0.0.1", 9020, 9021)


def phases(table: SlotTable) -> list[Phase]:
    return [slot.phase for slot in table.slots]


def test_a_new_route_fills_a_slot_before_the_map_leads_there() -> None:
    change = assign(SlotTable.empty(2, 1), {"m": Route((ONE,), TWO)})
    assert change.table.model_map() == {"m": "0"}
    assert change.table.check_map() == {"h_0": "m", "g_0": "m"}
    assert change.after == ()
    assert change.before == (
        "set server h_0/s0 addr 127.0.0.1 port 9000",
        "enable health h_0/s0",
        "set server h_0/s0 check-port 9000",
        "set server h_0/s0 state ready",
        "set server g_0/s0 addr 127.0.0.1 port 9001",
        "enable health g_0/s0",
        "set server g_0/s0 check-port 9000",
        "set server g_0/s0 state ready",
        "set server h_0/backup addr 127.0.0.1 port 9010",
        "enable health h_0/backup",
        "set server h_0/backup check-port 9010",
        "set server h_0/backup state ready",
        "set server g_0/backup addr 127.0.0.1 port 9011",
        "enable health g_0/backup",
        "set server g_0/backup check-port 9010",
        "set server g_0/backup state ready",
    )


def test_only_of_servers_that_nobody_was_asked_about_is_asked() -> None:
    known = {"m": Traits(executes="m"), "n": Traits()}
    routes: Routes = {"m": Route((ONE,), TWO), "n": Route((ONE,), TWO)}
    assert unknown(SlotTable.empty(8, 2), routes) == {"m", "n"}
    table = assign(SlotTable.empty(8, 2), routes, known).table
    assert unknown(table, routes) == frozenset(), "nothing changes"
    turned = {e: Route((TWO,)) for e in routes}
    assert unknown(table, turned) == {"n"}, "of which nobody could tell"
    assert unknown(table, {"m": Route((THREE,), TWO)}) == {"m"}
    assert unknown(table, {"m": Route((ONE,), THREE)}) == frozenset(), (
        "another backup is another time's member"
    )


def test_a_route_without_a_backup_backs_itself_up() -> None:
    (slot, _) = assign(SlotTable.empty(2, 2), {"m": Route((TWO, ONE))}).table.slots
    assert slot.servers() == {"s0": TWO, "s1": ONE, "backup": TWO}


def test_a_redirect_drains_the_old_slot_and_leaves_its_servers_up() -> None:
    first = assign(SlotTable.empty(2, 1), {"m": Route((ONE,))}).table
    change = assign(first, {"m": Route((TWO,))})
    assert phases(change.table) == [Phase.DRAINING, Phase.ACTIVE]
    lines = ("h_0/s0", "g_0/s0", "h_0/backup", "g_0/backup")
    assert change.after == tuple(f"disable health {line}" for line in lines)
    assert not any("h_0" in command or "g_0" in command for command in change.before)


def test_what_a_replaced_server_dies_over_is_left_to_its_successor() -> None:
    first = assign(SlotTable.empty(2, 1), {"m": Route((ONE,), TWO)}).table
    assert assign(first, {"m": Route((TWO,))}).after == (
        "set server h_0/s0 state maint",
        "set server g_0/s0 state maint",
        "disable health h_0/backup",
        "disable health g_0/backup",
    )
    # Nobody goes on with what an endpoint without a route still owes: its servers do.
    assert not any("maint" in command for command in assign(first, {}).after)


def test_endpoints_of_one_model_in_one_pool_are_counted_together() -> None:
    pool, other, one = Route((ONE, TWO)), Route((TWO, ONE)), Route((ONE,))
    traits = {e: Traits(executes="a") for e in "abcd"} | {"x": Traits(executes="x"), "y": Traits()}
    routes = {"a": pool, "b": pool, "c": other, "d": one, "x": pool, "y": pool}
    first = assign(SlotTable.empty(10, 2), routes, traits).table
    assert first.model_map() == {"a": "0", "b": "0", "c": "2", "d": "3", "x": "4", "y": "5"}
    # Each keeps a slot of its own, ready: the first may leave, and the others do not wait for it.
    moved = assign(first, {**routes, "a": other}, traits)
    assert moved.table.model_map() == {"a": "2", "b": "1", "c": "2", "d": "3", "x": "4", "y": "5"}
    assert [slot.phase for slot in moved.table.slots[:2]] == [Phase.DRAINING, Phase.ACTIVE]
    assert not any("_1/" in command for command in moved.before)
    # What it owes, of whichever endpoint, keeps it from being used again.
    assert release(moved.table, idle=(1, 2)).table.slots[0].phase is Phase.DRAINING
    # Alone on a server there is nothing to choose: each goes its own way.
    alone = assign(SlotTable.empty(4, 1), {"a": one, "b": one}, traits)
    assert alone.table.model_map() == {"a": "0", "b": "1"}


def test_a_draining_slot_is_used_again_only_once_idle() -> None:
    table = assign(assign(SlotTable.empty(2, 1), {"m": Route((ONE,))}).table, {"m": Route((TWO,))}).table
    busy = assign(release(table, idle=()).table, {"m": Route((ONE,))})
    assert (busy.left, busy.table, busy.before, busy.after) == (("m",), table, (), ())
    freed = release(table, idle=(0, 1))
    assert phases(freed.table) == [Phase.FREE, Phase.ACTIVE]
    lines = ("h_0/s0", "h_0/backup", "g_0/s0", "g_0/backup")
    assert freed.before == tuple(f"set server {line} state maint" for line in lines)
    assert assign(freed.table, {"m": Route((ONE,))}).table.model_map() == {"m": "0"}


def test_where_slots_are_short_dead_endpoints_move_before_new_ones_and_living_ones() -> None:
    table = assign(SlotTable.empty(5, 1), dict.fromkeys("abc", Route((ONE,)))).table
    change = assign(table, {**dict.fromkeys("abc", Route((TWO,))), "n": Route((ONE,))}, first={"c"})
    assert change.left == ("a", "b")
    assert change.table.routes() == {
        "a": Route((ONE,)),
        "b": Route((ONE,)),
        "c": Route((TWO,)),
        "n": Route((ONE,)),
    }
    assert not any("_0/" in command or "_1/" in command for command in change.after)


def test_equal_routes_change_nothing() -> None:
    routes = {"m": Route((ONE, TWO))}
    table = assign(SlotTable.empty(2, 2), routes).table
    change = assign(table, dict(routes))
    assert (change.table, change.before, change.after) == (table, (), ())


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ({"m": Route((ONE, TWO))}, "room for 1"),
        ({"m": Route(())}, "needs a server"),
        ({"a b": Route((ONE,))}, "cannot be routed"),
        ({"": Route((ONE,))}, "cannot be routed"),
        ({"#m": Route((ONE,))}, "cannot be routed"),
        ({"m\n": Route((ONE,))}, "cannot be routed"),
    ],
)
def test_what_cannot_be_routed_is_refused(routes: Routes, said: str) -> None:
    with pytest.raises(GatewayError, match=said):
        assign(SlotTable.empty(2, 1), routes)


def test_restating_touches_every_line_of_every_slot() -> None:
    table = assign(SlotTable.empty(2, 2), {"m": Route((ONE,))}).table
    commands = restate(table).before
    assert "set server h_0/s1 state maint" in commands
    assert "set server g_1/s0 state maint" in commands
    assert commands[-1] == "set server g_1/backup state maint"
    assert "set server h_0/s0 state ready" in commands


servers = st.sampled_from([Backend(f"t{i}", "127.0.0.1", 9000 + i, 9100 + i) for i in range(4)])
routes_of = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(Route, st.lists(servers, min_size=1, max_size=2, unique=True).map(tuple), st.none() | servers),
)
steps = st.lists(st.tuples(routes_of, st.sets(st.integers(0, 11))), max_size=12)


@given(steps)
def test_an_endpoint_has_one_slot_and_a_busy_slot_is_never_given_away(
    steps: list[tuple[dict[str, Route], set[int]]],
) -> None:
    table = SlotTable.empty(12, 2)
    for routes, idle in steps:
        before = table
        table = release(table, idle).table
        free = sum(slot.phase is Phase.FREE for slot in table.slots)
        present = table.routes()
        change = assign(table, routes, first=("b",))
        table = change.table
        wanted = [e for e, route in routes.items() if present.get(e) != route]
        assert len(change.left) == max(0, len(wanted) - free)
        kept = {e: present[e] for e in change.left if e in present}
        assert table.routes() == {e: r for e, r in routes.items() if e not in change.left} | kept
        assert sorted(table.model_map()) == sorted(table.routes())
        assert "b" not in change.left or not free
        for old, new in zip(before.slots, table.slots, strict=True):
            if old.phase is Phase.DRAINING and old.index not in idle:
                assert new == old
            if old.phase is Phase.ACTIVE and new.phase is Phase.ACTIVE:
                assert new == old
            assert (new.phase is Phase.FREE) == (new.route is None) == (new.endpoint is None)
        assert not any(
            f"_{s.index}/" in c for s in before.slots if s.phase is Phase.ACTIVE for c in change.before
        )


def test_what_was_known_of_a_model_outlives_its_route() -> None:
    kept = Traits(sequence_idle_us=5)
    table = assign(SlotTable.empty(3, 2), {"m": Route((ONE,))}, {"m": kept}).table
    assert assign(table, {}).table.traits("m") == table.traits("m") == kept
    assert table.traits("other") is None


AT_ONE, AT_TWO = Route((ONE,)), Route((TWO,))
ORDER = {
    "short": Precedence("P1", 0, 8, 20, 1000),
    "long": Precedence("P1", 700, 8, 20, 100),
    "other": Precedence("P2", 0, 1, 5, 50),
}


def test_endpoints_of_a_partition_share_a_gate() -> None:
    table = assign(
        SlotTable.empty(6, 2), {"alone": AT_TWO, "short": AT_ONE, "long": AT_ONE, "other": AT_TWO}
    ).table
    assert slots.gates(table, ORDER) == {"short": 1, "long": 1, "other": 3}
    assert slots.gate_map(table, ORDER)["long"] == "1/700/20/100"
    assert slots.gate_commands(table, ORDER) == (
        "set maxconn server q_1/gate 8",
        "set maxconn server q_3/gate 1",
    )


def test_a_redirected_partition_moves_to_another_gate_as_a_whole() -> None:
    table = assign(SlotTable.empty(6, 2), {"short": AT_ONE, "long": AT_ONE}).table
    table = assign(table, {"short": AT_TWO, "long": AT_TWO}).table
    assert slots.gates(table, ORDER) == {"short": 2, "long": 2}


def test_an_endpoint_with_sequences_or_without_an_order_has_no_gate() -> None:
    routes = {"short": AT_ONE, "long": AT_ONE, "unordered": AT_ONE}
    table = assign(SlotTable.empty(6, 2), routes, {"long": Traits(sequence_idle_us=1)}).table
    assert slots.gates(table, ORDER) == {"short": 0}
