"""Whether the percentage of an MPS client is enforced: queued kernels, timed. It never ran on a GPU yet.

    python -m launchers.gpu.probe

prints the milliseconds of one round with the GPU and the percentage of its environment. It needs the driver
alone: the kernel is PTX, and libcuda is called by ctypes. A round is queued whole and then awaited, since one
launch at a time is as fast on a part of the GPU; it has more blocks than a GPU holds at once, each of which
only computes. Nothing can be said beside busy neighbours.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Mapping

from controlplane.domain.errors import EngineError
from launchers.gpu import gpus
from launchers.gpu.control import PERCENTAGE

ROUND = 20
"""Kernels of one round."""
STEPS = 20_000
_BLOCKS, _THREADS = 8192, 256
_ANSWER_S = 60.0
_EXPECTED, _BELOW = 2.0, 1.5
"""How much longer a round takes with half of the GPU than with all of it, and what is no enforcement."""

_PTX = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry spin(.param .u32 steps, .param .u64 nowhere)
{
    .reg .pred %p<2>;
    .reg .u32 %r<3>;
    .reg .u64 %rd1;
    .reg .f32 %f1;
    ld.param.u64 %rd1, [nowhere];
    ld.param.u32 %r1, [steps];
    mov.u32 %r2, 0;
    mov.f32 %f1, 0f3F800000;
LOOP:
    fma.rn.f32 %f1, %f1, %f1, %f1;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p0, %r2, %r1;
    @%p0 bra LOOP;
    setp.eq.f32 %p1, %f1, 0fBF800000;
    @%p1 st.global.f32 [%rd1], %f1;
    ret;
}
.visible .entry fault()
{
    trap;
    ret;
}
\0"""


class Kernels:
    """A CUDA context of this process, by the driver alone. Its calls raise EngineError."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise EngineError(str(error)) from error
        self._call("cuInit", 0)
        device, self._context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuCtxCreate_v2", ctypes.byref(self._context), 0, device)
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._spin, self._fault = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(self._spin), module, b"spin")
        self._call("cuModuleGetFunction", ctypes.byref(self._fault), module, b"fault")

    def queue(self, blocks: int, steps: int = STEPS) -> None:
        """Queue a kernel of so many blocks, each of which computes."""
        count, nowhere = ctypes.c_uint(steps), ctypes.c_uint64(0)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(count), ctypes.addressof(nowhere))
        self._launch(self._spin, blocks, arguments)

    def wait(self) -> None:
        """Wait until every queued kernel has ended."""
        self._call("cuCtxSynchronize")

    def hold(self, megabytes: int) -> None:
        """Take so much of the GPU's memory, for as long as the process lives."""
        self._call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(megabytes * 2**20))

    def fault(self) -> None:
        """End every client of the GPU's MPS server, as a program with a fatal exception does."""
        self._launch(self._fault, 1, None)
        self.wait()

    def _launch(self, kernel: ctypes.c_void_p, blocks: int, arguments: object) -> None:
        self._call("cuCtxSetCurrent", self._context)  # whichever thread calls
        self._call("cuLaunchKernel", kernel, blocks, 1, 1, _THREADS, 1, 1, 0, None, arguments, None)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            words = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(words))
            raise EngineError(f"{name} failed with CUDA error {code}: {(words.value or b'').decode()}")


def round_ms(kernels: Kernels) -> float:
    """Return how long a round takes in this process, once the GPU is awake. Raises EngineError."""
    _round(kernels)
    began = time.perf_counter()
    _round(kernels)
    return 1000 * (time.perf_counter() - began)


def measured(environment: Mapping[str, str], percent: float) -> float:
    """Return a round's milliseconds in a process of its own with that percentage. Raises EngineError."""
    try:
        told = subprocess.run(
            [sys.executable, "-m", "launchers.gpu.probe"],
            env={**environment, PERCENTAGE: f"{percent:g}"},
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"the probe did not end within {_ANSWER_S:g} s") from error
    if told.returncode != 0:
        said = (told.stderr.strip().splitlines() or ["no reason"])[-1]
        raise EngineError("; ".join(filter(None, (f"the probe failed: {said}", gpus.device_file_away()))))
    return float(told.stdout)


def enforced(environment: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether percentages are enforced on the idle GPU of this environment, and the times in words.

    Raises EngineError where a probe failed.
    """
    whole_ms, half_ms = (measured(environment, percent) for percent in (100.0, 50.0))
    return verdict(half_ms, whole_ms)


def verdict(half_ms: float, whole_ms: float) -> tuple[bool, str]:
    """Return whether a percentage is enforced on an idle GPU, and the two times in words."""
    ratio = half_ms / whole_ms
    said = f"a round takes {whole_ms:.0f} ms with 100 % and {half_ms:.0f} ms with 50 %"
    if ratio < _BELOW:
        return False, f"{said}: percentages are not enforced ({_EXPECTED:g} times is expected)"
    return True, f"{said}, {ratio:.1f} times"


def _round(kernels: Kernels) -> None:
    for _ in range(ROUND):
        kernels.queue(_BLOCKS)
    kernels.wait()


if __name__ == "__main__":
    print(round_ms(Kernels()))
