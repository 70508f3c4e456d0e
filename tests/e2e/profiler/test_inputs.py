"""`ctl profile` on models that are particular about what they take, on real Tritons."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bare_triton import ROOT
from model_files import write_sums, write_texts, write_ticks

from controlplane.files.measurements.profiles import read_profile

CTL = Path(sys.executable).with_name("ctl")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """`fussy` takes JSON objects alone, `text` everything but an empty text; in this order."""
    for name, prefix, wanted in (("fussy", b"{", "a JSON object"), ("text", b"", "some text")):
        write_texts(tmp_path / "models", name, prefix, wanted)
    return tmp_path / "models"


def profile(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    few = ["--set=percents=100", "--set=batches=1", "--budget", "5", "--launcher", "process"]
    where = ["--repository", "models", "--profiles", "profiles"]
    tools = {
        "XDG_STATE_HOME": str(directory / "state"),
        "TRISECT_TRITON_HOME": str(ROOT / ".tools" / "triton"),
    }
    return subprocess.run(
        [CTL, "profile", *few, *where, *arguments],
        cwd=directory,
        env={**os.environ, **tools},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_model_that_refuses_its_input_is_named_and_the_next_one_is_profiled(
    tmp_path: Path, repository: Path
) -> None:
    told = profile(tmp_path)
    assert told.returncode == 4
    assert "fussy: not profiled: its server refused a generated input: " in told.stderr
    assert "wants a JSON object, not b'The quick'" in told.stderr
    assert "--input-data fussy:FILE" in told.stderr
    assert "ctl: 1 of 2 models profiled; the reasons for fussy are above" in told.stderr
    assert "profiles/cpu/text.json: 1 point written" in told.stdout
    generated = read_profile(tmp_path / "profiles/cpu/text.json").inputs
    assert generated is not None
    assert (generated.file, generated.requests) == (None, 1)

    (tmp_path / "real.json").write_text(json.dumps({"data": [{"T": ["{}"]}, {"T": ['{"a": 1}']}]}))
    told = profile(tmp_path, "fussy", "--input-data", "fussy:real.json")
    assert told.returncode == 0, told.stderr
    real = read_profile(tmp_path / "profiles/cpu/fussy.json").inputs
    assert real is not None
    assert (real.file, real.requests) == ("real.json", 2)


def test_a_bad_file_starts_nothing(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "real.json").write_text('{"data": [\n  {"T": ["a"]},\n  {"T": [1]}\n]}')
    told = profile(tmp_path, "--input-data", "text:real.json")
    assert told.returncode == 2
    assert told.stderr == "ctl: real.json:3: data[1].T: element 0 must be a string, not 1; " + (
        "tensors are flat, row-major lists\n"
    )
    assert not list((tmp_path / "state" / "trisect").iterdir())


def test_decoupled_models_and_sequences_are_profiled(tmp_path: Path) -> None:
    write_ticks(tmp_path / "models")
    write_sums(tmp_path / "models")
    steps = [[{"X": [1]}, {"X": [2]}, {"X": [3]}], [{"X": [4]}]]
    (tmp_path / "steps.json").write_text(json.dumps({"data": steps}))

    told = profile(tmp_path, "--input-data", "sums:steps.json")

    assert told.returncode == 0, told.stderr
    ticks = read_profile(tmp_path / "profiles/cpu/ticks.json")
    assert ticks.answers is not None
    assert 5 <= ticks.answers.first_ms < ticks.answers.last_ms
    assert ticks.points[0].execution_ms >= 15
    assert "ticks: first answer after" in told.stdout
    sums = read_profile(tmp_path / "profiles/cpu/sums.json")
    assert sums.inputs is not None
    assert (sums.inputs.requests, sums.answers, sums.points[0].capacity_rps) == (4, None, None)
