"""Request bodies over HTTP: decompressed outside of the servers' shares, and bounded in size and depth."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterator

import aiohttp
import numpy as np
from aiohttp import web

from controlplane.gateway.facade.refusals import BadBody
from controlplane.render.haproxy import DEEPEST_JSON, LARGEST_BODY_BYTES

HEADER_LENGTH = "Inference-Header-Content-Length"
LARGEST_BYTES = 256 * 2**20
"""The largest body or message that the facade holds in memory, counted after decompression."""

_PIECE_BYTES = 256 * 2**10
"""Other calls get their turn after so many bytes of a body: about 1 ms."""
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_STRUCTURE = b'[]{}"'
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_STRING = re.compile(rb'"[^"]*"')


class Decompression:
    """A compressed body in pieces. Their first bytes tell gzip from zlib, as in Triton.

    Raises BadBody: 413 above `limit_bytes` of input or output, 400 where the data is broken.
    """

    def __init__(self, limit_bytes: int = LARGEST_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = self._given_bytes = 0
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What follows from the next compressed bytes, at most `_PIECE_BYTES` at a time."""
        self._taken_bytes += len(data)
        self._refuse_more_than_the_limit(self._taken_bytes)
        more = bool(data)
        while more:
            if self._member.eof:
                # A gzip file may have several members (RFC 1952, 2.2).
                self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
            try:
                piece = self._member.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise BadBody(400, f"the request body cannot be decompressed: {error}") from error
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            more = bool(data) or (len(piece) == _PIECE_BYTES and not self._member.eof)
            self._given_bytes += len(piece)
            self._refuse_more_than_the_limit(self._given_bytes)
            yield piece

    def finish(self) -> None:
        """The body ends here."""
        if not self._taken_bytes:
            raise BadBody(400, "nothing to be decompressed")
        if not self._member.eof:
            raise BadBody(400, "the compressed request body ends early")

    def _refuse_more_than_the_limit(self, count: int) -> None:
        if count > self._limit_bytes:
            raise too_large(self._limit_bytes)


class Nesting:
    """The levels of the JSON value that a body begins with. What follows it is binary, or never parsed.

    A Triton's parser is recursive, and deep nesting overflows its stack.
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


class Counted:
    """A body that is forwarded as it arrives, up to limits. aiohttp hides the reason; `refusal` has it.

    A server gets no end of a refused body, so it never parses any of it.
    """

    def __init__(
        self,
        content: aiohttp.StreamReader,
        limit_bytes: int = LARGEST_BODY_BYTES,
        nesting: Nesting | None = None,
    ) -> None:
        self._content = content
        self._limit_bytes = limit_bytes
        self._nesting = nesting
        self.begun = False
        self.refusal: BadBody | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for part in self._content.iter_any():
            self.begun = True
            count += len(part)
            try:
                if count > self._limit_bytes:
                    raise too_large(self._limit_bytes)
                if self._nesting is not None:
                    self._nesting.feed(part)
            except BadBody as refusal:
                self.refusal = refusal
                raise
            yield part


def too_large(limit_bytes: int) -> BadBody:
    """The refusal of a body beyond a limit."""
    return BadBody(413, f"the request body is larger than {limit_bytes} bytes")


def is_encoded(request: web.Request) -> bool:
    """Whether the body is to be decompressed, or refused for its encoding: an inference's, as in Triton."""
    return request.path.endswith("/infer") and _encoding(request) != "identity"


def check_plain(request: web.Request) -> None:
    """Raise BadBody for an encoded body of a call that reads the header but decompresses nothing."""
    if request.path.endswith(("/generate", "/generate_stream")) and _encoding(request) != "identity":
        raise BadBody(400, "Unsupported content-encoding, only 'identity' is supported.")


async def read_body(request: web.Request) -> bytes:
    """The whole body, decompressed. Raises BadBody, also for JSON that no server may parse."""
    if not is_encoded(request):
        body = await request.read()
    elif _encoding(request) not in ("gzip", "deflate"):
        # A Triton's status, words and header.
        raise BadBody(501, "Unsupported compression type", {"Accept-Encoding": "gzip, deflate"})
    else:
        pieces, decompression = bytearray(), Decompression()
        async for data in request.content.iter_any():
            for piece in decompression.feed(data):
                pieces += piece
                await asyncio.sleep(0)
        decompression.finish()
        body = bytes(pieces)
    if (nesting := nesting_of(request)) is not None:
        for at in range(0, len(body), _PIECE_BYTES):
            nesting.feed(body[at : at + _PIECE_BYTES])
            await asyncio.sleep(0)
    return body


def nesting_of(request: web.Request) -> Nesting | None:
    """Return what counts the levels of a body's JSON; None for an inference that says it has none."""
    binary = request.path.endswith("/infer") and request.headers.getall(HEADER_LENGTH, ()) == ["0"]
    return None if binary else Nesting()


def _encoding(request: web.Request) -> str:
    return request.headers.get("Content-Encoding", "identity").strip()
