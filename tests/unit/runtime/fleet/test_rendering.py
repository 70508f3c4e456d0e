"""What each launcher gets of a plan whose models are pinned."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.files.pinned import PinRules
from controlplane.files.rendered import forget_rendered
from controlplane.render.repository import BATCH_LIBRARY
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
BATCHED = replace(
    PLAN,
    gpus=(PlannedGpu("cpu-0", "cpu", (Partition("a", 20.0, (ServedModel("echo", 4),), (PLACEMENT,)),)),),
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


def test_servers_start_with_the_batch_library_that_was_applied_wherever_the_installation_is(
    tmp_path: Path,
) -> None:
    models, installed = tmp_path / "models", tmp_path / "installed" / "batch_limit.x86_64.so"
    shutil.copytree(MODELS / "echo", models / "echo")
    config = models / "echo" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 0", "max_batch_size: 8"))
    installed.parent.mkdir()
    installed.write_bytes(b"first")
    place = Place(tmp_path / "out", "f", library=str(installed))
    applied, rendered = pinned_plan(BATCHED, models, place, PinRules(), {})
    assert pinned_plan(BATCHED, models, replace(place, write=False), PinRules(), {}) == (applied, rendered)
    shutil.rmtree(installed.parent)
    assert rendered_plan(BATCHED, applied, place) == rendered
    library = Path(rendered["a"].path, "a", BATCH_LIBRARY)
    assert library.read_bytes() == b"first"
    assert library.resolve().is_relative_to(place.output.resolve())
    installed.parent.mkdir()
    installed.write_bytes(b"second")
    later = pinned_plan(BATCHED, models, place, PinRules(), {})[1]["a"]
    assert Path(later.path, "a", BATCH_LIBRARY).read_bytes() == b"second"
    assert later.content_hash == rendered["a"].content_hash, "a server of the first needs no restart"
    forget_rendered(place.output, "f", {rendered["a"].path})
    assert library.read_bytes() == b"first", "it is kept with the server's repository"
