"""A fleet is ready once what was planned is served, and stays so."""

from pathlib import Path

import gateway_rig as rig
import grpc
import tritonclient.grpc as tg
import tritonclient.http as th

from controlplane.domain.fleet import Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes

_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"


def ready(ports: rig.Ports) -> set[bool]:
    """What every way to ask says."""
    address = f"{rig.HOST}:{ports.grpc}"
    with (
        th.InferenceServerClient(f"{rig.HOST}:{ports.http}") as over_http,
        tg.InferenceServerClient(address) as over_grpc,
        grpc.insecure_channel(address) as channel,
    ):
        health = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)
        assert health in (_SERVING, _NOT_SERVING)
        return {over_http.is_server_ready(), over_grpc.is_server_ready(), health == _SERVING}


def test_ready_from_the_first_routes_on(tmp_path: Path) -> None:
    with rig.a_gateway(tmp_path) as (made, ports), rig.tritons(tmp_path, one={"echo": "echo"}) as running:
        assert ready(ports) == {False}
        made.commit({"echo": Route((running["one"].backend,))})
        assert ready(ports) == {True}
        places = GatewayPaths.of(tmp_path / "gateway")
        rig.replaced(places, processes.FACADE)
        made.start(rig.options(ports))
        assert ready(ports) == {True}
        running["one"].kill()
        with th.InferenceServerClient(f"{rig.HOST}:{ports.http}") as client:
            assert not client.is_model_ready("echo")
        assert ready(ports) == {True}
