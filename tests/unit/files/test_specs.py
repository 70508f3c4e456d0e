from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.files.specs import read_spec

pytestmark = pytest.mark.unit

SPEC = """schema_version: 1
gpus: [{type: v100}]
workloads:
  - {name: a, model: ssd, slo_ms: 60, rate_rps: 50}
  - {name: b, model: ssd, slo_ms: 60, rate_rps: 50, isolated: yes}
"""


def test_a_workload_may_ask_for_a_queue_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("yes", "true"))
    assert [w.isolated for w in read_spec(path)[0].workloads] == [False, True]


def test_isolated_is_true_or_false(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("yes", "'no'"))
    with pytest.raises(InputError, match=r"true or false|boolean") as told:
        read_spec(path)
    assert told.value.field == "workloads[1].isolated"
    assert told.value.line == 5
