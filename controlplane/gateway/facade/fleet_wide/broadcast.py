"""Sending of fleet-wide calls, which reach every Triton or none, and later every one that joins.

Shared memory is registered with a process, not with a fleet; trace and log settings likewise. A server that
does not answer delays a call by `ANSWER_S` at most.

What joining servers get is kept in a file: keys are the paths a Triton's HTTP takes, without a query; values
are bodies. Both are bounded, since clients choose them, and the file is not trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import aiohttp
import grpc
from aiohttp import web

from controlplane.domain.errors import InputError, TrisectError
from controlplane.domain.fleet import Backend
from controlplane.files.reading import exists, read_bytes
from controlplane.files.writing import write_json
from controlplane.gateway.facade.callers import ANY_REGION, Caller, Regions
from controlplane.gateway.facade.refusals import Refusal
from controlplane.gateway.processes import say
from controlplane.triton.sessions import TritonSessions

Answer = TypeVar("Answer")
ANSWER_S = 5.0
"""How long a server may take to answer one fleet-wide call."""
_TIMEOUT = aiohttp.ClientTimeout(total=ANSWER_S)
_DENIED = grpc.StatusCode.PERMISSION_DENIED
_SILENCES = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
MOST_ENTRIES = 256
LARGEST_ENTRY_BYTES = 16 * 2**10
_LARGEST_FILE_BYTES = 2 * MOST_ENTRIES * LARGEST_ENTRY_BYTES
_NAME = r"[A-Za-z0-9_.:-]{1,128}"
_REGION = rf"/v2/(system|cuda)sharedmemory/region/{_NAME}/register"
_SETTING = rf"/v2/(models/{_NAME}/)?trace/setting|/v2/logging"

Body = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Region:
    """A shared-memory region of `kind` "system" or "cuda"; all of them where `name` is empty."""

    kind: str
    name: str = ""

    @property
    def key(self) -> str:
        """Its key. Raises Refusal for a name that HTTP cannot carry."""
        key = f"{self.prefix}register"
        if re.fullmatch(_REGION, key) is None:
            raise _not_kept("a region's name has 1 to 128 letters, digits or any of _ . : -")
        return key

    @property
    def prefix(self) -> str:
        """What the key begins with."""
        regions = f"/v2/{self.kind}sharedmemory/region/"
        return f"{regions}{self.name}/" if self.name else regions


class Kept:
    """The entries, and their file. A file that cannot be read is put aside: no server waits for it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries = self._read()

    def entries(self) -> Mapping[str, Body]:
        """All of them, in the order in which they were given."""
        return dict(self._entries)

    def check(self, key: str, body: Body) -> None:
        """Raises Refusal where `put` would exceed the bounds."""
        if len(json.dumps(self._merged(key, body))) > LARGEST_ENTRY_BYTES:
            raise _not_kept(f"what is kept of one call may have {LARGEST_ENTRY_BYTES} bytes")
        if key not in self._entries and len(self._entries) >= MOST_ENTRIES:
            raise _not_kept(f"{MOST_ENTRIES} regions and settings are kept already; unregister some")

    def put(self, key: str, body: Body) -> None:
        """Settings for one key are put together; a region replaces the one of its name."""
        self._entries[key] = self._merged(key, body)
        self._write()

    def forget(self, prefix: str) -> None:
        """Drop every entry whose key begins so."""
        self._entries = {key: body for key, body in self._entries.items() if not key.startswith(prefix)}
        self._write()

    def _merged(self, key: str, body: Body) -> Body:
        return {**self._entries.get(key, {}), **body} if re.fullmatch(_SETTING, key) else body

    def _read(self) -> dict[str, Body]:
        if not exists(self._file):
            return {}
        try:
            return _entries(json.loads(read_bytes(self._file, _LARGEST_FILE_BYTES)))
        except (InputError, ValueError, RecursionError) as error:
            aside = self._file.with_suffix(".broken")
            say(f"{self._file} cannot be read and is put aside as {aside.name}: {error}")
            with contextlib.suppress(OSError):
                self._file.replace(aside)
            return {}

    def _write(self) -> None:
        with contextlib.suppress(TrisectError):
            write_json(self._file, self._entries)


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A fleet-wide call: how one server gets it, and how it is undone there.

    `keep` is the key and the body of what joining servers get from now on; `forget` is the prefix of the keys
    of what they no longer get.
    """

    tell: Callable[[Backend], Awaitable[Answer]]
    undo: Callable[[Backend], Awaitable[object]] | None = None
    keep: tuple[str, Body] | None = None
    forget: str | None = None


class Refused(Exception):
    """A server's refusal. `first`: it was the first server, so nothing had changed anywhere."""

    def __init__(self, backend: Backend, cause: Exception, *, first: bool) -> None:
        super().__init__(str(cause) or f"no answer within {ANSWER_S:g} s")
        self.backend = backend
        self.cause = cause
        self.first = first


class HttpRefused(Exception):
    """A server's HTTP `answer` other than success."""

    def __init__(self, words: str, answer: web.Response) -> None:
        super().__init__(words)
        self.answer = answer


