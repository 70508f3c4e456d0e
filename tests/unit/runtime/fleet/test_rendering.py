"""A fleet's models: pinned at an apply, rendered for its servers, and removed when nothing needs them."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import build
import pytest
from fake_host import Program
from fleet_world import World, world

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import BATCH_LIBRARY, Cluster
from controlplane.domain.observation import Event
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel, Shadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.files import pinned
from controlplane.files.pinned import PinRules, content
from controlplane.files.plans import plan_hash
from controlplane.files.rendered import forget_rendered
from controlplane.runtime.controller.watches import DriftWatch
from controlplane.runtime.fleet.fleet import redirect
from controlplane.runtime.fleet.preflight import ApplyRequest
from controlplane.runtime.fleet.rendering import Place, pinned_plan, rendered_plan
from launchers.docker import containers
from launchers.kubernetes import files as pods
from launchers.kubernetes.launcher import KubernetesLauncher

MODELS = Path(__file__).parents[3] / "data" / "models"
PLACEMENT = Placement("a", "a", "echo", 10.0, 50.0)


def batched(batch: int) -> Plan:
    partition = Partition("a", 20.0, (ServedModel("echo", batch),), (PLACEMENT,))
    return Plan("by-hand", Rule.P99, "ours", (PlannedGpu("cpu-0", "cpu", (partition,)),))


PLAN = batched(1)


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


def batching_models(folder: Path) -> Path:
    shutil.copytree(MODELS / "echo", folder / "models" / "echo")
    config = folder / "models" / "echo" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 0", "max_batch_size: 8"))
    return folder / "models"


def test_a_pod_has_the_plans_batch_in_its_configuration_where_another_is_another_pod(tmp_path: Path) -> None:
    launcher, models = KubernetesLauncher(tmp_path / "state", Cluster()), batching_models(tmp_path)
    place = Place(tmp_path / "out", "f", library=launcher.batch_library())
    hashes = set()
    for batch in (4, 5):
        rendered = pinned_plan(batched(batch), models, place, PinRules(), {})[1]["a"]
        found = pods.read(rendered.path)
        assert f"preferred_batch_size: {batch}" in found.texts["a/config.pbtxt"]
        assert set(found.links) == {"a/1"}, "no batch library"
        assert rendered.batches == ()
        hashes.add(rendered.content_hash)
    assert len(hashes) == 2


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
    models, installed = batching_models(tmp_path), tmp_path / "installed" / "batch_limit.x86_64.so"
    installed.parent.mkdir()
    installed.write_bytes(b"first")
    place = Place(tmp_path / "out", "f", library=str(installed))
    applied, rendered = pinned_plan(batched(4), models, place, PinRules(), {})
    assert pinned_plan(batched(4), models, replace(place, write=False), PinRules(), {}) == (applied, rendered)
    shutil.rmtree(installed.parent)
    assert rendered_plan(batched(4), applied, place) == rendered
    library = Path(rendered["a"].path, "a", BATCH_LIBRARY)
    assert library.read_bytes() == b"first"
    assert library.resolve().is_relative_to(place.output.resolve())
    installed.parent.mkdir()
    installed.write_bytes(b"second")
    later = pinned_plan(batched(4), models, place, PinRules(), {})[1]["a"]
    assert Path(later.path, "a", BATCH_LIBRARY).read_bytes() == b"second"
    assert later.content_hash == rendered["a"].content_hash, "a server of the first needs no restart"
    forget_rendered(place.output, "f", {rendered["a"].path})
    assert library.read_bytes() == b"first", "it is kept with the server's repository"


def plan(percent: float = 20.0) -> Plan:
    shadow = Shadow(ShadowPolicy.HOT, "cpu-0", 10.0, percent + 10.0)
    return build.plan(build.partition("a", percent, model="echo", shadow=shadow), gpu="cpu-0")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(content, "GRAIN_NS", 0)
    with world() as made:
        write(made, "applied")
        apply(made, plan())
        made.serve()
        settle(made)
        yield made


def apply(here: World, wanted: Plan | ApplyRequest) -> Any:
    with here.host.running_as(Program()):
        return here.apply_last(wanted) if isinstance(wanted, Plan) else here.fleet.apply(wanted)


def write(here: World, text: str) -> None:
    """Edit the model in place."""
    (here.models / "echo" / "1" / "model.py").write_text(text)


def settle(here: World) -> None:
    for _ in range(20):
        here.tick(1.9)


def served(here: World) -> set[str]:
    """The model of every server that runs, as it would read it now."""
    running = [s for name in here.host.servers if (s := here.host.running(name))]
    assert len(running) == 2
    return {Path(s.spec.repository, "a", "1", "model.py").read_text() for s in running}


def active(here: World) -> str:
    return here.host.routes["a"].members[0].server


def served_after_a_death(here: World) -> set[str]:
    here.host.kill(active(here))
    settle(here)
    return served(here)


def test_no_standby_starts_what_nobody_applied(here: World) -> None:
    write(here, "never applied")
    for _ in range(3):
        assert served_after_a_death(here) == {"applied"}
    # A controller that begins now reads what was applied, too.
    here.end_controller()
    here.serve()
    assert served_after_a_death(here) == {"applied"}
    apply(here, plan())
    assert served(here) == {"never applied"}


def test_a_redirect_by_hand_does_not_depend_on_the_repository(here: World) -> None:
    here.host.kill(active(here))
    settle(here)
    write(here, "never applied")
    before = active(here)
    with here.host.running_as(Program()):
        redirect(here.fleet, ["a"], here.settings_kept())
    assert active(here) != before
    settle(here)
    assert served(here) == {"applied"}


def test_a_plan_that_follows_the_load_serves_what_was_applied(here: World) -> None:
    write(here, "never applied")
    apply(here, ApplyRequest(plan(30.0), here.settings, made_from=plan_hash(plan())))
    assert served(here) == {"applied"}


@pytest.mark.parametrize("percent", [20.0, 30.0])
def test_a_rollback_brings_the_models_back_with_the_plan(here: World, percent: float) -> None:
    write(here, "second")
    apply(here, plan(percent))
    write(here, "never applied")
    apply(here, here.fleet.previous())
    assert served(here) == {"applied"}
    assert here.fleet.files.plan() == plan()
    apply(here, here.fleet.previous())
    assert served(here) == {"second"}


def test_a_second_apply_changes_nothing_and_reads_no_model(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("a file was hashed"))
    monkeypatch.setattr(pinned, "_copy", lambda *_: pytest.fail("a file was copied"))
    assert apply(here, plan()).actions == ()
    assert here.fleet.preview(ApplyRequest(plan(), here.settings)) == ()


def test_only_the_present_and_the_previous_content_stay(here: World) -> None:
    for text in ("second", "third", "fourth"):
        write(here, text)
        apply(here, plan())
        settle(here)
    kept = (here.directory / "out0" / "f" / ".pinned").iterdir()
    assert {(path / "echo" / "1" / "model.py").read_text() for path in kept} == {"third", "fourth"}


def test_a_full_disk_fails_the_apply_and_changes_nothing(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    write(here, "second")
    before = sorted(here.directory.rglob("*")), dict(here.host.routes)
    with monkeypatch.context() as patch:
        patch.setattr(pinned, "_copy", full)
        with pytest.raises(EngineError, match="No space left on device") as failed:
            apply(here, plan(30.0))
    assert failed.value.exit_code == 4
    assert (sorted(here.directory.rglob("*")), dict(here.host.routes)) == before
    assert here.fleet.files.plan() == plan()
    assert served_after_a_death(here) == {"applied"}


def test_models_that_an_earlier_version_applied_are_pinned_at_the_first_need(here: World) -> None:
    (here.fleet.files.directory / "pinned.json").unlink()
    here.end_controller()
    here.serve()
    settle(here)
    write(here, "never applied")
    assert served_after_a_death(here) == {"applied"}


def test_drift_is_an_event_that_names_the_files(here: World) -> None:
    told: list[Event] = []
    watch = DriftWatch(here.fleet, told.append)
    watch.look()
    assert told == []
    write(here, "changed")
    (here.models / "echo" / "2").mkdir()
    (here.models / "echo" / "2" / "model.py").write_text("new")
    watch.look()
    watch.look()
    (event,) = told
    assert (event.level, event.kind, event.subject) == ("warning", "drift", "echo")
    assert "changed: echo/1/model.py; added: echo/2/model.py;" in event.reason
    apply(here, plan())
    watch.look()
    assert [(e.level, e.kind) for e in told[1:]] == [("info", "drift")]
