"""The exact objects of a server in a cluster, which also pass the strict schemas and the lint."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import problems

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from launchers.kubernetes.files import RenderedFiles, config_map, disruption_budget
from launchers.kubernetes.options import ModelVolume, PodOptions
from launchers.kubernetes.pod import PodPlace, by_claim, by_daemon, pod, shared_claim
from launchers.triton import program

HERE = Path(__file__).parent / "kubernetes"
UUID = "GPU-11111111-2222-3333-4444-555555555555"
FILES = RenderedFiles(
    {"W1/config.pbtxt": 'backend: "onnxruntime"\n'},
    {"W1/1": "alexnet/1", "W1/labels.txt": "alexnet/labels.txt"},
)


def server(device: str, memory_mb: float | None = None, *, role: Role = Role.ACTIVE) -> Server:
    labels = Labels("default", "a1b2c3", "W1", role, "d4e5f6")
    spec = ServerSpec(labels, "/srv/rendered/W1", ("W1",), device, 37.5, memory_mb, memory_mb)
    return Server("", spec, ServerState.RUNNING, "", *program.PORTS, "cpu-limit")


def objects(kind: str) -> list[dict[str, Any]]:
    options = PodOptions("registry.example/triton@sha256:abc")
    place = PodPlace("node-1")
    one = server("node-1/cpu-3")
    claims = []
    match kind:
        case "cpu":
            one = server("node-1/cpu-3", 512.0)
            options = PodOptions(
                options.image, models=ModelVolume.parse("pvc:models"), priority_class="trisect"
            )
        case "mps_daemon":
            one = server(f"node-1/{UUID}", 4096.0)
            place = PodPlace("node-1", by_daemon(UUID))
            models = ModelVolume.parse("image:registry.example/models:7")
            options = PodOptions(options.image, models=models, runtime_class="nvidia")
        case "shared_claim":
            one = server(f"node-1/{UUID}", role=Role.SHADOW)
            place = PodPlace("node-1", by_claim(UUID))
            options = PodOptions(options.image, models=ModelVolume.parse("host:/srv/models"))
            claims = [shared_claim(UUID)]
    made = [config_map(one.spec, FILES), disruption_budget(one.spec)]
    return [o.to_dict() for o in (*claims, *made, pod(one, FILES, place, options))]


@pytest.mark.parametrize("kind", ["cpu", "mps_daemon", "shared_claim"])
def test_objects_of_a_server(kind: str) -> None:
    made = objects(kind)
    assert problems(made) == []
    assert yaml.safe_dump_all(made, sort_keys=False, width=110) == (HERE / f"{kind}.yaml").read_text()
