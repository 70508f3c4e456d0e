"""A command in a pod, through the API server, as `kubectl exec` runs one: a websocket with channels."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import aiohttp
import httpx2
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SingleConfig

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Cluster
from launchers.kubernetes.api import RoleRule, config_of

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_OUT, _ERR, _END = 1, 2, 3
_CONNECT_S = 10.0
_EXEC = RoleRule("", "pods/exec", ("get", "create"))


def run_in_pod(cluster: Cluster, pod: str, command: Sequence[str]) -> int:
    """Run a command in a pod's first container, with its output on this program's; return its exit code.

    Raises EngineError where the cluster refuses, or the connection ends before the command.
    """
    return asyncio.run(_run(config_of(cluster), cluster.namespace, pod, command))


async def _run(config: SingleConfig, namespace: str | None, pod: str, command: Sequence[str]) -> int:
    where = f"/api/v1/namespaces/{namespace or config.namespace}/pods/{pod}/exec"
    query = urlencode([*(("command", part) for part in command), ("stdout", "true"), ("stderr", "true")])
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.ws_connect(
                f"{config.cluster.server}{where}?{query}",
                protocols=_PROTOCOLS,
                headers=_credentials(config),
                ssl=_trust(config),
                max_msg_size=0,
            ) as socket,
        ):
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY and message.data:
                    channel, data = message.data[0], message.data[1:]
                    if channel == _END:
                        return exit_code(json.loads(data))
                    _show(channel, data)
    except aiohttp.WSServerHandshakeError as error:
        raise _refused(pod, error.status) from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineError(f"the API server at {config.cluster.server} does not answer: {error}") from error
    raise EngineError(f"the connection to pod {pod} ended before the command did")


def exit_code(status: Mapping[str, Any]) -> int:
    """Return the exit code of a command from the API server's last word. Raises EngineError without one."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise EngineError(f"Kubernetes: {status.get('message', 'the command did not run')}")


def _show(channel: int, data: bytes) -> None:
    stream = {_OUT: sys.stdout, _ERR: sys.stderr}.get(channel)
    if stream is not None:
        # As bytes: a message may end within a character.
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()


def _credentials(config: SingleConfig) -> dict[str, str]:
    """Return the header that lightkube would send."""
    auth = user_auth(config.user)
    if auth is None:
        return {}
    signed = next(auth.sync_auth_flow(httpx2.Request("GET", config.cluster.server)))
    return {"Authorization": signed.headers["Authorization"]}


def _trust(config: SingleConfig) -> ssl.SSLContext | bool:
    if config.user is None or not config.cluster.server.startswith("https:"):
        return True
    return verify_cluster(config.cluster, config.user, config.abs_file)


def _refused(pod: str, status: int) -> EngineError:
    if status == 403:
        return EngineError(f"the cluster lets you run nothing in pod {pod}: your Role lacks the rule {_EXEC}")
    if status == 404:
        return EngineError(f"pod {pod} is gone: another controller leads in a moment, try again")
    return EngineError(f"Kubernetes refuses to run a command in pod {pod}: HTTP {status}")
