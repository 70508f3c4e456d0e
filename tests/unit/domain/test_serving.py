"""The section `serve`: its limits, and that it says all that a gateway does."""

from pathlib import Path

import pytest
from build import SPEC
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Cluster
from controlplane.domain.serving import (
    Access,
    FollowLoad,
    LateBinding,
    LauncherName,
    Listen,
    Serving,
    Tls,
    differences,
)
from controlplane.files.plans import read_spec

SECTIONS = st.builds(
    Serving,
    launcher=st.sampled_from(LauncherName),
    listen=st.builds(Listen, host=st.just("0.0.0.0"), http=st.just(9000), metrics=st.integers(9100, 9200)),
    tls=st.none() | st.builds(Tls, st.just("c"), st.just("k"), st.none() | st.just("ca")),
    access=st.builds(Access, st.booleans(), st.booleans(), st.booleans(), st.none() | st.integers(1, 500)),
    compress=st.booleans(),
    fleet_wide_calls=st.booleans(),
    traces=st.sampled_from(["", "http://127.0.0.1:4318/v1/traces"]),
    late_binding=st.none() | st.builds(LateBinding, st.integers(0, 1000)),
    follow_load=st.none() | st.builds(FollowLoad, st.floats(1, 1000)),
)


@given(SECTIONS)
def test_a_running_fleet_shows_the_section_that_it_was_applied_with(section: Serving) -> None:
    dwell_s = None if section.follow_load is None else section.follow_load.stabilisation_s
    assert Serving.of(section.launcher, section.gateway, Cluster(), dwell_s) == section


def test_what_a_section_leaves_out_has_its_default() -> None:
    assert Serving().gateway == Serving(listen=Listen(), access=Access()).gateway
    changed = differences(Serving().gateway, Serving(listen=Listen(http=9), access=Access(True)).gateway)
    assert {(one.path, one.before, one.after) for one in changed} == {
        ("http_port", 8000, 9),
        ("protection.tokens", False, True),
    }


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("{listen: {http: 8001}}", "serve.listen.grpc"),
        ("{listen: {http: 0}}", "serve.listen.http"),
        ("{launcher: podman}", "serve.launcher"),
        ("{tls: {cert: c.pem}}", "serve.tls.key"),
        ("{traces: collector}", "serve.traces"),
        ("{late_binding: {overtake_ms: -1}}", "serve.late_binding.overtake_ms"),
        ("{follow_load: {stabilisation_s: 0}}", "serve.follow_load.stabilisation_s"),
        ("{port: 8000}", "serve.port"),
    ],
)
def test_a_wrong_section_is_refused_with_its_line_and_field(section: str, field: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(f"{SPEC}serve: {section}\n")
    with pytest.raises(InputError) as refused:
        read_spec(file)
    assert (refused.value.line, refused.value.field) == (4, field)
