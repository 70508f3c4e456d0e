from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import EngineError
from controlplane.gateway import processes
from controlplane.gateway.places import Places
from controlplane.gateway.supervise import Charge, Supervisor, back_off_s

pytestmark = pytest.mark.unit


def test_a_first_death_costs_no_wait_and_repeated_ones_ever_more() -> None:
    assert [back_off_s(deaths) for deaths in range(1, 6)] == [0.0, 0.05, 0.1, 0.2, 0.4]
    assert back_off_s(10**6) == 5.0


def test_what_a_full_disk_does_not_let_start_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise EngineError("haproxy.cfg cannot be written: No space left on device")

    charge = Charge(processes.HAPROXY, refused)  # type: ignore[arg-type]
    supervisor = Supervisor(Places.of(tmp_path), None)
    supervisor._start(charge)
    supervisor._start(charge)
    assert (charge.handle, charge.deaths) == (None, 2)
    assert charge.due_at > charge.started_at
    assert "No space left" in capsys.readouterr().out
