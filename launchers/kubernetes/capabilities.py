"""What a cluster has of what a fleet needs: the lines of `ctl doctor --launcher kubernetes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import Node

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.ports import Capability
from launchers.kubernetes import devices
from launchers.kubernetes.api import RULES, ClusterApi, RoleRule
from launchers.kubernetes.files import RenderedFiles
from launchers.kubernetes.options import MODELS, PodOptions
from launchers.kubernetes.pod import PodPlace, pod
from launchers.triton import program

_OLDEST_RESIZE = (1, 33)


def capabilities(connect: Callable[[], ClusterApi], options: PodOptions) -> tuple[Capability, ...]:
    """Return the lines; one only where no cluster answers."""
    try:
        api = connect()
        version = api.version()
    except (EngineError, InputError) as error:
        remedy = "set KUBECONFIG, or install the cluster's kubeconfig as ~/.kube/config"
        return (Capability("kubernetes", False, str(error), remedy),)
    return (
        Capability("kubernetes", True, f"{version} at {api.server}, namespace {api.namespace}"),
        _resize(version),
        _line("permissions", lambda: _permissions(api)),
        _line("nodes", lambda: _nodes(api)),
        _line("pods", lambda: _admission(api, options)),
        _line("models", lambda: _models(options)),
        Capability("live batches", False, "pods keep theirs: a plan with other batches starts other pods"),
    )


_Found = tuple[bool, str, str | None]
"""Whether it is available, the detail, and the way out."""


def _line(subject: str, check: Callable[[], _Found]) -> Capability:
    name = f"kubernetes {subject}"
    try:
        return Capability(name, *check())
    except EngineError as error:
        return Capability(name, False, str(error))


def _resize(version: str) -> Capability:
    major, minor = (int(part) for part in version.split(".")[:2])
    able = (major, minor) >= _OLDEST_RESIZE
    remedy = None if able else "upgrade to 1.33 or newer; until then a changed share is a new pod"
    return Capability("kubernetes resize in place", able, f"Kubernetes {version}", remedy)


def _permissions(api: ClusterApi) -> _Found:
    missing = [
        replace(rule, verbs=verbs)
        for rule in RULES
        if (verbs := tuple(verb for verb in rule.verbs if not _may(api, rule, verb)))
    ]
    if not missing:
        return True, f"all {len(RULES)} rules are granted", None
    remedy = "ask the cluster's administrator for a Role with these rules"
    return False, "missing: " + "; ".join(map(str, missing)), remedy


def _may(api: ClusterApi, rule: RoleRule, verb: str) -> bool:
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


def _nodes(api: ClusterApi) -> _Found:
    found = api.find(Node)
    cores = sum(map(devices.cores, found))
    gpus = len(devices.sliced_gpus(api))
    detail = f"{len(found)} nodes with {cores} cores, {gpus} GPUs in ResourceSlices"
    if gpus:
        detail += (
            ": shared where the DRA driver is 0.5 or newer, its gate MPSSupport on (alpha, off by default)"
        )
    return bool(found), detail, None if found else "add a node"


def _admission(api: ClusterApi, options: PodOptions) -> _Found:
    """Try a pod of ours without creating it: admission checks security, quotas and classes."""
    labels = Labels("doctor", "none", "doctor", Role.PROFILE, "none")
    spec = ServerSpec(labels, "/", ("doctor",), "doctor/cpu-0", 20.0)
    server = Server("", spec, ServerState.RUNNING, "", *program.PORTS)
    api.admits(pod(server, RenderedFiles({}, {}), PodPlace("doctor"), options))
    return True, f"a pod of {options.image} is admitted", None


def _models(options: PodOptions) -> _Found:
    if options.models is None:
        remedy = f"set {MODELS} to pvc:NAME, image:REFERENCE or host:/PATH"
        return False, "no volume holds the model repository", remedy
    return True, f"{options.models.kind}:{options.models.source}", None
