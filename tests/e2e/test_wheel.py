"""What is built from this repository works without it."""

import json
import os
import subprocess
import sys
from importlib.metadata import PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ArchivePath
from zipfile import ZipFile

import tutorial

from gpu_kit.build import packages

ROOT = Path(__file__).parents[2]
SPEC = """\
schema_version: 1
gpus: [{type: v100}]
workloads:
  - {name: A, model: alexnet, slo_ms: 15, rate_rps: 500}
  - {name: R, model: resnet50, slo_ms: 40, rate_rps: 400}
  - {name: V, model: vgg19, slo_ms: 60, rate_rps: 200}
"""


def run(command: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def released(folder: Path) -> Path:
    """The files of a release. The wheel is made from the source archive, so the archive is whole."""
    variables = {name: value for name, value in os.environ.items() if name != "TRISECT_RELEASE"}
    run(f"{sys.executable} -m deploy.release {folder / 'dist'}", ROOT, variables)
    return folder / "dist"


def clean_environment(folder: Path, wheel: Path) -> dict[str, str]:
    """Make an environment for a wheel, whose dependencies are linked from this one; return its variables.

    pip takes packages from no index: an undeclared one is absent.
    """
    with ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        declared = PathDistribution(ArchivePath(archive, metadata.removesuffix("METADATA"))).requires or []
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Several packages may share a folder, as namespace packages do.
    entries = {
        str(distribution(name).locate_file(file.parts[0])): file.parts[0]
        for name in packages(declared)
        for file in distribution(name).files or ()
    }
    for path, entry in entries.items():
        if entry not in ("..", "__pycache__"):
            (site / entry).symlink_to(path)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PIP_NO_INDEX": "1"}


def test_the_tutorials_installation_of_a_release_plans_on_its_own(tmp_path: Path) -> None:
    dist = released(tmp_path)
    (wheel,) = dist.glob("trisect-*.whl")
    assert any("plugin/batch_limit." in name for name in ZipFile(wheel).namelist())
    environment = clean_environment(tmp_path / "environment", wheel)
    assert tutorial.INSTALL in (block.command for block in tutorial.blocks())
    run(tutorial.INSTALL, tmp_path, environment)
    (tmp_path / "spec.yaml").write_text(SPEC)
    plan = json.loads(run("ctl plan spec.yaml --strategy igniter --json", tmp_path, environment))
    shares = {p["id"]: p["percent"] for g in plan["gpus"] for p in g["partitions"]}
    assert shares == {"A": 10, "R": 30, "V": 37.5}, "Table 1 of the paper"
    imported = "import controlplane, trisect; print(controlplane.__file__, *trisect.__all__)"
    assert run(f"python -c '{imported}'", tmp_path, environment).startswith(str(tmp_path / "environment"))
    sums = (dist / "SHA256SUMS").read_text()
    assert {line.split()[1] for line in sums.splitlines()} == {f.name for f in dist.iterdir()} - {
        "SHA256SUMS"
    }
    assert (released(tmp_path / "again") / "SHA256SUMS").read_text() == sums