class Broadcast:
    """One broadcast at a time, so that every server gets them in the same order."""

    def __init__(self, sessions: TritonSessions, kept: Kept, *, allowed: bool = True) -> None:
        self._sessions = sessions
        self._allowed = allowed
        self._kept = kept
        self._lock = asyncio.Lock()
        self._told: set[Backend] = set()

    def admit(self, caller: Caller) -> Regions:
        """Return a client's regions. Raises Refusal where it may make no fleet-wide calls."""
        if not caller.may_operate:
            raise Refusal(_DENIED, "this client is no operator, so it may not make fleet-wide calls")
        if not self._allowed:
            way_out = "`fleet_wide_calls: true` in the section serve of its spec does, for a new fleet"
            raise Refusal(_DENIED, f"this fleet allows no fleet-wide calls; {way_out}")
        return caller.regions

    async def send(self, targets: Sequence[Backend], call: Call[Answer]) -> Answer:
        """Change every target and return the first one's answer; otherwise nothing has changed.

        Raises Refusal before anything is sent, and Refused. The first server gets the call alone: what it
        refuses, no other one gets. A server that did not answer may have executed it: it is undone there too.
        """
        if call.keep is not None:
            self._kept.check(*call.keep)
        async with self._lock:
            answer = await self._change_all(targets, call)
            if call.keep is not None:
                self._kept.put(*call.keep)
            if call.forget is not None:
                self._kept.forget(call.forget)
            return answer

    async def _change_all(self, targets: Sequence[Backend], call: Call[Answer]) -> Answer:
        first, *others = targets
        try:
            answer = await _bounded(call.tell(first))
        except Exception as cause:
            if _silent(cause):
                await _undo(call, [first])
            raise Refused(first, cause, first=True) from cause
        told = await asyncio.gather(*(_bounded(call.tell(other)) for other in others), return_exceptions=True)
        outcomes = list(zip(others, told, strict=True))
        refusals = [(backend, e) for backend, e in outcomes if isinstance(e, Exception)]
        if refusals:
            changed = [b for b, e in outcomes if not isinstance(e, Exception) or _silent(e)]
            await _undo(call, [first, *changed])
            raise Refused(*refusals[0], first=False)
        return answer

    async def tell_joining(self, servers: Sequence[Backend]) -> None:
        """Send what is kept to servers that have joined, before any request reaches them.

        One that does not answer gets the rest at the next change of routes.
        """
        async with self._lock:
            joining = [server for server in servers if server not in self._told]
            heard = await asyncio.gather(*(self._bring(server) for server in joining))
            silent = {server for server, well in zip(joining, heard, strict=True) if not well}
            self._told = set(servers) - silent

    async def _bring(self, server: Backend) -> bool:
        """Whether the server answered, in `ANSWER_S` for everything."""
        try:
            async with asyncio.timeout(ANSWER_S):
                for path, body in self._kept.entries().items():
                    try:
                        await self.http(server, "POST", path, json.dumps(body).encode())
                    except HttpRefused as refusal:
                        say(f"{server.server} does not take {path}: {refusal}")
        except (aiohttp.ClientError, TimeoutError) as silence:
            say(f"{server.server} does not answer fleet-wide calls: {silence!r}")
            return False
        return True

    def regions_to_remove(self, region: Region, owned: Regions) -> list[Region]:
        """Return what a call removes: a region, all, or all that the client owns. Raises Refusal."""
        if region.name:
            owned.check(region.name)
        if region.name or owned is ANY_REGION:
            return [region]
        keys = [key for key in self._kept.entries() if key.startswith(region.prefix)]
        return [Region(region.kind, name) for key in keys if owned.owns(name := key.split("/")[4])]

    async def http(self, backend: Backend, method: str, path: str, body: bytes = b"") -> web.Response:
        """One server's answer. Raises HttpRefused; aiohttp.ClientError or TimeoutError without one."""
        at = backend.host, backend.http_port
        async with self._sessions.request(at, method, path, data=body or None, timeout=_TIMEOUT) as answer:
            text = await answer.read()
        passed = web.Response(status=answer.status, body=text, content_type=answer.content_type)
        if answer.status >= 300:
            raise HttpRefused(text.decode(errors="replace"), passed)
        return passed


async def _undo(call: Call[Answer], servers: Sequence[Backend]) -> None:
    if call.undo is not None:
        await asyncio.gather(*(_bounded(call.undo(server)) for server in servers), return_exceptions=True)


async def _bounded(answer: Awaitable[Answer]) -> Answer:
    async with asyncio.timeout(ANSWER_S):
        return await answer


def _silent(error: BaseException) -> bool:
    """Whether a server may have done what it did not answer."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code() in _SILENCES
    return isinstance(error, TimeoutError | aiohttp.ClientError)


def _entries(content: object) -> dict[str, Body]:
    if not isinstance(content, dict) or len(content) > MOST_ENTRIES:
        raise ValueError(f"not an object of at most {MOST_ENTRIES} entries")
    for key, body in content.items():
        if re.fullmatch(f"{_REGION}|{_SETTING}", key) is None or not isinstance(body, dict):
            raise ValueError(f"{key[:80]!r} is no shared-memory region and no setting")
    return content


def _not_kept(words: str) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, words)
