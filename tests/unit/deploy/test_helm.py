"""The Helm chart renders what the kustomization does: both are made of the same manifests."""

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import manifests
import pytest
import yaml

from deploy import release
from launchers.kubernetes.options import PodOptions

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
UNPACKED = ROOT / ".tools" / "helm"
NOT_TESTED = "HELM NOT TESTED: there is no {}; `make test-packages` unpacks it where it may"
NAMESPACE = "trisect"
KEPT = "helm.sh/resource-policy"

Objects = dict[tuple[str, str], dict[str, Any]]


def program(name: str) -> str:
    unpacked = UNPACKED / name
    path = str(unpacked) if unpacked.exists() else shutil.which(name)
    if path is None:
        pytest.skip(NOT_TESTED.format(name))
    return path


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("helm"), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def objects(text: str) -> Objects:
    documents = [document for document in yaml.safe_load_all(text) if document]
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def rendered(*values: str, namespace: str = NAMESPACE, folder: Path = FOLDER) -> Objects:
    """The chart's objects with these values."""
    settings = [word for value in values for word in ("--set", value)]
    done = helm("template", "trisect", str(folder), "--namespace", namespace, *settings)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def pod(found: Objects, name: str) -> dict[str, Any]:
    return dict(found["Deployment", name]["spec"]["template"]["spec"])


def test_the_chart_renders_the_objects_of_the_kustomization() -> None:
    kustomize = [program("kubectl"), "kustomize", str(FOLDER)]
    built = subprocess.run(kustomize, capture_output=True, text=True, timeout=60, check=True).stdout
    chart, kustomization = rendered(), objects(built)
    for one in (*chart.values(), *kustomization.values()):
        manager = one["metadata"]["labels"].pop("app.kubernetes.io/managed-by")
        assert manager in ("Helm", "kustomize")
    definition = chart["CustomResourceDefinition", "fleets.trisect.dev"]
    assert definition["metadata"].pop("annotations") == {KEPT: "keep"}, "its end would end every fleet"
    assert chart == kustomization


