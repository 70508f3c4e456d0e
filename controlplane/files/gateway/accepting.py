"""Servers that lack descriptors or memory: what they cannot accept waits in the kernel's queue.

Both servers of the standard library otherwise use up a core. The one of asyncio tries as many accepts as its
backlog at once, with a traceback and a timer for each that fails, so the tries multiply every second. The
one in threads tries again at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import resource
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any

from controlplane.domain.errors import LogOnce, is_own_lack

_AGAIN_S = 0.5
_SAID_EVERY_S = 60.0


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a program of asyncio that has servers, with as many descriptors as it may have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        runner.run(main)


class PatientLoop(asyncio.SelectorEventLoop):
    """A loop that accepts one connection a round, and waits after one for which it lacks room."""

    def __init__(self) -> None:
        super().__init__()
        self._said = LogOnce(_SAID_EVERY_S)

    def _accept_connection(
        self,
        factory: Any,
        listener: Any,
        tls: Any = None,
        server: Any = None,
        backlog: int = 1,
        *more: Any,
    ) -> None:
        """Accept once. The backlog is the length of the kernel's queue, and no number of tries."""
        super()._accept_connection(factory, listener, tls, server, 1, *more)  # type: ignore[misc]

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error; the lack of descriptors or memory in one line, and seldom."""
        error = context.get("exception")
        if not isinstance(error, OSError) or not is_own_lack(error):
            super().default_exception_handler(context)
        elif self._said.is_new(problem := f"{context['message']}: {error.strerror}", now_s=time.monotonic()):
            with contextlib.suppress(OSError):
                print(problem, file=sys.stderr, flush=True)


class QueuingHTTPServer(http.server.ThreadingHTTPServer):
    """A server in threads, with `serve_forever` in one of its own."""

    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; where there is no room for it, let it wait before the next try."""
        try:
            return super().get_request()
        except OSError as error:
            if is_own_lack(error):
                time.sleep(_AGAIN_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what ended an answer, but for a client that did not wait for it, as a late probe."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
