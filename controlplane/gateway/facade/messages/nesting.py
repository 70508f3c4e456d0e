"""Depth of JSON in request bodies: a Triton's parser is recursive, and deep nesting overflows its stack."""

from __future__ import annotations

import re

import numpy as np

from controlplane.gateway.facade.messages.answers import BadBody
from controlplane.render.haproxy import DEEPEST_JSON

_STRUCTURE = b'[]{}"'
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_STRING = re.compile(rb'"[^"]*"')


class Nesting:
    """The levels of the JSON value that a body begins with. What follows it is binary, or never parsed.

    Of invalid JSON the part before the first error counts right; a server parses no further.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._ended = self._in_string = self._escaping = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body. Raises BadBody."""
        if self._ended or not data:
            return
        brackets = self._brackets(data)
        steps = np.frombuffer(brackets.translate(_STEPS), dtype=np.int8)
        depths = self._depth + np.cumsum(steps, dtype=np.int64)
        ends = np.flatnonzero(depths <= 0)
        if ends.size:
            self._ended = True
            depths = depths[: ends[0]]
        if depths.size:
            if depths.max() > DEEPEST_JSON:
                raise BadBody(400, f"the request's JSON is nested more than {DEEPEST_JSON} levels deep")
            self._depth = int(depths[-1])

    def _brackets(self, data: bytes) -> bytes:
        """Return the brackets outside of strings."""
        if self._escaping:
            data = data[1:]
        data = data.replace(b"\\\\", b"")
        self._escaping = data.endswith(b"\\")
        structure = data.replace(b'\\"', b"").translate(None, _OTHERS)
        if self._in_string:
            structure = b'"' + structure
        # Two strings side by side become one, with the same brackets in it.
        structure = structure.replace(b'""', b"")
        outside, quote, _ = _STRING.sub(b"", structure).partition(b'"')
        self._in_string = bool(quote)
        return outside
