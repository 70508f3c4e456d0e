"""Whatever becomes of the user's repository, a fleet's servers start from what was applied."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build
import pytest
from fake_host import Program
from fleet_world import World, world

from controlplane.domain.errors import EngineError
from controlplane.domain.observation import Event
from controlplane.domain.plan import Plan, Shadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.files import pinned
from controlplane.files.pinned import content
from controlplane.files.plans import plan_hash
from controlplane.runtime.controller.drift import DriftWatch
from controlplane.runtime.fleet.fleet import redirect
from controlplane.runtime.fleet.preflight import ApplyRequest


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


def apply(here: World, wanted: Plan) -> Any:
    with here.host.running_as(Program()):
        return here.apply_last(wanted)


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


def test_no_standby_starts_what_nobody_applied(here: World) -> None:
    write(here, "never applied")
    for _ in range(3):
        here.host.kill(active(here))
        settle(here)
        assert served(here) == {"applied"}
    # A controller that begins now reads what was applied, too.
    here.end_controller()
    here.serve()
    here.host.kill(active(here))
    settle(here)
    assert served(here) == {"applied"}
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
    with here.host.running_as(Program()):
        here.fleet.apply(ApplyRequest(plan(30.0), here.settings, made_from=plan_hash(plan())))
    assert served(here) == {"applied"}


@pytest.mark.parametrize("percent", [20.0, 30.0])
def test_a_rollback_brings_the_models_back_with_the_plan(here: World, percent: float) -> None:
    write(here, "second")
    apply(here, plan(percent))
    write(here, "never applied")
    with here.host.running_as(Program()):
        here.fleet.apply(here.fleet.previous())
    assert served(here) == {"applied"}
    assert here.fleet.files.plan() == plan()
    with here.host.running_as(Program()):
        here.fleet.apply(here.fleet.previous())
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
    here.host.kill(active(here))
    settle(here)
    assert served(here) == {"applied"}


def test_models_that_an_earlier_version_applied_are_pinned_at_the_first_need(here: World) -> None:
    (here.fleet.files.directory / "pinned.json").unlink()
    here.end_controller()
    here.serve()
    settle(here)
    write(here, "never applied")
    here.host.kill(active(here))
    settle(here)
    assert served(here) == {"applied"}


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
