"""The demo's story in pods."""

import os
import subprocess
from pathlib import Path

from ctl_fleet import CTL, ROOT
from host_ports import free_ports
from kube import images
from kube.cluster import Cluster

NAMESPACE = "demo"


def test_the_demo_tells_its_story_in_pods(cluster: Cluster, triton_image: str, tmp_path: Path) -> None:
    cluster.namespace(NAMESPACE, security="privileged")
    http, grpc, metrics = map(str, free_ports(3))
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TRISECT_IMAGE": images.TRITON,
        "TRISECT_PULL": "never",
        "TRISECT_MODELS": f"host:{ROOT / 'model_repository'}",
    }
    ports = [f"--set=serve.listen.http={http}", f"--set=serve.listen.grpc={grpc}"]
    ports.append(f"--set=serve.listen.metrics={metrics}")
    where = ["--set=serve.launcher=kubernetes", f"--set=serve.namespace={NAMESPACE}"]
    where += ["--output", str(tmp_path / "rendered")]
    done = subprocess.run(
        [str(CTL), "demo", *where, *ports],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"] == []
    cluster.forget(NAMESPACE)
