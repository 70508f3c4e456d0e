"""What is built from this repository works without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SPEC = """\
schema_version: 1
gpus: [{type: v100}]
workloads:
  - {name: A, model: alexnet, slo_ms: 15, rate_rps: 500}
  - {name: R, model: resnet50, slo_ms: 40, rate_rps: 400}
  - {name: V, model: vgg19, slo_ms: 60, rate_rps: 200}
"""


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_of_the_source_archive_passes_the_index_check_and_plans_on_its_own(tmp_path: Path) -> None:
    # Without options the wheel is made from the archive, so the archive is whole.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT), cwd=tmp_path)
    (wheel,) = tmp_path.glob("trisect-*.whl")
    (archived,) = tmp_path.glob("trisect-*.tar.gz")
    checked = run(
        *(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archived)), cwd=tmp_path
    )
    assert checked.count("PASSED") == 2
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
        scripts = next(n for n in archive.namelist() if n.endswith("entry_points.txt"))
        assert "ctl = controlplane.cli.main:main" in archive.read(scripts).decode()
    (tmp_path / "spec.yaml").write_text(SPEC)
    ctl = (sys.executable, "-c", "from controlplane.cli.main import main; main()")
    plan = json.loads(
        run(
            *ctl,
            "plan",
            "spec.yaml",
            "--strategy",
            "igniter",
            "--json",
            cwd=tmp_path,
            PYTHONPATH=str(installed),
        )
    )
    shares = {p["id"]: p["percent"] for g in plan["gpus"] for p in g["partitions"]}
    assert shares == {"A": 10, "R": 30, "V": 37.5}, "Table 1 of the paper"
    where = run(
        sys.executable,
        "-c",
        "import controlplane, trisect; print(controlplane.__file__, *trisect.__all__)",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert where.startswith(str(installed))
