"""Releases of Triton that fixed vulnerabilities, to compare a running server's version with.

Source: NVIDIA's security bulletins for Triton Inference Server from August 2025 (5687) to August 2026 (5865,
5875), in github.com/NVIDIA/product-security; of each, the vulnerability of the highest score. Versions of
the images: the tags of github.com/triton-inference-server/server. No bulletin names a newer one than 26.07.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Release:
    """A release with fixes: Triton's version, NVIDIA's image, and what it fixed first of all."""

    version: Version
    image: str
    fixed: tuple[str, ...]


RELEASES = (
    Release(
        (2, 59, 1),
        "25.07",
        ("CVE-2025-23310", "CVE-2025-23311", "CVE-2025-23319", "CVE-2025-23320", "CVE-2025-23334"),
    ),
    Release((2, 60, 0), "25.08", ("CVE-2025-23316",)),
    Release((2, 61, 0), "25.09", ("CVE-2025-33202",)),
    Release((2, 62, 0), "25.10", ("CVE-2025-33211",)),
    Release((2, 65, 0), "26.01", ("CVE-2025-33238",)),
    Release((2, 66, 0), "26.02", ("CVE-2026-24146",)),
    Release((2, 67, 0), "26.03", ("CVE-2026-24207",)),
    Release((2, 68, 0), "26.04", ("CVE-2026-24264",)),
    Release((2, 69, 0), "26.05", ("CVE-2026-47476",)),
    Release((2, 70, 0), "26.06", ("CVE-2026-47627",)),
    Release((2, 71, 0), "26.07", ("bulletin 5875",)),
)
"""Oldest first."""

NEWEST = RELEASES[-1]


def parsed(version: str) -> Version | None:
    """The version as numbers; None for what is no version of Triton's."""
    found = re.fullmatch(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})\S*", version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def warning(versions: Iterable[str]) -> str | None:
    """A sentence on the oldest of these servers' versions; None where no fix is missing."""
    known = sorted((numbers, text) for text in versions if (numbers := parsed(text)) is not None)
    if not known:
        return None
    numbers, oldest = known[0]
    missing = [one for release in RELEASES if numbers < release.version for one in release.fixed]
    if not missing:
        return None
    count = sum(text == oldest for _, text in known)
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    servers = "1 server runs" if count == 1 else f"{count} servers run"
    newest = ".".join(map(str, NEWEST.version))
    return (
        f"{servers} Triton {oldest}, which lacks the fixes for {', '.join(missing[:3])}{more}: use {newest} "
        f"(image {NEWEST.image}) or newer"
    )


@dataclass(frozen=True, slots=True)
class Needs:
    """What NVIDIA's images need from a release on.

    `driver` is the oldest driver; on data center GPUs also a driver of one of the `branches`. Source: the
    release notes 24.10, 25.03 and 25.08 ("Driver Requirements", "GPU Requirements").
    """

    since: str
    capability: tuple[int, int]
    driver: int
    branches: tuple[int, ...] = (470, 525, 535, 545)


NEEDS = (Needs("00.00", (6, 0), 470), Needs("25.03", (7, 5), 560), Needs("25.08", (7, 5), 575))
"""Oldest first."""
OLD_GPUS = "25.02"
"""The newest image before the first one that leaves Volta (V100) out; 24.10 is the newest one tested here."""

LEFT = {
    "tensorflow": "NVIDIA's images have no tensorflow from 25.03 on: convert the model",
    "tensorrtllm": "TensorRT-LLM has no C++ backend since July 2026: serve the model by its LLM API",
}
"""What to do where a backend has left the images: `build.py` of 25.03; NVIDIA/TensorRT-LLM#15907."""


def way_out_for_backend(backend: str) -> str:
    """Return what helps where a Triton has no library of this backend."""
    if (left := LEFT.get(backend)) is not None:
        return f"{left}, or take an older image"
    return f"take an image with the backend {backend}, or name a `runtime` in config.pbtxt"


def unfit(image: str, capability: tuple[int, int] | None, driver: str | None) -> str | None:
    """Return why one of NVIDIA's images does not run on a GPU; None where it does, or where it is unknown."""
    found = re.search(r"tritonserver:(\d\d\.\d\d)", image)
    if found is None:
        return None
    needs = next(needs for needs in reversed(NEEDS) if found[1] >= needs.since)
    if capability is not None and capability < needs.capability:
        has, wants = (".".join(map(str, one)) for one in (capability, needs.capability))
        return (
            f"image {found[1]} needs compute capability {wants}, and this GPU has {has}: set TRISECT_IMAGE "
            f"to nvcr.io/nvidia/tritonserver:24.10-py3, or to another one up to {OLD_GPUS}"
        )
    branch = re.match(r"\d+", driver or "")
    if branch is not None and int(branch[0]) < needs.driver and int(branch[0]) not in needs.branches:
        return (
            f"image {found[1]} needs driver {needs.driver} or newer (on data center GPUs also one of "
            f"{', '.join(map(str, needs.branches))}), and here is {driver}: take another driver or image"
        )
    return None
