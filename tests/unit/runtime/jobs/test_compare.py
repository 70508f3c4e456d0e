"""`ctl compare` from the command line to its documents, on a short list of workloads."""

import json
from pathlib import Path

import planning
import pytest

from controlplane.cli.main import run
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Rule
from controlplane.runtime.jobs.compare import TRUTHS, chosen, predicted_late

pytestmark = pytest.mark.slow
SPEC = """schema_version: 1
gpus: [{type: v100, price_per_hour: 3.06}]
workloads:
  - {name: search, model: resnet50, slo_ms: 40, rate_rps: 280}
  - {name: look, model: alexnet, slo_ms: 20, rate_rps: 450}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return file


def test_strategies_stand_side_by_side_and_one_that_cannot_plan_says_why(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--strategies", "ffd+,igniter,inss", "--truths", "measured,burstier", "--seconds", "5"]
    page = spec.parent / "compared.html"
    assert run(["compare", str(spec), *arguments, "--json", "--report", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert found["prices"] == {"v100": 3.06}
    assert [s["name"] for s in found["strategies"]] == ["ffd+", "igniter"]
    (refused,) = found["refused"]
    assert refused["name"] == "inss"
    assert "say how many" in refused["reason"]
    for one in found["strategies"]:
        assert one["gpus"] * 3.06 == pytest.approx(one["cost_per_hour"])
        assert one["truths"].keys() == {"measured", "burstier"}
        assert one["truths"]["burstier"]["late_percent"] > one["truths"]["measured"]["late_percent"]
        assert one["truths"]["measured"]["power_w"] > 0
    assert "Strategies compared" in page.read_text()


def test_gpus_of_several_types_are_told_apart(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    types = "[{type: v100, price_per_hour: 3.06}, {type: rtx2060s, price_per_hour: 0.1, count: 8}]"
    text = SPEC.replace("[{type: v100, price_per_hour: 3.06}]", types).replace("resnet50", "ssd")
    spec.write_text(text.replace("rate_rps: 450", "rate_rps: 50").replace("slo_ms: 40", "slo_ms: 60"))
    arguments = ["compare", str(spec), "--strategies", "joint", "--truths", ""]
    assert run([*arguments, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["strategies"]
    assert one["types"].keys() == {"rtx2060s", "v100"}
    assert sum(one["types"].values()) == one["gpus"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert f"{one['types']['rtx2060s']} rtx2060s" in shown
    assert "rtx2060s 0.10, v100 3.06" in shown


def test_costs_are_left_out_where_no_gpu_type_has_a_price(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(SPEC.replace("3.06", "0"))
    assert run(["compare", str(spec), "--strategies", "ffd+", "--truths", ""]) == 0
    assert "cost/h" not in capsys.readouterr().out


def test_a_spec_that_no_strategy_plans_is_refused_with_its_line(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(SPEC.replace("alexnet", "alexnett"))
    assert run(["compare", str(spec), "--strategies", "igniter", "--truths", ""]) == 2
    assert f"{spec}:5: workloads[1].model: no profile of 'alexnett'" in capsys.readouterr().err


def test_unknown_truths_and_strategies_are_named_with_the_nearest(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(spec), "--strategies", "igniterr"]) == 2
    assert "did you mean 'igniter'" in capsys.readouterr().err
    with pytest.raises(InputError, match="did you mean 'slower'"):
        chosen(["slowr"])


def test_truths_are_the_chosen_ones_each_once() -> None:
    assert [t.truth.name for t in chosen(["slower", "believed", "slower"])] == ["slower", "believed"]
    assert TRUTHS["slower"].factor == 1.1


def test_each_workload_of_a_shared_queue_is_judged_by_its_own_slo() -> None:
    devices = {"v100": planning.v100("ours")}
    sound = planning.planned("joint", planning.published(12), rule=Rule.P99, latency="ours", iterations=0)
    assert predicted_late(sound, devices) == ()
    half_slo = planning.planned("ffd+", planning.published(12))
    late = predicted_late(half_slo, devices)
    assert {"W2", "W4", "W7", "W8", "W9", "W12"} <= set(late)
