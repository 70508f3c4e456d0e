from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.runtime.demo.demo import read_demo_spec

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[4]


def test_the_demos_own_spec_is_read():
    spec, _ = read_demo_spec(ROOT / "model_repository" / "demo.yaml")
    assert len(spec.workloads) == 3


def test_a_client_batch_is_refused_with_its_line(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "schema_version: 1\n"
        "gpus: [{type: cpu, count: 1}]\n"
        "workloads:\n"
        "  - {name: w, model: m, slo_ms: 100, rate_rps: 10, client_batch: 4}\n"
    )
    with pytest.raises(InputError, match="requests of one inference") as refused:
        read_demo_spec(spec)
    assert (refused.value.line, refused.value.field) == (4, "workloads[0].client_batch")
