"""The facade's HTTP: the fleet's own calls, and whatever HAProxy finds no model for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from controlplane.gateway.facade.fleet import Fleet

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(fleet: Fleet) -> web.Application:
    """All paths; what no Triton has either gets 404."""

    async def live(_: web.Request) -> web.Response:
        return web.Response()

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if await fleet.ready() else 400)

    async def metadata(_: web.Request) -> web.Response:
        return web.json_response(await fleet.metadata())

    async def index(request: web.Request) -> web.Response:
        body = await request.read()
        wanted = False
        if body:
            try:
                wanted = bool((await request.json()).get("ready", False))
            except (ValueError, AttributeError):
                return _error(400, "failed to parse the request JSON buffer")
        return web.json_response(await fleet.repository_index(wanted))

    async def refuse(_: web.Request) -> web.Response:
        return _error(403, "models are loaded and unloaded by the control plane, not by clients")

    async def model(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        version = request.match_info.get("version", "")
        return _error(*unknown_model(name, version))

    app = web.Application(client_max_size=2**31)
    app.add_routes(
        [
            web.get("/v2", metadata),
            web.get("/v2/health/live", live),
            web.get("/v2/health/ready", ready),
            web.post("/v2/repository/index", index),
            web.post("/v2/repository/models/{name}/load", refuse),
            web.post("/v2/repository/models/{name}/unload", refuse),
        ]
    )
    for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        for suffix in ("", "/infer", "/generate", "/generate_stream", "/ready", "/config", "/stats"):
            app.router.add_route("*", prefix + suffix, model)
    return app


def unknown_model(name: str, version: str = "") -> tuple[int, str]:
    """Triton's status and words for a model it does not have."""
    at = f" version {version}" if version else ""
    return 404, f"Request for unknown model: '{name}'{at} is not found"


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
