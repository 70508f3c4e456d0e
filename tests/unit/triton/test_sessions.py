"""Calls of servers from an event loop."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from controlplane.domain.fleet import Backend
from controlplane.triton.sessions import TritonSessions


async def served(path: Path, name: str, going: asyncio.Event) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        await going.wait()
        return web.Response(text=name)

    app = web.Application()
    app.router.add_get("/v2", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    return runner


def test_each_server_answers_at_its_own_socket_and_a_call_outlives_its_route(nearby: Path) -> None:
    backends = {name: Backend(name, f"unix:{nearby}/{name}", 8000, 8001) for name in "ab"}

    async def run() -> list[str]:
        going, sessions = asyncio.Event(), TritonSessions()
        runners = [await served(nearby / f"{name}:8000", name, going) for name in "ab"]

        async def get(backend: Backend) -> str:
            async with sessions.request((backend.host, backend.http_port), "GET", "/v2") as answer:
                return await answer.text()

        calls = [asyncio.create_task(get(backend)) for backend in backends.values()]
        await asyncio.sleep(0)
        await sessions.keep_only((backends["a"],))
        going.set()
        found = [*await asyncio.gather(*calls), await get(backends["b"])]
        await runners[1].cleanup()
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(backends["b"])
        await sessions.aclose()
        await runners[0].cleanup()
        return found

    assert asyncio.run(run()) == ["a", "b", "b"]
