"""A Docker engine of the tests' own: its containers, images and sockets are nobody else's."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


def obstacle() -> str | None:
    """Why no engine can be started here; None where one can."""
    if os.geteuid() != 0:
        return "a private Docker engine needs root"
    if shutil.which("dockerd") is None:
        return "dockerd is not installed (apt-get install docker.io)"
    return None


class CannotRun(Exception):
    """dockerd is there and does not stay, as in a container that may not mount; with its own words."""


class PrivateEngine:
    """One dockerd and all it makes below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/d.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "dockerd",
                    "--iptables=false",
                    "--bridge=none",
                    "--shutdown-timeout=2",
                    f"--data-root={self.folder}/data",
                    f"--exec-root={self.folder}/exec",
                    f"--pidfile={self.folder}/pid",
                    f"--host={self.address}",
                    *options,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while not self._answers():
            said = (self.folder / "log").read_text(errors="replace")[-2000:]
            if self._process.poll() is not None:
                raise CannotRun(f"dockerd ended: {said}")
            assert time.monotonic() < deadline, said
            time.sleep(0.02)

    def _answers(self) -> bool:
        """One that has only made its socket takes no connection yet."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5.0)
            client.connect(f"{self.folder}/d.sock")
            client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return client.recv(64).split()[1:2] == [b"200"]
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
        (self.folder / "d.sock").unlink(missing_ok=True)

    def freeze(self) -> None:
        """It listens, and answers nothing any more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """At once; its containerd dies with it. Containers of an engine with --live-restore live on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
        (self.folder / "d.sock").unlink(missing_ok=True)


@contextlib.contextmanager
def private_engine() -> Iterator[PrivateEngine]:
    """An engine for as long as the tests run, and nothing of it afterwards."""
    # A socket's path may have 107 characters, which pytest's folders exceed.
    engine = PrivateEngine(Path(tempfile.mkdtemp(prefix="tsd", dir="/tmp")))
    try:
        engine.start()
        yield engine
    finally:
        engine.kill()
        for line in Path("/proc/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith(str(engine.folder)):
                subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(engine.folder, ignore_errors=True)
