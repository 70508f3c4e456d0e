"""Make the folders for a GPU host without a network, from what `make setup` has installed here.

    python -m gpu_kit.build FOLDER

FOLDER/probe: an archive that can be carried, with this Python and the packages that serve, watch and
redirect, Triton, HAProxy with its libraries, and the kit. FOLDER/full: also numba and scipy, which fit and
plan. In each, `./run` unpacks beside itself and runs the steps. The host needs a driver, and glibc 2.35 or
newer; its Python plays no part, but for the step with PyTorch.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from controlplane.gateway.startup import haproxy_program
from launchers.triton.program import find_home

ROOT = Path(__file__).parents[1]
MOST_MB = 60
"""Of the probe's archive."""
NOT_IN_PROBE = ("numba", "scipy", "geventhttpclient", "greenlet")
"""What fits and plans, where a plan is made beforehand, and tritonclient's HTTP, where gRPC is used."""
_OF_EVERY_HOST = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|ld-linux|linux-vdso")
_NEVER_READ = (
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "ensurepip",
    "tkinter",
    "turtledemo",
    "_tkinter*",
    "lib2to3",
    "*.a",
    "*.pyi",
)

_RUN = """#!/bin/bash
# Unpacks the kit beside itself and runs its steps; arguments are passed on (--help).
set -e
here=$(cd "$(dirname "$0")" && pwd)
kit=$here/kit
if [ ! -e "$kit" ]; then
  echo "run: unpacks the kit beside itself, into $kit"
  rm -rf "$kit.new" && mkdir "$kit.new"
  tar -C "$kit.new" -xJf "$here/kit.tar.xz" || python3 -m tarfile -e "$here/kit.tar.xz" "$kit.new"
  mv "$kit.new" "$kit"
fi
# For PyTorch, which only the host's own Python may have.
HOST_PYTHON=$(command -v python3 || true) HOST_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
export HOST_PYTHON HOST_LIBRARY_PATH
export PATH=$kit/python/bin:$kit/bin:$PATH LD_LIBRARY_PATH=$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export TRISECT_TRITON_HOME=$kit/triton PYTHONHOME= PYTHONPATH= PYTHONDONTWRITEBYTECODE=1
unset PYTHONHOME PYTHONPATH
if ! "$kit/python/bin/python3" -c '' 2>/dev/null; then
  echo "run: needs x86-64 Linux with glibc 2.35 or newer; here: $(uname -m), $(getconf GNU_LIBC_VERSION)" >&2
  exit 2
fi
exec "$kit/python/bin/python3" -m gpu_kit.run --scratch /tmp "$@"
"""


def build(folder: Path, left_out: tuple[str, ...]) -> Path:
    """Make one of the two folders; return its archive."""
    kit = folder / "kit"
    shutil.rmtree(folder, ignore_errors=True)
    kit.mkdir(parents=True)
    _python(kit)
    site = kit / "python" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    for name in sorted(packages(metadata.requires("trisect") or (), left_out)):
        _distribution(name, site)
    for own in ("controlplane", "launchers", "trisect", "gpu_kit"):
        _tree(ROOT / own, site / own)
    _metadata(site)
    # The one library of another Python, for its stub.
    unused = () if sysconfig.get_python_version() == "3.13" else ("libpython3-*",)
    _tree(find_home().path, kit / "triton", *unused)
    (kit / "bin").mkdir()
    shutil.copy2(haproxy_program(), kit / "bin" / "haproxy")
    _libraries(kit)
    _strip(kit)
    archive, run = folder / "kit.tar.xz", folder / "run"
    compress = [*("tar", "--sort=name", "-C", str(kit), "-I", "xz -9", "-cf", str(archive)), "."]
    subprocess.run(compress, check=True)
    shutil.rmtree(kit)
    run.write_text(_RUN)
    run.chmod(0o755)
    return archive


def _python(kit: Path) -> None:
    """Copy the interpreter of this virtual environment with its standard library."""
    version, prefix = sysconfig.get_python_version(), Path(sys.base_prefix)
    binary = kit / "python" / "bin"
    binary.mkdir(parents=True)
    shutil.copy2(Path(sys.executable).resolve(), binary / f"python{version}")
    (binary / "python3").symlink_to(f"python{version}")
    source, target = prefix / "lib" / f"python{version}", kit / "python" / "lib" / f"python{version}"
    _tree(source, target, "site-packages", "dist-packages", f"config-{version}*")


def packages(lines: Iterable[str], left_out: Collection[str] = ()) -> set[str]:
    """Return the installed distributions that these requirements need, and those in turn."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(line, frozenset[str]()) for line in lines]
    while waiting:
        line, extras = waiting.pop()
        need = Requirement(line)
        applies = need.marker is None or any(need.marker.evaluate({"extra": e}) for e in (*extras, ""))
        name, more = canonicalize_name(need.name), frozenset(need.extras)
        if applies and name not in left_out and (name, more) not in seen:
            found.add(name)
            seen.add((name, more))
            waiting += [(inner, more) for inner in metadata.requires(name) or ()]
    return found


def _distribution(name: str, site: Path) -> None:
    for file in metadata.files(name) or ():
        source = Path(str(file.locate()))
        if ".." not in file.parts and source.is_file() and not set(file.parts) & set(_NEVER_READ):
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _metadata(site: Path) -> None:
    """Name our own version, which an editable installation has elsewhere."""
    folder = site / f"trisect-{metadata.version('trisect')}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(metadata.distribution("trisect").read_text("METADATA") or "")


def _tree(source: Path, target: Path, *more: str) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(*_NEVER_READ, *more))


def _libraries(kit: Path) -> None:
    """Copy the libraries that a host may lack, of the programs and of the standard library's modules."""
    folder = kit / "lib"
    folder.mkdir()
    modules = kit / "python" / "lib" / f"python{sysconfig.get_python_version()}" / "lib-dynload"
    for program in (kit / "bin" / "haproxy", Path(sys.executable).resolve(), *modules.glob("*.so")):
        for library in _needed(program):
            if not _OF_EVERY_HOST.search(library.name):
                shutil.copy2(library, folder / library.name)


def _needed(program: Path) -> Iterator[Path]:
    told = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    yield from (Path(path) for path in re.findall(r"=> (/\S+)", told))


def _strip(kit: Path) -> None:
    """Remove what only a debugger reads, but not where a wheel has patched its libraries."""
    site = kit / "python" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    patched = {name for path in site.glob("*.libs") for name in (path.name, path.stem)}
    modules = [path for path in site.rglob("*.so") if path.relative_to(site).parts[0] not in patched]
    if (strip := shutil.which("strip")) is not None:
        own = map(str, [*(kit / "lib").iterdir(), *modules])
        subprocess.run([strip, "--strip-debug", *own], capture_output=True, check=False)


def main() -> int:
    """Make both folders; 1 where the probe is too large to carry."""
    target = Path(sys.argv[1])
    sizes = {}
    for name, left_out in (("probe", NOT_IN_PROBE), ("full", ())):
        archive = build(target / name, left_out)
        sizes[name] = archive.stat().st_size / 2**20
        print(f"{archive.parent}: {sizes[name]:.1f} MiB; there: ./run")
    return 0 if sizes["probe"] <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())
