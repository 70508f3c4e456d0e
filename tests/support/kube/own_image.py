"""The project's own image, built from `deploy/Dockerfile` as a user builds it, without a registry.

A private Docker engine builds it; its base is a Debian that debootstrap makes from the host's mirror.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import former_version
from private_engine import PrivateEngine, private_engine

from kube.processes import program

ROOT = Path(__file__).parents[3]
TAG = "trisect:0.1.0"
FORMER = "trisect:former"
"""The earlier version's code on the packages of this one, which an upgrade begins with."""
_BASE = "debian:bookworm-slim"
_PACKAGES = "/opt/trisect/lib/python3.11/site-packages"
_REPLACED = f"""
FROM {TAG}
USER 0:0
RUN cd {_PACKAGES} && rm -r {" ".join(former_version.PACKAGES)}
COPY . {_PACKAGES}
USER 1000:1000
"""


def build(folder: Path) -> Path:
    """An archive of the image, as `docker save` writes it, with `FORMER` where this clone has its history."""
    out = folder / "trisect.tar"
    with ThreadPoolExecutor() as pool:
        for made in (pool.submit(_wheels, folder / "context"), pool.submit(_debian, folder / "debian")):
            made.result()
    with private_engine() as engine:
        with subprocess.Popen(
            ["tar", "-C", str(folder / "debian"), "-c", "."], stdout=subprocess.PIPE
        ) as tar:
            _docker(engine, "import", "-", _BASE, stdin=tar)
        dockerfile = ROOT / "deploy" / "Dockerfile"
        # The engine has no network of its own; only apt-get in the build needs the host's.
        host = ("--network=host",)
        _docker(engine, "build", *host, f"--file={dockerfile}", f"--tag={TAG}", str(folder / "context"))
        said = _docker(engine, "run", "--rm", "--network=none", TAG, "--version")
        assert said.startswith("ctl "), said
        former = former_version.unpack(folder / "former", *former_version.PACKAGES)
        if former is not None:
            (former / "Dockerfile").write_text(_REPLACED)
            _docker(engine, "build", f"--tag={FORMER}", str(former))
        _docker(engine, "save", f"--output={out}", TAG, *(() if former is None else (FORMER,)))
    return out


def _wheels(context: Path) -> None:
    """Wheels of the project and all that it needs, at the pinned versions."""
    wheels = context / "wheels"
    wheels.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "wheel", "-qq", "--disable-pip-version-check"]
    pinned = ["--constraint", str(ROOT / "constraints.txt"), "--wheel-dir", str(wheels)]
    subprocess.run([*pip, *pinned, f"{ROOT}[kubernetes]"], check=True)


def _debian(root: Path) -> None:
    """A minimal Debian, as the image `debian:bookworm-slim` is one."""
    sources = "".join(
        p.read_text() for p in Path("/etc/apt").glob("**/*.*") if p.suffix in (".list", ".sources")
    )
    mirror = re.search(r"^(?:URIs:|deb(?: \[.*\])?) (\S+/debian)/?\b", sources, re.MULTILINE)
    assert mirror, "no mirror of Debian in /etc/apt"
    done = subprocess.run(
        [program("debootstrap"), "--variant=minbase", "bookworm", str(root), mirror[1]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def _docker(engine: PrivateEngine, *arguments: str, stdin: subprocess.Popen[bytes] | None = None) -> str:
    done = subprocess.run(
        [program("docker"), "--host", engine.address, *arguments],
        stdin=None if stdin is None else stdin.stdout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout[-3000:]}"
    return done.stdout
