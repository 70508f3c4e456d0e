"""What is wrong with Kubernetes manifests: strict schemas, and a lint for what no schema catches."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import kubernetes_validate

SCHEMA = "1.34"
"""The oldest version with resource.k8s.io/v1, which shared claims of GPUs need."""

Manifest = Mapping[str, Any]
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PLAIN_RESOURCES = {"cpu", "memory", "ephemeral-storage"}
_GPU_STRATEGIES = {"MPS", "TimeSlicing"}


def problems(manifests: Sequence[Manifest]) -> list[str]:
    """Every problem of manifests that are applied together, each with its object."""
    found: list[str] = []
    for one in manifests:
        where = f"{one['kind']}/{one['metadata']['name']}"
        checks = (_schema, _names, _labels, _pod_problems, _gpu_config)
        found += [f"{where}: {problem}" for check in checks for problem in check(one)]
        found += [f"{where}: {problem}" for problem in _references(one, manifests)]
    return found


def _schema(one: Manifest) -> Iterator[str]:
    try:
        kubernetes_validate.validate(dict(one), SCHEMA, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield str(error)


def _names(one: Manifest) -> Iterator[str]:
    if not _NAME.fullmatch(one["metadata"]["name"]):
        yield "an illegal name"


def _labels(one: Manifest) -> Iterator[str]:
    template = one.get("spec", {}).get("template", {})
    for metadata in (one["metadata"], template.get("metadata", {})):
        for key, value in metadata.get("labels", {}).items():
            if not _LABEL.fullmatch(value):
                yield f"label {key} has the illegal value {value!r}"


def pod_spec(one: Manifest) -> Mapping[str, Any]:
    """The pod's spec in a manifest; empty for one without."""
    if one["kind"] == "Pod":
        return dict(one["spec"])
    return dict(one.get("spec", {}).get("template", {}).get("spec", {}))


def _pod_problems(one: Manifest) -> Iterator[str]:
    spec = pod_spec(one)
    if spec.get("nodeName"):
        yield "nodeName passes by the scheduler: use nodeSelector"
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    claims = {claim["name"] for claim in spec.get("resourceClaims", ())}
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        yield from _container_problems(container, volumes, claims)


def _container_problems(container: Mapping[str, Any], volumes: set[str], claims: set[str]) -> Iterator[str]:
    mounts = container.get("volumeMounts", ())
    yield from (f"mount of an unknown volume {m['name']}" for m in mounts if m["name"] not in volumes)
    paths = [m["mountPath"] for m in mounts]
    yield from (f"two mounts at {path}" for path in {p for p in paths if paths.count(p) > 1})
    resources = container.get("resources", {})
    for claim in resources.get("claims", ()):
        if claim["name"] not in claims:
            yield f"the unknown claim {claim['name']}"
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name, amount in {**requests, **limits}.items():
        extended = name not in _PLAIN_RESOURCES
        if extended and not re.fullmatch(r"\d+", str(amount)):
            yield f"{name}: {amount} is no whole number of an extended resource"
        if extended and requests.get(name, amount) != limits.get(name):
            yield f"{name}: the request {requests.get(name)} is not the limit {limits.get(name)}"


def _gpu_config(one: Manifest) -> Iterator[str]:
    if one["kind"] != "ResourceClaim":
        return
    devices = one["spec"]["devices"]
    requests = {request["name"] for request in devices.get("requests", ())}
    for config in devices.get("config", ()):
        yield from (f"config of an unknown request {r}" for r in config["requests"] if r not in requests)
        told = config["opaque"]["parameters"]
        if (told.get("apiVersion"), told.get("kind")) != ("resource.nvidia.com/v1beta1", "GpuConfig"):
            yield f"unknown parameters {told.get('kind')}"
        sharing = told.get("sharing", {})
        if sharing.get("strategy") not in _GPU_STRATEGIES:
            yield f"unknown strategy {sharing.get('strategy')}"
        mps = sharing.get("mpsConfig", {})
        percentage = mps.get("defaultActiveThreadPercentage", 100)
        if not (isinstance(percentage, int) and 1 <= percentage <= 100):
            yield f"defaultActiveThreadPercentage: {percentage}"
        if not mps.get("multiUser"):
            yield "an MPS daemon of root's without multiUser, for pods of another user"


def _references(one: Manifest, manifests: Sequence[Manifest]) -> Iterator[str]:
    """Names of other objects, and selectors that must find something."""
    spec = pod_spec(one)
    known = {(other["kind"], other["metadata"]["name"]) for other in manifests}
    for claim in spec.get("resourceClaims", ()):
        if ("ResourceClaim", claim.get("resourceClaimName")) not in known:
            yield f"no ResourceClaim {claim.get('resourceClaimName')}"
    for volume in spec.get("volumes", ()):
        name = volume.get("configMap", {}).get("name")
        if name is not None and ("ConfigMap", name) not in known:
            yield f"no ConfigMap {name}"
    selector = _selector(one)
    if selector and not any(selector.items() <= labels.items() for labels in _pod_labels(one, manifests)):
        yield f"the selector {selector} finds no pod"


def _selector(one: Manifest) -> Mapping[str, str]:
    selector = one.get("spec", {}).get("selector") or {}
    if one["kind"] == "Service":
        return dict(selector)
    return dict(selector.get("matchLabels", {})) if isinstance(selector, Mapping) else {}


def _pod_labels(one: Manifest, manifests: Sequence[Manifest]) -> list[Mapping[str, str]]:
    """Labels of the pods that a selector may mean: the object's own template, else of all manifests."""
    sources = [one] if "template" in one.get("spec", {}) else manifests
    found = []
    for source in sources:
        metadata = source["metadata"] if source["kind"] == "Pod" else None
        metadata = metadata or source.get("spec", {}).get("template", {}).get("metadata", {})
        found.append(metadata.get("labels", {}))
    return found
