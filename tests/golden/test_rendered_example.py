"""The committed example of what `ctl render` writes, held to the letter."""

from pathlib import Path

import yaml

from controlplane.files.plans import fleet_manifest, read_plan
from controlplane.render.repository import render_partition

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "triton_configs" / "example"


def test_the_example_is_what_render_writes() -> None:
    plan, _ = read_plan(EXAMPLE / "plan.json")
    rendered = {
        f"{partition.id}/{path}": text
        for gpu, partition in plan.partitions()
        for path, text in render_partition(
            partition, gpu_type=gpu.type, repository=ROOT / "model_repository"
        ).entries.items()
        if isinstance(text, str)
    }
    committed = {
        path.relative_to(EXAMPLE).as_posix(): path.read_text() for path in EXAMPLE.rglob("config.pbtxt")
    }
    assert rendered == committed


def test_the_example_of_a_fleet_object_is_what_render_prints() -> None:
    plan, _ = read_plan(EXAMPLE / "plan.json")
    committed = yaml.safe_load((ROOT / "examples" / "kubernetes" / "fleet.yaml").read_text())
    assert committed == fleet_manifest("default", plan, allow_violations=False)
