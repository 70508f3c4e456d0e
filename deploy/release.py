"""Make a release's files in a new folder: `python -m deploy.release FOLDER`.

The source archive and the wheel, the Helm chart, a bill of materials (CycloneDX) of what the wheel installs,
and SHA256SUMS. Equal commits give equal files, whose times are SOURCE_DATE_EPOCH or that of the last commit.
With TRISECT_RELEASE set the wheel is built apart and has the batch library for both architectures.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_kit.build import packages

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "kubernetes"
EXTRAS = ("kubernetes", "otel", "stores", "top")
"""Of users: the others are for work on the project, and `rl` brings a torch of the user's own choice."""


def release(folder: Path, epoch: int) -> None:
    """Make all files; raise CalledProcessError where a build fails or an index would refuse it."""
    folder.mkdir(parents=True)
    apart = [] if os.environ.get("TRISECT_RELEASE") else ["--no-isolation"]
    variables = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    build = [*(sys.executable, "-m", "build", *apart), "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, env=variables, check=True)
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(folder.iterdir()))]
    subprocess.run(check, check=True)
    additions(folder, epoch)


def additions(folder: Path, epoch: int) -> None:
    """Add the chart, the bill of materials and the checksums of all."""
    version = metadata.version("trisect")
    (folder / f"trisect-chart-{version}.tgz").write_bytes(chart(epoch))
    bill = json.dumps(materials(epoch), indent=1)
    (folder / f"trisect-{version}.cdx.json").write_text(bill + "\n")
    lines = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines))


def chart(epoch: int) -> bytes:
    """Return the chart's archive as `helm package` lays it out, which would write the present time."""
    ignored = (CHART / ".helmignore").read_text().split()
    files = [f for f in sorted(CHART.rglob("*")) if f.is_file() and f.name not in ignored]
    content = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=content, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for file in files:
            member = tarfile.TarInfo(f"trisect/{file.relative_to(CHART)}")
            member.size, member.mtime = file.stat().st_size, epoch
            archive.addfile(member, io.BytesIO(file.read_bytes()))
    return content.getvalue()


def materials(epoch: int) -> dict[str, Any]:
    """Return the bill of the installed versions, which `constraints.txt` pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"]
    required = packages(lines)
    found = packages([*lines, *(line for name in EXTRAS for line in project["optional-dependencies"][name])])
    parts = [
        _component(name, "library") | {"scope": "required" if name in required else "optional"}
        for name in sorted(found)
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(),
            "component": _component("trisect", "application"),
        },
        "components": parts,
    }


def _component(name: str, kind: str) -> dict[str, Any]:
    told = metadata.metadata(name)
    url = f"pkg:pypi/{name}@{told['Version']}"
    part: dict[str, Any] = {"type": kind, "name": name, "version": told["Version"]}
    part |= {"bom-ref": url, "purl": url}
    licence = told.json.get("license_expression")
    return part | ({"licenses": [{"expression": licence}]} if licence else {})


def _epoch() -> int:
    line = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or subprocess.run(line, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    release(Path(sys.argv[1]), _epoch())
