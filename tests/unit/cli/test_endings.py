"""What an extra brings is needed by what needs it alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from build import SPEC

from controlplane.cli.endings import extra_of
from controlplane.cli.verbs import VERBS

EXTRAS = {"httpx2", "lightkube", "msgspec", "obstore", "opentelemetry", "textual", "torch"}
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from controlplane.cli.main import run
"""


def without_extras(code: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code that has `run`, where no extra is installed."""
    command = [sys.executable, "-c", WITHOUT.format(missing=EXTRAS) + code, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=120)


def ctl(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return without_extras("sys.exit(run(sys.argv[1:]))", directory, *arguments)


def test_help_needs_no_extra(tmp_path: Path) -> None:
    shown = without_extras("sys.exit(max(run([v, '-h']) for v in sys.argv[1:]))", tmp_path, *VERBS)
    assert shown.returncode == 0, shown.stderr


def test_a_plan_is_made_and_simulated_without_any_extra_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    planned = ctl(tmp_path, "plan", "spec.yaml", "--strategy", "igniter", "-o", "plan.json")
    assert planned.returncode == 0, planned.stderr
    trained = ctl(tmp_path, "train", "spec.yaml", "-o", "policy.npz", "--json")
    assert trained.returncode == 4
    assert "pip install 'trisect[rl]'" in trained.stderr
    assert "Traceback" not in trained.stderr
    simulated = ctl(tmp_path, "simulate", "plan.json", "--seconds", "2")
    assert simulated.returncode == 0, simulated.stderr


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("lightkube.core", "kubernetes"),
        ("opentelemetry.exporter", "otel"),
        ("obstore.store", "stores"),
        ("numpy", None),
    ],
)
def test_the_extra_with_a_module_is_named(module: str, extra: str | None) -> None:
    assert extra_of(module) == extra
