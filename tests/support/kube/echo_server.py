"""A Triton in a pod that serves the echo model of the gateway's tests, without Trisect's launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.domain.fleet import Backend
from kube import images
from kube.cluster import Cluster, is_true

MODEL = Path(__file__).parents[1] / "gateway_models" / "echo"
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
UNPRIVILEGED = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def start(cluster: Cluster, namespace: str, name: str) -> Backend:
    """Start it, and return where it answers once it is ready."""
    where = f"/api/v1/namespaces/{namespace}"
    files = {"config.pbtxt": MODEL / "config.pbtxt", "model.py": MODEL / "1" / "model.py"}
    data = {file: path.read_text() for file, path in files.items()}
    cluster.create(f"{where}/configmaps", {"metadata": {"name": name}, "data": data})
    cluster.create(f"{where}/pods", _pod(name))
    pod = cluster.await_until(f"{where}/pods/{name}", is_true("Ready"))
    return Backend(name, pod["status"]["podIP"], 8000, 8001)


def _pod(name: str) -> dict[str, Any]:
    items = [{"key": "config.pbtxt", "path": "config.pbtxt"}, {"key": "model.py", "path": "1/model.py"}]
    container = {
        "name": "triton",
        "image": images.TRITON,
        "imagePullPolicy": "Never",
        "command": [
            *("/opt/tritonserver/bin/tritonserver", f"--id={name}", "--model-repository=/models"),
            *("--backend-directory=/opt/tritonserver/backends", "--disable-auto-complete-config"),
        ],
        "env": [{"name": "SERVER_NAME", "value": name}, {"name": "OPENBLAS_NUM_THREADS", "value": "1"}],
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": 8000}, "periodSeconds": 1},
        "securityContext": CONFINED,
        "volumeMounts": [
            {"name": "model", "mountPath": "/models/echo"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "model", "configMap": {"name": name, "items": items}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    spec = {"containers": [container], "volumes": volumes, "securityContext": UNPRIVILEGED}
    return {"metadata": {"name": name}, "spec": spec}
