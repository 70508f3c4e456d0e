"""`ctl demo --set serve.launcher=docker` with the test image: `docker_demo.py [ctl demo's arguments]`.

On the host's own engine where one answers, else on a private one that ends with the demo.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import private_engine
import triton_image

from launchers.docker import engine


def main() -> int:
    """Run it; the exit code is the demo's."""
    with contextlib.ExitStack() as stack:
        if engine.reachable():
            address = engine.address()
        else:
            why_not = private_engine.obstacle()
            if why_not is not None:
                print(f"no Docker engine answers, and {why_not}", file=sys.stderr)
                return 4
            print("no Docker engine answers: starting a private one", file=sys.stderr)
            address = stack.enter_context(private_engine.private_engine()).address
        print("making the test image from this host's Triton and Python", file=sys.stderr)
        image = triton_image.build(address)
        environment = {
            **os.environ,
            "DOCKER_HOST": address,
            "TRISECT_IMAGE": image,
            "TRISECT_PULL": "never",
        }
        ctl = Path(sys.executable).parent / "ctl"
        command = [str(ctl), "demo", "--set=serve.launcher=docker", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
