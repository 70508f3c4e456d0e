"""The extras of the package that bring what a verb imports."""

from __future__ import annotations

import re
from collections import Counter

_MODULES = {
    "google": "protobuf",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-sdk",
    "pynvml": "nvidia-ml-py",
}
"""Modules that are not named like their distributions."""
_EXTRA = re.compile(r"""(?P<name>[A-Za-z0-9._-]+).*extra == ['"](?P<extra>[a-z]+)['"]""")


def extra_of(module: str) -> str | None:
    """Return the extra that installs a module; None where no extra does."""
    # Its import takes a tenth of a short command, and only an error needs it.
    from importlib.metadata import PackageNotFoundError, requires

    top = module.partition(".")[0]
    wanted = _MODULES.get(top, top.replace("_", "-"))
    try:
        declared = requires("trisect") or []
    except PackageNotFoundError:
        return None
    found = [match for line in declared if (match := _EXTRA.match(line))]
    sizes = Counter(match["extra"] for match in found)
    # Of the extras that bring it, the smallest: others include that one.
    return min(
        (m["extra"] for m in found if m["name"].lower() == wanted), key=sizes.__getitem__, default=None
    )
