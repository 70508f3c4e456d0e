"""Decoders of the API's objects, made by one thread at a time.

msgspec makes the decoder of a type at its first use. A second thread that uses the type meanwhile can crash
the interpreter (seen with 0.22: a segmentation fault where eight threads create pods at once).
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import msgspec
from lightkube.core import decoders

_making = threading.Lock()
_made: set[type[Any]] = set()


def prepare(kind: type[Any]) -> None:
    """Make the decoders of a kind of object, of lists of it, and of what watches and errors consist of."""
    if kind in _made:
        return
    with _making:
        if not _made:
            decoders.decode_status(b"{}")
            decoders.decode_watch_event(b'{"type": "ADDED", "object": {}}')
        with contextlib.suppress(msgspec.ValidationError):  # it is made, and requires some field
            decoders.decode_object(b"{}", kind)
        decoders.decode_list(b'{"items": []}', kind)
        _made.add(kind)