def test_a_chart_with_every_value_set_has_no_problem() -> None:
    found = rendered(
        "fleet=blue",
        "image=registry/trisect:1",
        "models=weights",
        "gateway.replicas=3",
        "gateway.resources.requests.cpu=2",
        "controller.replicas=1",
        "servers.image=triton:1",
        "servers.priorityClassName=high",
        "gateway.priorityClassName=higher",
        "imagePrefix=mirror",
        "imagePullSecrets={one,two}",
        "topologySpread.topologyKey=zone",
        "clusterWide=false",
        "mps=true",
    )
    assert manifests.problems(list(found.values())) == []
    assert {kind for kind, _ in found}.isdisjoint({"CustomResourceDefinition", "ClusterRole"})
    assert ("DaemonSet", "trisect-mps") in found
    text = yaml.safe_dump(list(found.values()))
    assert "trisect.dev/fleet: default" not in text
    gateway, controller = pod(found, "trisect-gateway"), pod(found, "trisect-controller")
    assert gateway["containers"][0]["resources"] == {"requests": {"cpu": 2}}
    assert found["Deployment", "trisect-gateway"]["spec"]["replicas"] == 3
    assert "--fleet=blue" in controller["containers"][0]["args"]
    variables = {one["name"]: one["value"] for one in controller["containers"][0]["env"]}
    assert variables["TRISECT_MODELS"] == "pvc:weights"
    assert variables["TRISECT_IMAGE"] == "mirror/triton:1"
    assert variables["TRISECT_PULL_SECRETS"] == "one,two"
    assert variables["TRISECT_PRIORITY_CLASS"] == "high"
    assert gateway["priorityClassName"] == "higher"
    daemons = found["DaemonSet", "trisect-mps"]["spec"]["template"]["spec"]
    for spec in (gateway, controller, daemons):
        assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    for spec in (gateway, controller):
        (spread,) = spec["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["maxSkew"]) == ("zone", 1)
    assert daemons["containers"][0]["image"].startswith("mirror/nvcr.io/")
    claims = [
        v["persistentVolumeClaim"]["claimName"]
        for v in controller["volumes"]
        if len(v) == 2 and "persistentVolumeClaim" in v
    ]
    assert claims == ["weights"]
    assert {one["containers"][0]["image"] for one in (gateway, controller)} == {"mirror/registry/trisect:1"}


def test_a_chart_without_the_values_that_a_former_one_did_not_have_is_that_of_the_defaults() -> None:
    """`helm upgrade --reuse-values` gives the values of the chart before."""
    later = ("servers", "monitoring", "imagePrefix", "imagePullSecrets", "topologySpread", "controller.env")
    assert rendered(*(f"{name}=null" for name in later)) == rendered()


def test_what_prometheus_reads_is_off_by_default() -> None:
    kinds = {"ServiceMonitor", "PrometheusRule"}
    assert kinds.isdisjoint({kind for kind, _ in rendered()})
    found = rendered("monitoring.serviceMonitor=true", "monitoring.prometheusRule=true")
    assert kinds <= {kind for kind, _ in found}
    selected = found["ServiceMonitor", "trisect"]["spec"]["selector"]["matchLabels"]
    service = found["Service", "trisect"]
    assert selected.items() <= service["metadata"]["labels"].items()
    (endpoint,) = found["ServiceMonitor", "trisect"]["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    alerts = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    assert found["PrometheusRule", "trisect"]["spec"] == alerts


def test_an_upgrade_changes_nothing_that_cannot_change() -> None:
    """The API server refuses another selector, and a claim or a definition of another name is another one."""
    found = rendered()
    for component in ("gateway", "controller"):
        name = f"trisect-{component}"
        assert found["Deployment", name]["spec"]["selector"]["matchLabels"] == {
            "app.kubernetes.io/component": component,
            "trisect.dev/fleet": "default",
        }
    assert found["Service", "trisect"]["spec"].get("clusterIP") is None
    definition = found["CustomResourceDefinition", "fleets.trisect.dev"]["spec"]
    assert (definition["scope"], definition["names"]["plural"]) == ("Namespaced", "fleets")
    assert [one["name"] for one in definition["versions"] if one["storage"]] == ["v1alpha1"]


BINDING = "ClusterRoleBinding"
OVERLAY = """
namespace: second
resources: [base]
patches:
  - target: {kind: ClusterRoleBinding, name: trisect-devices-trisect}
    patch: '[{"op": "replace", "path": "/metadata/name", "value": "trisect-devices-second"}]'
    options: {allowNameChange: true}
"""


def test_a_fleet_in_another_namespace_takes_no_right_from_the_first(tmp_path: Path) -> None:
    """The objects of the cluster that both name are equal."""
    (tmp_path / "kustomization.yaml").write_text(OVERLAY)
    shutil.copytree(FOLDER, tmp_path / "base")
    kustomize = [program("kubectl"), "kustomize", str(tmp_path)]
    built = subprocess.run(kustomize, capture_output=True, text=True, timeout=60, check=True).stdout
    first = rendered()
    for second in (rendered("clusterWide=false", namespace="second"), objects(built)):
        assert (BINDING, "trisect-devices-second") in second
        assert (BINDING, "trisect-devices-trisect") not in second
        (subject,) = second[BINDING, "trisect-devices-second"]["subjects"]
        assert (subject["name"], subject["namespace"]) == ("trisect-controller", "second")
        (subject,) = second["RoleBinding", "trisect-controller"]["subjects"]
        assert subject["namespace"] == "second"
        roles = [one["rules"] for (kind, _), one in second.items() if kind == "ClusterRole"]
        assert roles in ([], [first["ClusterRole", "trisect-devices"]["rules"]])


def test_a_releases_archive_is_the_chart(tmp_path: Path) -> None:
    archive = tmp_path / "trisect.tgz"
    archive.write_bytes(release.chart(0))
    assert helm("lint", str(archive)).returncode == 0
    monitoring = "monitoring.prometheusRule=true"
    assert rendered(monitoring, folder=archive) == rendered(monitoring)


def test_a_value_that_the_chart_does_not_know_is_refused() -> None:
    done = helm("template", "trisect", str(FOLDER), "--set", "flet=blue")
    assert done.returncode != 0
    assert "flet" in done.stderr


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == version("trisect")
    assert values["image"] == f"trisect:{version('trisect')}"
    assert values["servers"]["image"] == PodOptions().image
