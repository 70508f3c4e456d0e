"""The batch library against a model of Triton's batcher, with what its files may hold."""

import importlib.util
import os
import platform
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
HARNESS = [ROOT / "tests" / "support" / "batch_harness.c", ROOT / "plugin" / "batch_limit.c"]
STRICT = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("harness") / "harness"
    sanitizers = "-fsanitize=address,undefined"
    subprocess.run(["cc", *STRICT, "-pthread", sanitizers, "-o", str(built), *map(str, HARNESS)], check=True)
    return built


@pytest.mark.parametrize("seed", [1, 2])
def test_no_batch_is_above_the_limit_that_held_whatever_the_files_hold(
    harness: Path, seed: int, tmp_path: Path
) -> None:
    (tmp_path / "seen").mkdir()
    line = [str(harness), str(tmp_path), str(seed), str(500_000)]
    kept = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # a state outlives its model
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env=kept)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return module_of(ROOT / "plugin" / "build.py")


@pytest.mark.parametrize("installed", [True, False])
def test_a_compiler_that_fails_costs_the_library_and_no_installation(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    fake = tmp_path / "cc"
    if installed:
        fake.write_text("#!/bin/sh\nexit 1\n")
        fake.chmod(0o755)
    monkeypatch.setattr(build, "compilers", lambda: {"x86_64": [str(fake)]})
    monkeypatch.delenv(build.RELEASE, raising=False)
    assert build.build(tmp_path) == []
    monkeypatch.setenv(build.RELEASE, "1")
    with pytest.raises((subprocess.CalledProcessError, OSError)):
        build.build(tmp_path)


def test_a_release_has_no_warning_and_loads_in_older_images(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.RELEASE, "1")
    (library,) = (file.read_bytes() for file in build.build(tmp_path) if platform.machine() in file.name)
    needs = max((int(a), int(b)) for a, b in re.findall(rb"GLIBC_([0-9]+)[.]([0-9]+)", library))
    assert needs <= (2, 34), "it would not load in images that are older than this host"


def module_of(path: Path) -> ModuleType:
    """The build's program, which is in no package."""
    spec = importlib.util.spec_from_file_location("plugin_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
