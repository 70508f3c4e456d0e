"""Images for containerd, written without an engine: a root file system as an archive of `docker save`."""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import triton_image
from triton_image import INSIDE, LIBRARIES, Image, needed

from launchers.triton.program import find_home

PAUSE = "docker.io/trisect/pause:1"
TRITON = f"docker.io/{triton_image.TAG}"


def pause(folder: Path) -> Path:
    """The image of a pod's sandbox, which only waits; made once in `folder`."""
    out = folder / "pause.tar"
    if not out.exists():
        root, sleep = folder / "pause-root.tar", Path(shutil.which("sleep") or "/bin/sleep")
        with tarfile.open(root, "w") as tar:
            image = Image(tar)
            for place in ("usr/bin", str(LIBRARIES), "usr/lib64"):
                image.folder(place)
            for short in ("lib", "lib64"):
                image.link(short, f"usr/{short}")
            image.file(sleep, Path("/usr/bin/sleep"), 0o755)
            for name, path in needed([sleep], LIBRARIES / "none").items():
                image.file(path, LIBRARIES / name, 0o755)
            image.file(Path("/lib64/ld-linux-x86-64.so.2"), Path("/usr/lib64/ld-linux-x86-64.so.2"), 0o755)
        archive(root, out, PAUSE, command=("/usr/bin/sleep", "infinity"))
    return out


def triton(folder: Path) -> Path:
    """The Triton of the container tests; made once in `folder`."""
    out = folder / "triton.tar"
    if not out.exists():
        root = folder / "triton-root.tar"
        triton_image.write(find_home(), root)
        environment = {
            "PATH": f"/usr/local/bin:/usr/bin:{INSIDE}/bin",
            "LD_LIBRARY_PATH": f"{INSIDE}/lib",
        }
        archive(root, out, TRITON, environment=environment, working_directory=str(INSIDE))
        root.unlink()
    return out


def archive(
    root: Path,
    out: Path,
    tag: str,
    *,
    command: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    working_directory: str = "/",
) -> None:
    """Write an image of one layer."""
    with root.open("rb") as layer:
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
    settings = {
        "Cmd": list(command),
        "Env": [f"{name}={value}" for name, value in (environment or {}).items()],
        "WorkingDir": working_directory,
    }
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(out, "w") as tar:
        tar.add(root, "layer.tar")
        for name, content in (("config.json", described), ("manifest.json", manifest)):
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
