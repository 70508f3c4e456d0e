"""What `kubectl` shows of a Fleet, and what the API server refuses; no controller runs."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube.cluster import Cluster
from kube.installed import FOLDER
from kube.own_image import ROOT
from kube.processes import program

from controlplane.domain.fleet import Cluster as Place
from controlplane.domain.observation import Event, FleetReport, FleetStanding
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.leading.fleets import FleetObject

GOLDEN = ROOT / "tests" / "golden" / "kubernetes"
FLEET = (ROOT / "examples" / "kubernetes" / "fleet.yaml").read_text()
BROKEN = FLEET.replace("violations: []", "violations: [{subject: a}]")
NAMESPACE = "shown"
PARTITION = "models: [{model: m}], workloads: [{name: w}]"
"""More of a partition than its id and its percentage."""


def kubectl(kubeconfig: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [program("kubectl"), f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def kubeconfig(cluster: Cluster) -> Iterator[Path]:
    cluster.namespace(NAMESPACE)
    kubectl(
        cluster.kubeconfig, "apply", "--server-side", "-f", str(FOLDER / "fleets.yaml")
    ).check_returncode()
    established = "--for=condition=Established"
    kubectl(cluster.kubeconfig, "wait", "crd/fleets.trisect.dev", established).check_returncode()
    yield cluster.kubeconfig
    cluster.forget(NAMESPACE)


def beside(text: str) -> str:
    """The example's plan with something more in it."""
    return FLEET.replace("    infeasible: []", f"    {text}\n    infeasible: []")


def on_a_second_core(*partitions: str) -> str:
    """The example's plan with a second GPU."""
    listed = ", ".join(f"{{{one}, {PARTITION}}}" for one in partitions)
    return beside(f"- {{id: cpu-1, type: cpu, partitions: [{listed}]}}")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (FLEET.replace("percent: 40.0", "percent: 140.0"), "spec.plan.gpus[0].partitions[0].percent"),
        (on_a_second_core("id: a, percent: 60", "id: b, percent: 60"), "spec.plan.gpus[1].partitions"),
        (on_a_second_core().replace("cpu-1", "cpu-0"), ".spec.plan.gpus"),
        (BROKEN, "spec.plan.violations"),
        (beside("serve: {late_binding: {}}"), "spec.plan.serve"),
        (beside("serve: {follow_load: {}}"), "spec.plan.serve"),
        (FLEET.replace("schema_version: 1", "schema_version: 2"), "spec.plan.schema_version"),
    ],
)
def test_a_wrong_fleet_is_refused_with_its_field_and_the_old_plan_stays(
    kubeconfig: Path, wrong: str, field: str
) -> None:
    kubectl(kubeconfig, "apply", "--server-side", "-f", "-", given=FLEET).check_returncode()
    before = kubectl(kubeconfig, "get", "fleet", "default", "-o=jsonpath={.metadata.generation}").stdout
    done = kubectl(kubeconfig, "apply", "--server-side", "-f", "-", given=wrong)
    assert done.returncode == 1
    assert field in done.stderr, done.stderr
    after = kubectl(kubeconfig, "get", "fleet", "default", "-o=jsonpath={.metadata.generation}").stdout
    assert after == before


@pytest.mark.parametrize(
    "right",
    [
        beside("serve: {follow_load: null, late_binding: null}"),
        beside('serve: {follow_load: {}}\n    spec: "a spec"'),
        FLEET.replace("violations: []", "violations: [{subject: a}]").replace(
            "Violations: false", "Violations: true"
        ),
    ],
)
def test_what_a_plan_may_say_is_taken(kubeconfig: Path, right: str) -> None:
    done = kubectl(kubeconfig, "apply", "--server-side", "--dry-run=server", "-f", "-", given=right)
    assert done.returncode == 0, done.stderr


def stand(kubeconfig: Path) -> None:
    """Have the object say how a fleet stands, as a leader does."""
    kept = FleetObject(ClusterApi(Place(namespace=NAMESPACE)), "default", "trisect-controller-1")
    assert kept.read() is not None
    kept.report(FleetReport(1, True, "Applied", "2 servers", "a1b2c3", 1, {"cpu-0": "a/cpu-0"}))
    kept.show(FleetStanding(1, 1, 1, 2, 1.25, "WithoutShadow", "classify: no shadow stands by"))
    moved = "default.classify.active.1 -> default.classify.shadow.1: its pod ended: it was deleted"
    kept.announce(Event(1.7e9, "warning", "redirect", "classify", moved))


def without_times(text: str) -> str:
    """What `kubectl` prints, without what differs from run to run."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME", text)
    text = re.sub(r"(UID|Resource Version|Generation): .*", r"\1: N", text)
    return re.sub(r"\s+\b(\d+[smhdy])+\b", "  AGE", text)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("kubectl_get.txt", ("get", "fleets")),
        ("kubectl_get_wide.txt", ("get", "fleets", "-o", "wide")),
        ("kubectl_describe.txt", ("describe", "fleet", "default")),
        ("kubectl_explain.txt", ("explain", "fleet.spec", "--recursive")),
        ("kubectl_explain_plan.txt", ("explain", "fleet.spec.plan")),
    ],
)
def test_kubectl_shows_a_fleet(
    kubeconfig: Path, name: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    kubectl(kubeconfig, "delete", "fleet", "default", "--ignore-not-found").check_returncode()
    kubectl(kubeconfig, "delete", "events", "--all").check_returncode()
    kubectl(kubeconfig, "apply", "--server-side", "-f", "-", given=FLEET).check_returncode()
    stand(kubeconfig)
    shown = without_times(kubectl(kubeconfig, *arguments).stdout)
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(shown)
    assert shown == (GOLDEN / name).read_text()
