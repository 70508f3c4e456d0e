"""Planning works without what running a fleet needs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from controlplane.cli.endings import extra_of

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
SPEC = """schema_version: 1
gpus: [{type: v100}]
workloads: [{name: search, model: resnet50, slo_ms: 40, rate_rps: 100}]
"""
MODULES = {
    "grpcio": "grpc",
    "nvidia-ml-py": "pynvml",
    "protobuf": "google",
    "prometheus-client": "prometheus_client",
}
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from controlplane.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def of_serve() -> list[str]:
    """The modules of the extra `serve`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = [re.split(r"[\[<>=]", line, maxsplit=1)[0] for line in extras["serve"]]
    return [MODULES.get(name, name) for name in names]


def ctl(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT.format(missing=set(of_serve())), *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=120)


def test_a_plan_is_made_and_simulated_without_the_extra_serve(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    planned = ctl(tmp_path, "plan", "spec.yaml", "--strategy", "igniter", "-o", "plan.json")
    assert planned.returncode == 0, planned.stderr
    simulated = ctl(tmp_path, "simulate", "plan.json", "--seconds", "2")
    assert simulated.returncode == 0, simulated.stderr


def test_a_verb_that_runs_a_fleet_names_the_extra_that_is_missing(tmp_path: Path) -> None:
    ended = ctl(tmp_path, "apply", "plan.json", "--json")
    assert ended.returncode == 4
    assert re.search(r"needs the package '\w+': pip install 'trisect\[serve\]'", ended.stderr)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("grpc.aio", "serve"),
        ("lightkube.core", "kubernetes"),
        ("matplotlib", "plot"),
        ("opentelemetry.exporter", "otel"),
        ("obstore.store", "stores"),
        ("numpy", None),
    ],
)
def test_the_smallest_extra_with_a_module_is_named(module: str, extra: str | None) -> None:
    assert extra_of(module) == extra
