"""A HAProxy in front of a Triton that logs which encodings requests accept and use, over both protocols."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from background import until
from gateway_rig import HOST, Triton
from host_ports import free_ports

from controlplane.domain.fleet import Backend

_RULES = """
  http-request set-var(txn.path) path
  http-request set-var(txn.http) req.fhdr(accept-encoding)
  http-request set-var(txn.used) req.fhdr(content-encoding)
  http-request set-var(txn.grpc) req.fhdr(grpc-accept-encoding)
"""
_CONFIG = """
global
  log stdout format raw local0
defaults
  mode http
  log global
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  log-format "%[var(txn.path)] %[var(txn.http)] %[var(txn.used)] %[var(txn.grpc)] %[var(txn.flag)]"
frontend http
  bind {host}:{http}
  {rules}
  default_backend http
frontend grpc
  bind {host}:{grpc} proto h2
  {rules}
  http-request wait-for-body time 10s at-least 5
  http-request set-var(txn.flag) req.body,bytes(0,1),hex
  default_backend grpc
backend http
  server triton {host}:{triton.http_port}
backend grpc
  server triton {host}:{triton.grpc_port} proto h2
"""


@dataclass(frozen=True)
class Seen:
    """What one inference request said of encodings; "-" where it did not.

    `flag` is the first byte of a gRPC call's first message: "01" where it is compressed.
    """

    accepted: str
    used: str
    grpc_accepted: str
    flag: str


@dataclass(frozen=True)
class HeaderLog:
    """The address that stands for the Triton, and what came over it."""

    backend: Backend
    path: Path

    def inferences(self, count: int) -> list[Seen]:
        """All inference requests so far, once there are `count`."""
        until(lambda: len(self._seen()) >= count)
        return self._seen()

    def _seen(self) -> list[Seen]:
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [Seen(*rest) for path, *rest in lines if path.endswith(("nfer", "/generate"))]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@contextlib.contextmanager
def header_log(directory: Path, triton: Triton) -> Iterator[HeaderLog]:
    """Runs while the block does."""
    http, grpc = free_ports(2)
    config, log = directory / "header_log.cfg", directory / "header_log.txt"
    config.write_text(_CONFIG.format(host=HOST, rules=_RULES, http=http, grpc=grpc, triton=triton))
    with log.open("wb") as out:
        process = subprocess.Popen(["/usr/sbin/haproxy", "-db", "-f", str(config)], stdout=out)
    try:
        until(lambda: all(map(_listens, (http, grpc))))
        yield HeaderLog(Backend(triton.name, HOST, http, grpc, triton.metrics_port), log)
    finally:
        process.kill()
        process.wait()
