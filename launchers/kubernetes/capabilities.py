"""What a cluster has of what a fleet needs: the lines of `ctl doctor --launcher kubernetes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import Node

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.ports import Capability
from launchers.kubernetes import devices
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.files import RenderedFiles
from launchers.kubernetes.options import MODELS, PodOptions
from launchers.kubernetes.permissions import RULES, Rule
from launchers.kubernetes.pod import PORTS, Placement, pod

_OLDEST_RESIZE = (1, 33)
_Line = tuple[bool, str, str | None]
"""Whether it is available, the detail, and the remedy."""
_ROLE = "ask the cluster's administrator for a Role with these rules"


def capabilities(connect: Callable[[], ClusterApi], options: PodOptions) -> tuple[Capability, ...]:
    """Return the lines; one only where no cluster answers."""
    try:
        api = connect()
        version = api.version()
    except (EngineError, InputError) as error:
        remedy = "set KUBECONFIG, or install the cluster's kubeconfig as ~/.kube/config"
        return (Capability("kubernetes", False, str(error), remedy),)
    where = f"{version} at {api.server}, namespace {api.namespace}"
    lines = (_resize(version), *_checked(api, options))
    return (Capability("kubernetes", True, where), *lines)


def _resize(version: str) -> Capability:
    major, minor = (int(part) for part in version.split(".")[:2])
    able = (major, minor) >= _OLDEST_RESIZE
    remedy = None if able else "upgrade to 1.33 or newer; until then a changed share is a new pod"
    return Capability("kubernetes resize in place", able, f"Kubernetes {version}", remedy)


def _checked(api: ClusterApi, options: PodOptions) -> Iterator[Capability]:
    checks: dict[str, Callable[[], _Line]] = {
        "permissions": lambda: _permissions(api),
        "nodes": lambda: _nodes(api),
        "pods": lambda: _admission(api, options),
        "models": lambda: _models(options),
    }
    for name, check in checks.items():
        try:
            found, detail, remedy = check()
        except EngineError as error:
            found, detail, remedy = False, str(error), None
        yield Capability(f"kubernetes {name}", found, detail, remedy)


def _permissions(api: ClusterApi) -> _Line:
    lacking = [missing for rule in RULES if (missing := _lacking(api, rule)) is not None]
    if not lacking:
        return True, f"all {len(RULES)} rules are granted", None
    return False, "missing: " + "; ".join(map(str, lacking)), _ROLE


def _lacking(api: ClusterApi, rule: Rule) -> Rule | None:
    """Return the verbs of a rule that are not granted; None where all are."""
    missing = tuple(verb for verb in rule.verbs if not _may(api, rule, verb))
    return Rule(rule.group, rule.resource, missing, rule.cluster_wide) if missing else None


def _may(api: ClusterApi, rule: Rule, verb: str) -> bool:
    resource, _, subresource = rule.resource.partition("/")
    asked = ResourceAttributes(
        group=rule.group,
        resource=resource,
        subresource=subresource or None,
        verb=verb,
        namespace=None if rule.cluster_wide else api.namespace,
    )
    review = SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=asked))
    status = api.create(review).status
    return status is not None and bool(status.allowed)


def _nodes(api: ClusterApi) -> _Line:
    found = api.find(Node)
    cores = sum(map(devices.cores, found))
    gpus = len(devices.sliced_gpus(api))
    detail = f"{len(found)} nodes with {cores} cores, {gpus} GPUs in ResourceSlices"
    return bool(found), detail, None if found else "add a node"


def _admission(api: ClusterApi, options: PodOptions) -> _Line:
    """Try a pod of ours without creating it: admission checks security, quotas and classes."""
    labels = Labels("doctor", "none", "doctor", Role.PROFILE, "none")
    spec = ServerSpec(labels, "/", ("doctor",), "doctor/cpu-0", 20.0)
    server = Server("", spec, ServerState.RUNNING, "", PORTS.http, PORTS.grpc, PORTS.metrics)
    api.admits(pod(server, RenderedFiles({}, {}), Placement("doctor"), options))
    return True, f"a pod of {options.image} is admitted", None


def _models(options: PodOptions) -> _Line:
    if options.models is None:
        remedy = f"set {MODELS} to pvc:NAME, image:REFERENCE or host:/PATH"
        return False, "no volume holds the model repository", remedy
    return True, f"{options.models.kind}:{options.models.source}", None
