import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Backend, Route, Routes
from controlplane.domain.serving import Precedence
from controlplane.files.gateway import Traits
from controlplane.gateway import slots
from controlplane.gateway.slots import Phase, SlotTable, assign, release, restate, unknown

ONE = Backend("one", "127.0.0.1", 9000, 9001)
TWO = Backend("two", "127.0.0.1", 9010, 9011)
THREE = Backend("three", "127.0.0.1", 9020, 9021)

A, B = ONE.instance, TWO.instance
CHECKED = "pool-max-conn -1 pool-purge-delay 5s check inter 1s fastinter 200ms downinter 200ms fall 3 rise 1"
OBSERVED = "observe layer4 error-limit 1 on-error mark-down"


def phases(table: SlotTable) -> list[Phase]:
    return [slot.phase for slot in table.slots]


def test_a_new_route_fills_a_slot_before_the_map_leads_there() -> None:
    change = assign(SlotTable.empty(2, 1), {"m": Route((ONE,), TWO)})
    assert change.table.model_map() == {"m": "0"}
    assert change.table.check_map() == {"h_0": "m", "g_0": "m"}
    assert change.after == ()
    assert change.before == (
        f"add server h_0/{A} 127.0.0.1:9000 {CHECKED} {OBSERVED}",
        f"enable health h_0/{A}",
        f"set server h_0/{A} state ready",
        f"add server g_0/{A} 127.0.0.1:9001 proto h2 check-proto h1 port 9000 {CHECKED} {OBSERVED}",
        f"enable health g_0/{A}",
        f"set server g_0/{A} state ready",
        f"add server h_0/{B}:backup 127.0.0.1:9010 {CHECKED} backup",
        f"enable health h_0/{B}:backup",
        f"set server h_0/{B}:backup state ready",
        f"add server g_0/{B}:backup 127.0.0.1:9011 proto h2 check-proto h1 port 9010 {CHECKED} backup",
        f"enable health g_0/{B}:backup",
        f"set server g_0/{B}:backup state ready",
    )


def test_a_server_on_sockets_is_added_by_their_paths() -> None:
    at = Backend("one", "unix:/run/x/0f/t", 8000, 8001)
    added = [c for c in assign(SlotTable.empty(1, 1), {"m": Route((at,), TWO)}).before if "one:" in c]
    assert added[0] == f"add server h_0/one:0f unix@/run/x/0f/t:8000 {CHECKED} {OBSERVED}"
    assert added[3] == (
        "add server g_0/one:0f unix@/run/x/0f/t:8001 proto h2 check-proto h1 addr unix@/run/x/0f/t:8000 "
        f"{CHECKED} {OBSERVED}"
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
    assert slot.servers() == {B: TWO, A: ONE, f"{B}:backup": TWO}


def test_a_redirect_drains_the_old_slot_and_leaves_its_servers_up() -> None:
    first = assign(SlotTable.empty(2, 1), {"m": Route((ONE,))}).table
    change = assign(first, {"m": Route((TWO,))})
    assert phases(change.table) == [Phase.DRAINING, Phase.ACTIVE]
    lines = (f"h_0/{A}", f"g_0/{A}", f"h_0/{A}:backup", f"g_0/{A}:backup")
    assert change.after == tuple(f"disable health {line}" for line in lines)
    assert not any("h_0" in command or "g_0" in command for command in change.before)


def test_what_a_replaced_server_dies_over_is_left_to_its_successor() -> None:
    first = assign(SlotTable.empty(2, 1), {"m": Route((ONE,), TWO)}).table
    assert assign(first, {"m": Route((TWO,))}).after == (
        f"set server h_0/{A} state maint",
        f"set server g_0/{A} state maint",
        f"disable health h_0/{B}:backup",
        f"disable health g_0/{B}:backup",
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
    assert release(moved.table, (1, 2), {}).table.slots[0].phase is Phase.DRAINING
    # Alone on a server there is nothing to choose: each goes its own way.
    alone = assign(SlotTable.empty(4, 1), {"a": one, "b": one}, traits)
    assert alone.table.model_map() == {"a": "0", "b": "1"}


def test_a_draining_slot_is_used_again_only_once_idle() -> None:
    table = assign(assign(SlotTable.empty(2, 1), {"m": Route((ONE,))}).table, {"m": Route((TWO,))}).table
    busy = assign(release(table, (), {}).table, {"m": Route((ONE,))})
    assert (busy.left, busy.table, busy.before, busy.after) == (("m",), table, (), ())
    freed = release(table, (0, 1), {"h_0": ["left", A], "g_0": [A], "h_1": [B]})
    assert phases(freed.table) == [Phase.FREE, Phase.ACTIVE]
    assert freed.before == tuple(
        command
        for line in ("h_0/left", f"h_0/{A}", f"g_0/{A}")
        for command in (f"set server {line} state maint", f"del server {line}")
    )
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
        ({"sequences": Route((ONE, TWO))}, "one server serves it"),
        ({"m": Route(())}, "needs a server"),
        ({"a b": Route((ONE,))}, "cannot be routed"),
        ({"": Route((ONE,))}, "cannot be routed"),
        ({"#m": Route((ONE,))}, "cannot be routed"),
        ({"m\n": Route((ONE,))}, "cannot be routed"),
    ],
)
def test_what_cannot_be_routed_is_refused(routes: Routes, said: str) -> None:
    with pytest.raises(GatewayError, match=said):
        assign(SlotTable.empty(2, 1), routes, {"sequences": Traits(sequence_idle_us=5)})


def test_restating_deletes_what_no_slot_has_and_adds_what_one_has() -> None:
    first = assign(SlotTable.empty(2, 2), {"m": Route((ONE,))}).table
    table = assign(first, {"m": Route((TWO,))}).table
    commands = restate(table, {"h_0": [A, "left"], "g_1": [B, "left"]}).before
    assert [c for c in commands if c.startswith("del")] == ["del server h_0/left", "del server g_1/left"]
    assert {c.split()[2] for c in commands if c.startswith("add")} == {
        f"{p}_1/{line}" for p in "hg" for line in (B, f"{B}:backup")
    }
    assert f"set server h_1/{B} state ready" in commands
    assert not any(f"_0/{A}" in command for command in commands), "it drains"


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
        table = release(table, idle, {}).table
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
    assert slots.gate_map(table, ORDER)["long"] == "1/700/20/100/0/0"
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
