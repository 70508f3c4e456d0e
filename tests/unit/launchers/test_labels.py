from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from launchers.cpu_quota import Group
from launchers.triton import labels

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


@st.composite
def any_server(draw: st.DrawFn) -> Server:
    spec = ServerSpec(
        Labels(draw(names), draw(names), draw(names), draw(st.sampled_from(Role)), draw(names)),
        draw(st.text(min_size=1)),
        tuple(draw(st.lists(names, max_size=3))),
        "cpu-0",
        draw(st.floats(1, 100)),
        draw(st.none() | st.floats(1, 1e6)),
        draw(st.none() | st.floats(1, 1e6)),
        *(draw(st.booleans()) for _ in range(4)),
        draw(st.sampled_from([NO_OPTIONS, ServerOptions(("--log-verbose=1",), {"A": "b"})])),
    )
    held = draw(st.none() | st.just("cgroup-v1"))
    return Server(
        "12", spec, ServerState.RUNNING, "127.0.0.1", 1, 2, 3, held, "/a/log", draw(st.none() | st.text())
    )


@given(any_server())
def test_a_server_is_rebuilt_from_its_text(server: Server) -> None:
    assert labels.server_of(labels.text_of(server), id="12", state=ServerState.RUNNING) == server


@given(any_server(), any_server())
def test_names_on_the_host_are_short_and_tell_whose_they_are(one: Server, other: Server) -> None:
    prefix, group = labels.memory_prefix(one.spec), Group.of(one.spec)
    assert len(prefix) + 36 <= 255
    assert len(group.folder) <= 255
    assert len(f"{labels.folder_name(one.name)}.log") <= 255
    assert Group.parse(group.folder) == group
    region = f"{prefix}8469c8a9-bcca-4994-93c0-a1783eeed482"
    assert labels.memory_owner(region, one.spec.labels.fleet) == group.server
    if other.spec.labels.fleet != one.spec.labels.fleet:
        assert labels.memory_owner(region, other.spec.labels.fleet) is None


def test_labels_of_another_version_are_refused_with_the_way_out() -> None:
    with pytest.raises(EngineError, match=r"server 7 .*stop it with the version that started it"):
        labels.server_of('{"fleet": "f"}', id="7", state=ServerState.RUNNING)


def test_where_its_repository_lies_is_not_part_of_what_a_server_is() -> None:
    spec = ServerSpec(Labels("f", "p1", "a", Role.ACTIVE, "r"), "/o/f/e9f4/a", ("x", "y"), "cpu-0", 30.0)
    elsewhere = replace(spec, labels=replace(spec.labels, plan_hash="p2"), repository="/o/f/fd71/a")
    assert labels.spec_difference(elsewhere, spec) == {}
    assert labels.spec_difference(replace(spec, endpoints=("y", "x")), spec) == {}
    # As exactly as a revision covers it, else an apply would be refused for ever.
    assert labels.spec_difference(replace(spec, percent=30.0000001), spec) == {}
    assert labels.spec_difference(replace(spec, percent=40.0), spec) == {"percent": ("40", "30")}
    assert set(labels.spec_difference(replace(spec, endpoints=("x",)), spec)) == {"endpoints"}
