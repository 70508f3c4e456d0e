"""What becomes of a command whose stdout takes nothing, and of its output files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.cli.main import run
from controlplane.files.plans import read_plan

SPEC = """schema_version: 1
gpus: [{type: v100}]
workloads: [{name: W, model: vgg19, slo_ms: 90, rate_rps: 9}]
"""


@pytest.fixture(autouse=True)
def directory(directory: Path) -> Path:
    (directory / "spec.yaml").write_text(SPEC)
    return directory


@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [(">/dev/full", 4, "stdout"), (">&-", 0, ""), (">/dev/null 2>&-", 0, "")],
)
def test_a_stdout_that_takes_nothing_is_no_defect(redirection: str, code: int, says: str) -> None:
    command = f"exec {sys.executable} -m controlplane.cli.main plan spec.yaml -q -o plan.json {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert read_plan(Path("plan.json"))[0].verified, "written before anything is shown"


def test_a_table_reaches_a_stream_without_its_characters() -> None:
    command = [sys.executable, "-m", "controlplane.cli.main", "plan", "spec.yaml"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert "\\u2264 SLO" in subprocess.check_output(command, env=ascii_only, text=True, timeout=60)


def test_an_output_replaces_files_and_not_pipes_or_links(directory: Path) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    for place in ("pipe", "/dev/null"):
        assert run(["plan", "spec.yaml", "-o", place, "-q"]) == 0
        assert Path(place).exists()
        assert not Path(place).is_file()
    assert b'"schema_version"' in os.read(reader, 2**16)
    os.close(reader)
    (directory / "plan.json").write_text("{}")
    (directory / "link").symlink_to("plan.json")
    assert run(["plan", "spec.yaml", "-o", "link", "-q"]) == 0
    assert (directory / "link").is_symlink()
    assert read_plan(directory / "plan.json")[0].verified
