"""Throughput through the gateway with TLS, with tokens, and with both, against plain: ratios of one run.

`python -m benchmarks.serving.security [--rounds 5] [--window-ms 1500] [--connections 8]`: four gateways in
front of one Triton, measured in turn over kept connections, so that the host's other work meets all of them.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import gateway_rig as rig
from certificates import Authority
from perf_client import closed_loop

from benchmarks.harness import Figures
from controlplane.domain.fleet import AccessConfig, Route
from controlplane.files.gateway.access import Client
from controlplane.gateway.security.registry import ClientRegistry

AIM = 0.9


Way = tuple[rig.Ports, Path | None, str | None]
"""A gateway's ports, the authority of its certificate and a token, where there are."""


def drive(protocol: str, way: Way, given: argparse.Namespace) -> float:
    """Requests a second of a closed loop."""
    ports, ca, token = way
    port = ports.grpc if protocol == "grpc" else ports.http
    scheme = "https://" if ca is not None and protocol == "http" else ""
    secured: tuple[str, ...] = ()
    if ca is not None and protocol == "grpc":
        secured = ("--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", str(ca))
    elif ca is not None:
        secured = ("--ssl-https-ca-certificates-file", str(ca))
    authorised = () if token is None else ("-H", f"authorization: Bearer {token}")
    address, shape = f"{scheme}{rig.HOST}:{port}", ("--shape", "INPUT:16")
    return closed_loop(protocol, address, given.connections, given.window_ms, *shape, *secured, *authorised)[
        0
    ]


def main() -> int:
    """0 where every ratio reaches the aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window-ms", type=int, default=1500)
    parser.add_argument("--connections", type=int, default=8)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        triton = stack.enter_context(rig.tritons(here, one={"echo": "echo"}))["one"]
        authority = Authority(here)
        server = authority.sign("gateway")
        tls = AccessConfig(certificate=str(server.certificate), key=str(server.key))
        kinds = {
            "plain": AccessConfig(),
            "TLS": tls,
            "tokens": AccessConfig(tokens=True),
            "both": replace(tls, tokens=True),
        }
        ways: dict[str, Way] = {}
        for name, protection in kinds.items():
            (here / name).mkdir()
            gateway, ports = stack.enter_context(rig.a_gateway(here / name, protection=protection))
            gateway.commit({"echo": Route((triton.backend,))})
            registry = ClientRegistry(here / name / "gateway")
            token = registry.create(Client("bench", ("*",), operator=True)) if protection.tokens else None
            ways[name] = (ports, authority.certificate if protection.certificate else None, token)
        figures = Figures()
        for protocol in ("http", "grpc"):
            rates: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(given.rounds):
                for name, way in ways.items():
                    rates[name].append(drive(protocol, way, given))
            for name, seen in rates.items():
                ratio = statistics.median(a / b for a, b in zip(seen, rates["plain"], strict=True))
                figures.add(f"{protocol}, {name}", statistics.median(seen), "req/s")
                if name != "plain":
                    figures.add(f"{protocol}, {name}, over plain", ratio, at_least=AIM)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
