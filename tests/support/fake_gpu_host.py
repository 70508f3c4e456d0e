"""The GPU kit as a program, and an environment with a GPU for it: FAKES of the driver and of MPS."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fake_mps import PROGRAMS

from gpu_kit.report import JSON, Report, read

ROOT = Path(__file__).parents[2]


def fake_libcuda(folder: Path) -> Path:
    """Compile the fake libcuda into the folder."""
    compiler, library = shutil.which("cc"), folder / "libcuda.so.1"
    assert compiler is not None, "there is no C compiler (cc), which builds the fake libcuda"
    source = PROGRAMS / "libcuda.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return library


def environment(folder: Path) -> dict[str, str]:
    """Return the environment, whose daemons and files lie in the folder."""
    fake_libcuda(folder)
    (folder / "gpu" / "plain").mkdir(parents=True)
    given = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    paths = [str(PROGRAMS / "python"), str(PROGRAMS.parent)]
    return {
        **given,
        "FAKE_GPU": str(folder / "gpu"),
        "LD_LIBRARY_PATH": str(folder),
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(paths),
        "TMPDIR": str(folder),
    }


def without_cgroups() -> list[str]:
    """Return the start of a command line without cgroups, which no user but root may write."""
    return ["unshare", "--mount", "sh", "-c", 'umount -R /sys/fs/cgroup && exec "$@"', "sh"]


def kit(environment: Mapping[str, str], out: Path, *arguments: str, within: Sequence[str] = ()) -> Report:
    """Run the kit; it may fail, which its report says. `within` starts its command line."""
    command = [*within, sys.executable, "-m", "gpu_kit.run", "--out", str(out), *arguments]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert (out / JSON).exists(), said.stderr
    return read(out / JSON)
