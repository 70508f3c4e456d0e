"""Packages of other distributions that have the names of Trisect's."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = "import sys; sys.argv = ['ctl', '--version']; import trisect_ctl; trisect_ctl.main()"


def started(*paths: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": ":".join(map(str, (*paths, ROOT)))}
    command = [sys.executable, "-c", START]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)


def test_our_own_packages_pass() -> None:
    ended = started()
    assert (ended.returncode, ended.stdout.partition(" ")[0]) == (0, "ctl"), ended.stderr


@pytest.mark.parametrize("name", ["controlplane", "launchers"])
@pytest.mark.parametrize("content", ['"""Aeroplanes."""\n', ""])
def test_a_namesake_is_named_with_its_file_before_anything_of_it_runs(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    file = tmp_path / name / "__init__.py"
    file.write_text(f"{content}raise SystemExit(77)\n")
    ended = started(tmp_path)
    assert ended.returncode == 4
    assert str(file) in ended.stderr
