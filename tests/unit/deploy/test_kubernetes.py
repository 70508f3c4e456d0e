"""The manifests in `deploy/kubernetes` are what a cluster accepts."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import manifests
import pytest
import yaml

from controlplane.gateway.replicas import agent

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"


def documents() -> list[dict[str, Any]]:
    files = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [document for file in files for document in yaml.safe_load_all((FOLDER / file).read_text())]


def one(kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents() if document["kind"] == kind)
    return found


def test_the_manifests_have_no_problem() -> None:
    assert manifests.problems(documents()) == []


def test_every_file_is_a_resource_of_the_kustomization() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(p.name for p in FOLDER.glob("*.yaml") if p.name != "kustomization.yaml")


def test_the_image_is_the_one_of_this_version() -> None:
    tag = f"trisect:{version('trisect')}"
    (container,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == tag
    assert tag in (ROOT / "deploy" / "Dockerfile").read_text()


def test_a_gateway_has_no_rights_at_the_api_server() -> None:
    spec = one("Deployment")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert one("ServiceAccount")["automountServiceAccountToken"] is False


def test_a_gateway_has_time_to_finish_its_requests() -> None:
    options = agent.parsed(["--state=s", "--token-file=t"])
    grace_s = one("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > options.notice_s + options.drain_s + 10
