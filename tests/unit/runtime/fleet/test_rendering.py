"""What each launcher gets of a plan whose models are pinned."""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.files.pinned import PinRules
from controlplane.runtime.fleet.rendering import Place, pinned_plan, rendered_plan
from launchers.docker import containers
from launchers.kubernetes import files as pods

MODELS = Path(__file__).parents[3] / "data" / "models"
PLACEMENT = Placement("a", "a", "echo", 10.0, 50.0)
PLAN = Plan(
    "by-hand",
    Rule.P99,
    "ours",
    (PlannedGpu("cpu-0", "cpu", (Partition("a", 20.0, (ServedModel("echo", 1),), (PLACEMENT,)),)),),
)


def test_a_container_has_the_pinned_model_and_nothing_of_the_repository(tmp_path: Path) -> None:
    applied, rendered = pinned_plan(PLAN, MODELS, Place(tmp_path, "f"), PinRules(link_roots=()), {})
    pinned = applied.repositories["echo"]
    assert containers.folders(Path(rendered["a"].path)) == tuple(
        sorted((rendered["a"].path, f"{pinned}/echo/1"))
    )


def test_a_pod_has_the_version_of_its_volume(tmp_path: Path) -> None:
    _, rendered = pinned_plan(PLAN, MODELS, Place(tmp_path, "f"), PinRules(copies=False), {})
    files = pods.read(rendered["a"].path)
    assert files.links == {"a/1": "echo/1"}
    assert set(files.texts) == {"a/config.pbtxt"}


def test_a_preview_and_a_later_rendering_are_what_was_applied_wherever_it_is_written(tmp_path: Path) -> None:
    here, there = Place(tmp_path / "here", "f"), Place(tmp_path / "there", "f")
    preview = pinned_plan(PLAN, MODELS, Place(here.output, "f", write=False), PinRules(), {})
    assert not here.output.exists()
    applied, rendered = pinned_plan(PLAN, MODELS, here, PinRules(), {})
    assert preview[1] == rendered
    assert rendered_plan(PLAN, applied, here) == rendered
    elsewhere = pinned_plan(PLAN, MODELS, there, PinRules(), {})[1]
    assert elsewhere["a"].content_hash == rendered["a"].content_hash, "a server of it needs no restart"
