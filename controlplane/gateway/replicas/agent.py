"""The program of one gateway replica: `python -m controlplane.gateway.replicas.agent --help`.

It starts a gateway without routes and takes them over its control port, which needs a token. The replica is
ready once it has routes, so a new one gets no request that it cannot route. At SIGTERM it stops being ready,
goes on serving while load balancers notice, then finishes its requests and ends.

The control port answers while the gateway commits nothing; commits are put in order.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import http.server
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from controlplane.domain.errors import GatewayError, TrisectError
from controlplane.domain.fleet import AccessConfig, GatewayConfig
from controlplane.files.gateway.accepting import QueuingHTTPServer
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.gateway.replicas import control_port
from controlplane.gateway.replicas.control_port import Table

_LONGEST_BODY = 64 * 2**20
_CHUNK = 2**16


class Replica:
    """A gateway and the generation of its routes; `monitor` is its monitor's socket."""

    def __init__(self, gateway: HaproxyGateway, options: GatewayConfig, monitor: Path) -> None:
        self.gateway = gateway
        self.monitor = monitor
        self._options = options
        self._lock = threading.Lock()
        self.table = control_port.NOTHING
        self._leaving = False

    @property
    def ready(self) -> bool:
        """Whether clients may send requests: it has routes and does not end."""
        return self.table.generation > 0 and not self._leaving

    def take(self, table: Table) -> bool:
        """Commit newer routes, with more slots where they need them; False for routes that are not newer."""
        with self._lock:
            if table.generation <= self.table.generation:
                return False
            self.gateway.start(self._options, endpoints=len(table.routes))
            self.gateway.commit(table.routes)
            self.table = table
            return True

    def leave(self, *, notice_s: float, drain_s: float) -> None:
        """Stop being ready, serve for `notice_s`, let requests finish for up to `drain_s`, and end."""
        self._leaving = True
        time.sleep(notice_s)
        self.gateway.finish(drain_s)
        self.gateway.stop()


class ControlServer(QueuingHTTPServer):
    """The control port; the caller serves and closes it. Readiness needs no token."""

    def __init__(self, replica: Replica, address: tuple[str, int], token: str) -> None:
        self.replica = replica
        self.token = token
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise GatewayError(f"port {address[1]} (control) cannot be used: {error.strerror}") from error


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ControlServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == control_port.READY:
            self._answer(200 if self.server.replica.ready else 503)
        else:
            self.do_POST()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        permitted = hmac.compare_digest(
            self.headers.get("Authorization", "").encode(), f"Bearer {self.server.token}".encode()
        )
        if not permitted or size > _LONGEST_BODY:
            # The body stays unread, so the connection cannot be used again.
            self.close_connection = True
            self._answer(401 if size <= _LONGEST_BODY else 413)
            return
        body, replica = self.rfile.read(size), self.server.replica
        try:
            match self.command, self.path:
                case "GET", control_port.ROUTES:
                    self._answer_routes(replica.table)
                case "PUT", control_port.ROUTES:
                    taken = replica.take(control_port.TABLE.validate_json(body))
                    self._answer(200 if taken else 409)
                case "POST", control_port.IN_FLIGHT:
                    found = replica.gateway.in_flight(control_port.BACKEND.validate_json(body))
                    self._answer(200, control_port.IN_FLIGHT_COUNTS.dump_json(found))
                case "POST", control_port.DISCOUNTS:
                    said = control_port.DISCOUNT.validate_json(body)
                    replica.gateway.discount(said.server, said.counters)
                    self._answer(200)
                case "POST", control_port.MONITOR:
                    self._pass_on_monitor(body)
                case _:
                    self._answer(404)
        except ValueError as error:
            self._answer(400, str(error).encode())
        except TrisectError as error:
            self._answer(500, str(error).encode())

    def _answer_routes(self, table: Table) -> None:
        if self.headers.get("If-None-Match") == str(table.generation):
            self._answer(304)
        else:
            self._answer(200, control_port.TABLE.dump_json(table))

    def _pass_on_monitor(self, query: bytes) -> None:
        """Pass a query to the monitor and its answer back, for as long as both are there."""
        self.close_connection = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as answer:
            answer.connect(str(self.server.replica.monitor))
            answer.sendall(query + b"\n")
            self.send_response(200)
            self.end_headers()
            while data := answer.recv(_CHUNK):
                self.wfile.write(data)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes would fill the log."""


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description="One replica of a fleet's gateway.")
    parser.add_argument("--state", type=Path, required=True, help="an empty directory of its own")
    parser.add_argument("--token-file", type=Path, required=True, help="the control port's token")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument("--control-port", type=int, default=8003)
    parser.add_argument("--tls-cert", help="a PEM file; with it all ports of clients speak TLS")
    parser.add_argument("--tls-key")
    parser.add_argument("--plain-text", action="store_true", help="accept clients without TLS")
    parser.add_argument("--notice-s", type=float, default=5.0, help="until load balancers know it ends")
    parser.add_argument("--drain-s", type=float, default=30.0, help="for requests to finish")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM."""
    options = parsed(arguments)
    # Routes of an earlier container may be old, and stopped servers' addresses may be others' by now.
    shutil.rmtree(options.state, ignore_errors=True)
    protection = AccessConfig(options.tls_cert, options.tls_key, plain_text=options.plain_text)
    listening = GatewayConfig(
        options.host, options.http_port, options.grpc_port, options.metrics_port, protection=protection
    )
    gateway = HaproxyGateway(options.state)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    try:
        token = options.token_file.read_text().strip()
        replica = Replica(gateway, listening, GatewayPaths.of(options.state).monitor_socket)
        control = ControlServer(replica, (options.host, options.control_port), token)
        gateway.start(listening)
    except (OSError, TrisectError) as error:
        print(error, file=sys.stderr)
        return 5
    threading.Thread(target=control.serve_forever, daemon=True).start()
    ending.wait()
    replica.leave(notice_s=options.notice_s, drain_s=options.drain_s)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
