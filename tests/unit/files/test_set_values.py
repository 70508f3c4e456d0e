"""Single values of a record, as `--set` gives them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Rule
from controlplane.domain.serving import FollowLoad, LateBinding, Serving, Tls
from controlplane.domain.settings import InssSettings, PlanSettings, ProfileSettings, ServeSettings
from controlplane.files.set_values import keys, with_values


def test_values_have_the_types_of_their_fields() -> None:
    before = PlanSettings(serve=Serving(tls=Tls("c", "k"), compress=True))
    given = ["rule=half-slo", "quantile=0.99", "iterations=5", "inss.policy=none", "serve.tls=null"]
    policy, section = InssSettings(policy="none"), Serving(compress=True)
    expected = PlanSettings(Rule.HALF_SLO, quantile=0.99, iterations=5, inss=policy, serve=section)
    assert with_values(before, given) == expected
    given = ["percents=20,50", "batches=8", "env.N=1.0", "triton_args=--a=b"]
    measured = ProfileSettings(percents=(20.0, 50.0), batches=(8,), triton_args=("--a=b",), env={"N": "1.0"})
    assert with_values(ProfileSettings(), given) == measured


def test_values_with_commas_are_a_list_of_json_and_null_is_text_where_a_text_must_be() -> None:
    texts = ("--backend-config=python,shm-default-byte-size=1", "--b=null")
    given = [f"triton_args={json.dumps(texts)}", "env.X=null", "percents=[20, 50]"]
    expected = ProfileSettings(triton_args=texts, env={"X": "null"}, percents=(20.0, 50.0))
    assert with_values(ProfileSettings(), given) == expected


@pytest.mark.parametrize(
    "twice",
    [["triton_args=--a=1", "triton_args=--b=2"], ["env.A=1", "env.A=1"], ["env.A=1", "env={}"]],
)
def test_a_value_that_a_later_one_would_replace_is_refused(twice: list[str]) -> None:
    with pytest.raises(InputError, match="given twice") as wrong:
        with_values(ProfileSettings(), twice)
    assert wrong.value.field == twice[1].partition("=")[0]


def test_an_inner_record_is_switched_on_and_off() -> None:
    on = ["serve.late_binding={}", "serve.follow_load.stabilisation_s=20", "serve.traces="]
    section = with_values(ServeSettings(), on).serve
    assert section == Serving(late_binding=LateBinding(), follow_load=FollowLoad(20.0))
    off = ["serve.late_binding=null", "serve.follow_load=null", "serve.compress=false"]
    assert with_values(ServeSettings(section), off).serve == Serving()


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("quantil=0.9", "quantil", "did you mean 'quantile'"),
        ("quantile=high", "quantile", "must be a number"),
        ("quantile.x=1", "quantile", "must be a number"),
        ("seed=-1", "seed", "must be at least 0"),
        ("rule=p98", "rule", "p99"),
        ("inss.bda=fast", "inss.bda", "exact"),
        ("serve.tls.cert=c.pem", "serve.tls.key", "is missing"),
        ("quantile", "--set", "`--set help`"),
        ("serve.traces=null", "serve.traces", "is no URL"),
    ],
)
def test_a_mistake_is_named_as_in_a_file(text: str, field: str, says: str) -> None:
    with pytest.raises(InputError) as wrong:
        with_values(PlanSettings(), [text])
    assert wrong.value.field == field
    assert says in wrong.value.problem


@pytest.mark.parametrize("kind", [PlanSettings, ServeSettings, ProfileSettings])
def test_every_key_that_is_listed_may_be_set_to_its_default(kind: type[object]) -> None:
    given_back = [f"{key.path}={key.default}" for key in keys(kind) if key.default]
    assert len(given_back) > 0
    with_values(kind(), given_back)


@given(st.text())
def test_any_text_is_taken_as_it_is(text: str) -> None:
    wanted = None if text == "null" else text
    found = with_values(ServeSettings(), [f"serve.context={text}"])
    assert found.serve.context == wanted
