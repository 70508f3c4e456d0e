"""Makes a Triton image from this host, without a registry: `triton_image.py ENGINE [TAG]`.

The server lies where NVIDIA's images have it (/opt/tritonserver), so the command line is the same. Inside are
the libraries that the programs load, bash (the Python backend starts its models with it), rm, and this
interpreter with numpy and onnxruntime. Not the vendor's image: no GPU libraries, no other backends.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import private_engine
import pytest
from private_engine import PrivateEngine

from launchers.triton.program import TritonHome, find_home

TAG = "trisect/tritonserver-test:2.51"
INSIDE = Path("/opt/tritonserver")
PACKAGES = ("numpy", "onnxruntime", "flatbuffers", "packaging", "protobuf")
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "dist-packages"}
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


@contextlib.contextmanager
def empty_engine() -> Iterator[PrivateEngine]:
    """A private engine without images; skipped, and said so, where none can run."""
    why_not = private_engine.obstacle()
    if why_not is not None:
        pytest.skip(f"DOCKER TESTS NOT RUN: {why_not}")
    try:
        with private_engine.private_engine() as made:
            yield made
    except private_engine.CannotRun as error:
        pytest.skip(f"DOCKER TESTS NOT RUN: {error}")


@contextlib.contextmanager
def docker_engine() -> Iterator[tuple[PrivateEngine, str]]:
    """A private engine and the image in it."""
    with pytest.MonkeyPatch.context() as patch, empty_engine() as made:
        patch.setenv("TRISECT_TRITON_HOME", str(Path(__file__).parents[2] / ".tools" / "triton"))
        yield made, build(made.address)


def needed(programs: list[Path], library_path: Path) -> dict[str, Path]:
    """Name -> file of every library of the host that these programs load."""
    found: dict[str, Path] = {}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library_path)}
    listed = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, env=environment, check=False
    ).stdout
    for name, path in re.findall(r"^\s+(\S+) => (/\S+)", listed, re.MULTILINE):
        if not Path(path).resolve().is_relative_to(library_path.resolve()):
            found[name] = Path(path)
    return found


def package_paths(name: str) -> Iterator[tuple[Path, Path]]:
    """(file, place below site-packages) of an installed package, with the byte code beside it."""
    distribution = importlib.metadata.distribution(name)
    for entry in distribution.files or []:
        file = Path(str(distribution.locate_file(entry)))
        if ".." not in entry.parts and file.is_file() and not LEFT_OUT.intersection(entry.parts):
            yield file, Path(*entry.parts)


class Image:
    """A root file system as a tar."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.tar = tar
        self._places: set[str] = set()

    def _new(self, place: str) -> bool:
        """Whether nothing was put there yet: the engine refuses a path that comes twice."""
        known = place in self._places
        self._places.add(place)
        return not known

    def file(self, source: Path, place: Path, mode: int | None = None) -> None:
        if not self._new(str(place).lstrip("/")):
            return
        info = tarfile.TarInfo(str(place).lstrip("/"))
        info.mode = mode if mode is not None else 0o755 if os.access(source, os.X_OK) else 0o644
        with source.open("rb") as opened:
            # Of the very file that is read: byte code is written anew by whoever runs beside this.
            told = os.fstat(opened.fileno())
            info.size, info.mtime = told.st_size, told.st_mtime
            self.tar.addfile(info, opened)

    def folder(self, place: str, mode: int = 0o755) -> None:
        info = tarfile.TarInfo(place.lstrip("/"))
        info.type, info.mode = tarfile.DIRTYPE, mode
        if self._new(info.name):
            self.tar.addfile(info)

    def link(self, place: str, target: str) -> None:
        info = tarfile.TarInfo(place.lstrip("/"))
        info.type, info.linkname = tarfile.SYMTYPE, target
        self.tar.addfile(info)

    def text(self, place: str, text: str) -> None:
        info = tarfile.TarInfo(place.lstrip("/"))
        info.size, info.mode = len(text), 0o644
        self.tar.addfile(info, io.BytesIO(text.encode()))

    def tree(self, source: Path, place: Path) -> list[Path]:
        """A folder with all its files, links followed; what went in."""
        went: list[Path] = []
        for folder, names, files in os.walk(source, followlinks=True):
            names[:] = [n for n in names if n not in LEFT_OUT]
            for name in files:
                file = Path(folder) / name
                if file.parent.name == "__pycache__" and file.suffix != ".pyc":
                    continue  # byte code that is being written: it is about to get another name
                if file.is_file():
                    self.file(file, place / file.relative_to(source))
                    went.append(file)
        return went


def write(home: TritonHome, out: Path) -> None:
    """The image of this Triton and this Python as a tar."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = Path(sys.executable).resolve()
    shell = Path(shutil.which("bash") or "/bin/bash")
    rm = Path(shutil.which("rm") or "/bin/rm")
    with tarfile.open(out, "w") as tar:
        image = Image(tar)
        image.folder("tmp", 0o1777)
        image.folder("usr/bin")
        image.folder(str(LIBRARIES))
        for short in ("bin", "lib", "lib64"):
            image.folder(f"usr/{short}")
            image.link(short, f"usr/{short}")
        image.text("etc/passwd", "root:x:0:0::/:/bin/bash\ntriton:x:1000:1000::/tmp:/bin/bash\n")
        went = image.tree(home.path / "bin", INSIDE / "bin") + image.tree(home.backends, INSIDE / "backends")
        image.tree(home.libraries, INSIDE / "lib")
        standard = Path(sysconfig.get_paths()["stdlib"])
        went += image.tree(standard, Path("/usr/local/lib") / version)
        # Debian's Python looks in a folder of another name.
        image.link(f"usr/local/lib/{version}/dist-packages", "site-packages")
        for package in PACKAGES:
            for file, place in package_paths(package):
                image.file(file, Path("/usr/local/lib") / version / "site-packages" / place)
                went.append(file)
        for program, names in ((python, ("python3", version)), (shell, ("bash", "sh")), (rm, ("rm",))):
            went.append(program)
            for name in names:
                image.file(program, Path("/usr/local/bin" if "python" in name else "/usr/bin") / name, 0o755)
        loaded = [
            f for f in went if f in (python, shell, rm) or ".so" in f.name or f.parent == home.path / "bin"
        ]
        loaded.append(home.backends / "python" / "triton_python_backend_stub")
        for name, path in needed(loaded, home.libraries).items():
            image.file(path, LIBRARIES / name, 0o755)
        image.file(Path("/lib64/ld-linux-x86-64.so.2"), Path("/usr/lib64/ld-linux-x86-64.so.2"), 0o755)


def build(engine: str, tag: str = TAG) -> str:
    """The image in this engine; its tag."""
    client = docker.DockerClient(base_url=engine, timeout=120)
    try:
        with tempfile.TemporaryDirectory() as folder:
            tar = Path(folder) / "image.tar"
            write(find_home(), tar)
            changes = [
                f"ENV PATH=/usr/local/bin:/usr/bin:{INSIDE}/bin",
                f"ENV LD_LIBRARY_PATH={INSIDE}/lib",
                f"WORKDIR {INSIDE}",
            ]
            repository, _, version = tag.partition(":")
            with tar.open("rb") as data:
                client.api.import_image_from_data(data, repository=repository, tag=version, changes=changes)
    finally:
        client.close()
    return tag


if __name__ == "__main__":
    print(build(*sys.argv[1:3]))
