"""A FAKE of what libcuda does when a program first uses it, by nvidia-cuda-mps-control(1). No GPU is used.

Part of a model's code in tests, also in containers, so it needs nothing but the standard library.
"""

import os
import signal
import socket
import sys

CONNECTION = socket.socket(socket.AF_UNIX)
"""Open while the process lives: by its end the daemon knows that a client is gone."""


def use_gpu(gpu: str) -> str:
    """Become a client of the MPS daemon; where none is reached, run on without it. Return which of both.

    A real program is not told. `gpu` is the fake GPU's folder. Raises RuntimeError where the GPU is taken, or
    the MPS server ends or is not ready.
    """
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    try:
        folder = os.open(pipes, os.O_PATH)  # whose path may be too long for a socket's name
        CONNECTION.connect(f"/proc/self/fd/{folder}/control")
    except OSError:
        plain = f"{gpu}/plain"
        if not os.path.isdir(plain):
            return "without MPS"  # in a container, where the folder is not mounted
        if os.path.exists(f"{gpu}/exclusive") and os.listdir(plain):
            raise RuntimeError("all CUDA-capable devices are busy or unavailable (46)") from None
        open(f"{plain}/{os.getpid()}", "w").close()
        return "without MPS"
    CONNECTION.sendall(b"client")
    answer = CONNECTION.recv(100)
    if answer == b"not ready\n":
        raise RuntimeError("MPS server is not ready to accept new MPS client requests (807)")
    if answer != b"served\n":
        raise RuntimeError("MPS client failed to connect to the MPS control daemon or the MPS server (805)")
    return "client of MPS"


if __name__ == "__main__":
    how = use_gpu(sys.argv[1])
    if sys.argv[2:] == ["busy"]:
        CONNECTION.sendall(b"busy")
    print(how, flush=True)
    signal.pause()
