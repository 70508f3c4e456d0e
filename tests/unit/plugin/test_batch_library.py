"""The batch library against a model of Triton's batcher, with what its files may hold."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HARNESS = [ROOT / "tests" / "support" / "batch_harness.c", ROOT / "plugin" / "batch_limit.c"]
STRICT = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("harness") / "harness"
    sanitizers = "-fsanitize=address,undefined"
    subprocess.run(["cc", *STRICT, sanitizers, "-o", str(built), *map(str, HARNESS)], check=True)
    return built


@pytest.mark.parametrize("seed", [1, 2])
def test_no_batch_is_above_the_limit_that_held_whatever_the_files_hold(
    harness: Path, seed: int, tmp_path: Path
) -> None:
    (tmp_path / "seen").mkdir()
    line = [str(harness), str(tmp_path), str(seed), str(500_000)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
