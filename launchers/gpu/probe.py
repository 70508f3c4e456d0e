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
from launchers.gpu.control import PERCENTAGE

ROUND = 20
"""Kernels of one round."""
_BLOCKS, _THREADS, _STEPS = 8192, 256, 20_000
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
\0"""


def round_ms(cuda: ctypes.CDLL) -> float:
    """Return how long a round takes in this process, once the GPU is awake. Raises EngineError."""
    _call(cuda, "cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _call(cuda, "cuCtxCreate_v2", ctypes.byref(context), 0, device)
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _call(cuda, "cuModuleLoadData", ctypes.byref(module), _PTX)
    _call(cuda, "cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    _round(cuda, kernel)
    began = time.perf_counter()
    _round(cuda, kernel)
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
        raise EngineError(f"the probe failed: {(told.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return float(told.stdout)


def verdict(half_ms: float, whole_ms: float) -> tuple[bool, str]:
    """Return whether a percentage is enforced on an idle GPU, and the two times in words."""
    ratio = half_ms / whole_ms
    said = f"a round takes {whole_ms:.0f} ms with 100 % and {half_ms:.0f} ms with 50 %"
    if ratio < _BELOW:
        return False, f"{said}: percentages are not enforced ({_EXPECTED:g} times is expected)"
    return True, f"{said}, {ratio:.1f} times"


def _round(cuda: ctypes.CDLL, kernel: ctypes.c_void_p) -> None:
    steps, nowhere = ctypes.c_uint(_STEPS), ctypes.c_uint64(0)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(steps), ctypes.addressof(nowhere))
    for _ in range(ROUND):
        _call(cuda, "cuLaunchKernel", kernel, _BLOCKS, 1, 1, _THREADS, 1, 1, 0, None, arguments, None)
    _call(cuda, "cuCtxSynchronize")


def _call(cuda: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise EngineError(f"{name} failed with CUDA error {code}")


if __name__ == "__main__":
    print(round_ms(ctypes.CDLL("libcuda.so.1")))
