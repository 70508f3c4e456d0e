"""Every case runs against a bare Triton and against the gateway, with the same assertions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gateway_rig as rig
import pytest
import tritonclient.grpc as tg
from gateway_clients import CLIENTS, Talk, Target

from controlplane.domain.fleet import Route

COUNTED = {"counted": "echo", "tally": "echo"}
"""The second is another name of the first. One test only asks them for answers, and counts these."""


@pytest.fixture(scope="package")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    here = tmp_path_factory.mktemp("compatibility")
    left = {"echo": "echo", "twin": "echo", "slow": "slow", "text": "text", **COUNTED}
    right = {"repeat": "repeat", "again": "repeat", "total": "total", "other": "echo"}
    with (
        rig.tritons(here, bare=left | right, left=left, right=right) as running,
        rig.a_gateway(here) as (gateway, ports),
    ):
        gateway.commit(
            {name: Route((running["left" if name in left else "right"].backend,)) for name in left | right}
        )
        bare = running["bare"]
        yield {
            "bare": Target(
                f"{rig.HOST}:{bare.http_port}", f"{rig.HOST}:{bare.grpc_port}", here / "bare/slow"
            ),
            "gateway": Target(f"{rig.HOST}:{ports.http}", f"{rig.HOST}:{ports.grpc}", here / "left/slow"),
        }


@pytest.fixture(params=["bare", "gateway"])
def target(request: pytest.FixtureRequest, targets: dict[str, Target]) -> Target:
    return targets[request.param]


@pytest.fixture(params=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(kind: str, target: Target) -> Iterator[Any]:
    made = CLIENTS[kind].InferenceServerClient(getattr(target, kind))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def talk(target: Target) -> Iterator[Talk]:
    with tg.InferenceServerClient(target.grpc) as client:
        made = Talk(client)
        yield made
        client.stop_stream()
