import asyncio
import contextlib
import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.facade.bodies import Counted, Decompression, Nesting
from controlplane.gateway.facade.refusals import BadBody
from controlplane.render.haproxy import DEEPEST_JSON


def decompressed(body: bytes, step: int = 7, limit_bytes: int = 2**20) -> bytes:
    decompression = Decompression(limit_bytes)
    found = b"".join(
        piece for at in range(0, len(body), step) for piece in decompression.feed(body[at : at + step])
    )
    decompression.finish()
    return found


@given(st.binary(max_size=2000), st.integers(1, 50), st.sampled_from([gzip.compress, zlib.compress]))
def test_a_body_in_pieces_of_any_size_comes_back(
    body: bytes, step: int, compress: Callable[[bytes], bytes]
) -> None:
    assert decompressed(compress(body), step) == body


@pytest.mark.parametrize("size", [2**18, 2**18 + 1, 2**19, 2**20])
def test_a_body_around_whole_pieces_comes_back(size: int) -> None:
    assert len(decompressed(gzip.compress(bytes(size)), step=2**20)) == size


def test_members_of_a_gzip_file_follow_each_other() -> None:
    assert decompressed(gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not compressed",
        gzip.compress(b"cut short" * 99)[:-1],
        gzip.compress(b"bad sum")[:-8] + bytes(8),
        gzip.compress(b"more follows") + b"garbage",
        zlib.compress(b"no header")[2:-4],
    ],
    ids=["empty", "not compressed", "cut short", "bad sum", "more follows", "no header"],
)
def test_broken_data_is_refused(body: bytes) -> None:
    with pytest.raises(BadBody) as caught:
        decompressed(body)
    assert caught.value.http == 400


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_body_or_a_refusal(body: bytes) -> None:
    with contextlib.suppress(BadBody):
        decompressed(body)


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    bomb = gzip.compress(bytes(64 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(BadBody) as caught:
            for _ in Decompression(2**20).feed(bomb):
                pass
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert caught.value.http == 413


def test_what_is_larger_than_the_limit_while_compressed_is_refused() -> None:
    empty = gzip.compress(b"")
    with pytest.raises(BadBody) as caught:
        decompressed(empty * 1000, step=1000, limit_bytes=len(empty) * 999)
    assert caught.value.http == 413


def test_a_body_that_passes_is_counted() -> None:
    class Content:
        async def iter_any(self) -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"1234"

    async def passed(limit_bytes: int) -> tuple[bytes, int | None]:
        counted, found = Counted(cast(aiohttp.StreamReader, Content()), limit_bytes), b""
        with contextlib.suppress(BadBody):
            async for part in counted:
                found += part
        return found, counted.refusal and counted.refusal.http

    assert asyncio.run(passed(12)) == (b"1234" * 3, None)
    assert asyncio.run(passed(11)) == (b"1234" * 2, 413)


TEXTS = st.text(st.sampled_from('ab[]{}"\\\n'), max_size=8)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=30,
)


def refused(body: bytes, step: int) -> bool:
    nesting = Nesting()
    try:
        for at in range(0, len(body), step):
            nesting.feed(body[at : at + step])
    except BadBody:
        return True
    return False


def levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels, inner), default=0)


@given(VALUES, st.integers(0, 70), st.binary(max_size=50), st.integers(1, 40))
def test_a_body_is_refused_exactly_if_its_json_is_too_deep(
    value: Any, wrapped: int, tensors: bytes, step: int
) -> None:
    for _ in range(wrapped):
        value = [value]
    if not isinstance(value, list | dict):
        value = [value]
    body = b"\xef\xbb\xbf " + json.dumps(value).encode() + tensors
    assert refused(body, step) == (levels(value) > DEEPEST_JSON)


def test_brackets_behind_the_json_do_not_count() -> None:
    assert not refused(b'{"inputs": []}' + b"[" * 10_000, 100)


@pytest.mark.parametrize("opening", [b"[", b'{"":', b'[{"a":', b'["]",', b'["\\"]",'])
@pytest.mark.parametrize("at", [0, 31_000, 3_000_000])
def test_deep_json_is_refused_wherever_it_stands(opening: bytes, at: int) -> None:
    body = b'{"inputs": [' + b"1.5, " * (at // 5) + opening * 70
    assert refused(body, random.Random(at).randrange(1_000, 100_000))
