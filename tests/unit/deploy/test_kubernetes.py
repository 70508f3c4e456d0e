"""The manifests in `deploy/kubernetes` are what a cluster accepts."""

import json
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import build
import manifests
import pytest
import yaml
from typer.testing import CliRunner

from controlplane.cli.main import app
from controlplane.domain.plan import Plan
from controlplane.files.plans import fleet_manifest
from controlplane.gateway.replicas import agent
from launchers.kubernetes import pod as gpu
from launchers.kubernetes.api import RULES, RoleRule
from launchers.kubernetes.options import PodOptions

CONTROLLER_RULES = (
    RoleRule("coordination.k8s.io", "leases", ("get", "create", "update")),
    RoleRule("trisect.dev", "fleets", ("get", "patch")),
    RoleRule("trisect.dev", "fleets/status", ("patch",)),
    RoleRule("", "events", ("create",)),
    RoleRule("", "configmaps", ("get", "patch")),
)
"""What a controller in the cluster needs beside them."""

USER_RULES = (
    RoleRule("trisect.dev", "fleets", ("get", "list", "create", "patch", "delete")),
    RoleRule("", "configmaps", ("create", "patch")),
    RoleRule("", "pods", ("get", "list")),
    RoleRule("", "pods/exec", ("get", "create")),
)
"""What a user needs for a fleet that controllers in the cluster keep; `exec` runs commands in their pods."""

GPU_RULES = (
    RoleRule("resource.k8s.io", "resourceclaims", ("create", "patch")),
    RoleRule("resource.k8s.io", "resourceslices", ("list",), cluster_wide=True),
)
"""What a fleet with GPUs needs where the cluster allocates them dynamically (DRA)."""

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"


def documents() -> list[dict[str, Any]]:
    files = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [document for file in files for document in yaml.safe_load_all((FOLDER / file).read_text())]


def one(kind: str, name: str = "trisect-gateway") -> dict[str, Any]:
    (found,) = (d for d in documents() if d["kind"] == kind and d["metadata"]["name"] == name)
    return found


def rules(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_manifests_have_no_problem() -> None:
    # No schema is published for definitions of custom resources; the cluster's tests apply that one.
    assert manifests.problems([d for d in documents() if d["kind"] != "CustomResourceDefinition"]) == []


ALL = (*RULES, *CONTROLLER_RULES, *GPU_RULES)


@pytest.mark.parametrize(
    ("kind", "name", "needed"),
    [
        ("Role", "trisect-controller", [r for r in ALL if not r.cluster_wide]),
        ("ClusterRole", "trisect-devices", [r for r in ALL if r.cluster_wide]),
        ("Role", "trisect-user", USER_RULES),
    ],
)
def test_a_role_has_exactly_the_permissions_that_are_needed(
    kind: str, name: str, needed: Sequence[RoleRule]
) -> None:
    assert rules(one(kind, name)) == {(r.group, r.resource, verb) for r in needed for verb in r.verbs}


def test_the_controller_runs_as_a_known_command() -> None:
    (container,) = one("Deployment", "trisect-controller")["spec"]["template"]["spec"]["containers"]
    parsed = CliRunner().invoke(app, [*container["args"], "--help"])
    assert parsed.exit_code == 0, parsed.output


def test_the_daemons_of_gpus_have_no_problem_and_the_folders_and_user_of_the_servers() -> None:
    (daemons,) = yaml.safe_load_all((FOLDER / "mps" / "daemons.yaml").read_text())
    assert manifests.problems([daemons]) == []
    pod = daemons["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["hostPath"]["path"] == gpu.DAEMON_FOLDER
    (container,) = pod["containers"]
    assert f"--reuid={PodOptions().user} " in container["args"][0]
    assert container["image"] == PodOptions().image


def test_every_file_is_a_resource_of_the_kustomization() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    others = {"kustomization.yaml", "Chart.yaml", "values.yaml"}
    assert sorted(listed) == sorted(p.name for p in FOLDER.glob("*.yaml") if p.name not in others)


def schema() -> dict[str, Any]:
    (version_,) = one("CustomResourceDefinition", "fleets.trisect.dev")["spec"]["versions"]
    return dict(version_["schema"]["openAPIV3Schema"])


def test_every_field_of_a_fleet_is_explained() -> None:
    unexplained = []

    def look(path: str, of: dict[str, Any]) -> None:
        for name, found in of.get("properties", of.get("items", {}).get("properties", {})).items():
            if "description" not in found:
                unexplained.append(f"{path}.{name}")
            look(f"{path}.{name}", found)

    look("fleet", schema())
    assert unexplained == []


def test_the_definition_admits_what_a_plan_is_written_as() -> None:
    """It names the fields of a plan by their names, and asks for none that a plan may leave out."""
    partition = build.partition("W1", 30.0, batch=4)
    document = json.loads(
        json.dumps(fleet_manifest("f", build.plan(partition, gpu="cpu-0"), allow_violations=True))
    )
    spec = schema()["properties"]["spec"]
    assert document["spec"].keys() == spec["properties"].keys()
    plan = spec["properties"]["plan"]
    assert set(plan["required"]) <= document["spec"]["plan"].keys()
    assert plan["properties"].keys() <= {"schema_version", *(one.name for one in fields(Plan))}
    gpu = plan["properties"]["gpus"]["items"]
    assert set(gpu["required"]) <= document["spec"]["plan"]["gpus"][0].keys()
    (planned,) = document["spec"]["plan"]["gpus"][0]["partitions"]
    assert set(gpu["properties"]["partitions"]["items"]["required"]) <= planned.keys()


def test_the_image_is_the_one_of_this_version() -> None:
    tag = f"trisect:{version('trisect')}"
    for name in ("trisect-gateway", "trisect-controller"):
        (container,) = one("Deployment", name)["spec"]["template"]["spec"]["containers"]
        assert container["image"] == tag
        images = [one["value"] for one in container.get("env", ()) if one["name"] == "TRISECT_IMAGE"]
        assert images in ([], [PodOptions().image])
    assert tag in (ROOT / "deploy" / "Dockerfile").read_text()


def test_a_gateway_has_no_rights_at_the_api_server() -> None:
    spec = one("Deployment")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert one("ServiceAccount")["automountServiceAccountToken"] is False


def test_a_gateway_has_time_to_finish_its_requests() -> None:
    options = agent.parsed(["--state=s", "--token-file=t"])
    grace_s = one("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > options.notice_s + options.drain_s + 10
