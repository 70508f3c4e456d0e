"""The API of one cluster, in one namespace: lightkube's client with our errors and with patience.

The API server may throttle (429, with the seconds to wait) or be away for a moment. A call waits as asked and
tries again for up to PATIENCE_S, then raises NotNow.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
import lightkube
import msgspec
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core import decoders
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.core.resource import GlobalResource, NamespacedResource
from lightkube.resources.core_v1 import PodLog
from lightkube.types import PatchType

from controlplane.domain.errors import EngineError, InputError, NotNow
from controlplane.domain.fleet import Cluster
from launchers.kubernetes import names

ANSWER = httpx2.Timeout(10.0, connect=3.0)
PATIENCE_S = 20.0
_PAUSE_S = 0.5

Kind = TypeVar("Kind", bound=NamespacedResource | GlobalResource)
Result = TypeVar("Result")

_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group '
    r'"(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class RoleRule:
    """A rule of a Role, or with `cluster_wide` of a ClusterRole. `resource` may name a subresource."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    cluster_wide: bool = False

    def __str__(self) -> str:
        verbs = ", ".join(self.verbs)
        return f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"], verbs: [{verbs}]}}'


RULES = (
    RoleRule("", "pods", ("get", "list", "watch", "create", "delete")),
    RoleRule("", "pods/resize", ("patch",)),
    RoleRule("", "pods/log", ("get",)),
    RoleRule("", "configmaps", ("list", "create", "delete")),
    RoleRule("policy", "poddisruptionbudgets", ("create", "patch", "delete")),
    RoleRule("", "nodes", ("get", "list"), cluster_wide=True),
)
"""What every fleet needs."""


class Conflict(EngineError):
    """The object exists already, or is another one by now."""


class Gone(EngineError):
    """The object is not there."""


class Expired(EngineError):
    """The server has forgotten the version from which a watch was to continue: list again."""


def config_of(cluster: Cluster) -> SingleConfig:
    """Return the connection's settings. Raises InputError.

    Inside a pod without a kubeconfig, the pod's own service account and namespace.
    """
    if cluster.namespace is not None and not _NAMESPACE.fullmatch(cluster.namespace):
        problem = f"{cluster.namespace!r} is no namespace: use a-z, 0-9 and '-', at most 63 characters"
        raise InputError(problem, field="namespace")
    try:
        found = KubeConfig.from_env().get(cluster.context)
    except (ConfigError, KeyError, OSError, ValueError) as error:
        problem = f"no cluster: {error}; set KUBECONFIG, or name a context that it has"
        raise InputError(problem, field="context") from error
    if found is None:
        raise InputError("the kubeconfig names no current context", field="context")
    return found


class ClusterApi:
    """Calls of the API server; they raise EngineError (NotNow, Conflict, Gone) and InputError."""

    def __init__(self, cluster: Cluster, patience_s: float = PATIENCE_S) -> None:
        config = config_of(cluster)
        self._cluster = cluster
        self._patience_s = patience_s
        self._client: Any = lightkube.Client(
            config, namespace=cluster.namespace, timeout=ANSWER, field_manager=names.MANAGER
        )
        # For what lightkube's methods leave out.
        self._requests = self._client._client
        self.namespace = str(self._client.namespace or "default")
        self.server = config.cluster.server
        # A launcher has no end of its own: its connections close with it.
        self._close = weakref.finalize(self, self._client.close)

    def close(self) -> None:
        """Close the connections."""
        self._close()

    def watching(self) -> lightkube.AsyncClient:
        """Return a client for one watch, which the caller closes."""
        config = config_of(self._cluster)
        return lightkube.AsyncClient(config, namespace=self._cluster.namespace, timeout=ANSWER)

    def get(self, kind: type[Kind], name: str) -> Kind | None:
        """Return an object of the namespace, or of the cluster; None where there is none."""
        with contextlib.suppress(Gone):
            return self._call(kind, lambda: self._client.get(kind, name))
        return None

    def find(self, kind: type[Kind], labels: Mapping[str, str] | None = None) -> list[Kind]:
        """Return the objects that carry all these labels."""
        return self.find_with_version(kind, labels or {})[0]

    def find_with_version(self, kind: type[Kind], labels: Mapping[str, str]) -> tuple[list[Kind], str]:
        """Return the same list, and the version from which a watch continues it."""

        def listed() -> tuple[list[Kind], str]:
            pages = self._client.list(kind, labels=dict(labels), chunk_size=500)
            return list(pages), pages.resourceVersion

        prepare(kind)
        return self._patiently(listed)

    def create(self, made: Kind) -> Kind:
        """Create an object. Raises Conflict where one of its name is there."""
        return self._call(type(made), lambda: self._client.create(made))

    def apply(self, made: Kind) -> Kind:
        """Make an object as it is here, whether it is there or not: a server-side apply."""
        return self._call(type(made), lambda: self._client.apply(made, force=True))

    def patch(
        self, kind: type[Any], name: str, change: Mapping[str, Any], how: PatchType = PatchType.STRATEGIC
    ) -> None:
        """Change some fields of an object, or of a subresource; a custom one can only be merged."""
        self._call(kind, lambda: self._client.patch(kind, name, dict(change), patch_type=how))

    def replace(self, made: Kind) -> Kind:
        """Replace an object. Raises Conflict where it has changed since it was read."""
        return self._call(type(made), lambda: self._client.replace(made))

    def admits(self, made: Kind) -> None:
        """Raise EngineError where the cluster would not take an object; create nothing."""
        self._call(type(made), lambda: self._client.create(made, dry_run=True))

    def delete(
        self, kind: type[Kind], name: str, *, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        """Delete an object, if it is there and, with `uid`, is still that one: a successor has another."""
        wanted = {"uid": uid, "gracePeriodSeconds": grace_s}
        with contextlib.suppress(Gone, Conflict):
            self._call(kind, lambda: self._requests.request("delete", res=kind, name=name, params=wanted))

    def log(self, pod: str, *, previous: bool) -> str:
        """Return the log of a pod's container, or of the run before; empty where its node gives none.

        Without patience: it is wanted for a message that reports a failure.
        """
        wanted = {"previous": str(previous).lower(), "tailLines": "500"}
        with contextlib.suppress(EngineError), translate_errors(self.server):
            asked = self._requests.prepare_request("get", PodLog, name=pod, params=wanted)
            answer = self._requests.send(self._requests.build_adapter_request(asked))
            answer.raise_for_status()
            return str(answer.text)
        return ""

    def version(self) -> str:
        """Return the API server's version, as `1.34`."""
        http = self._requests._client

        def asked() -> dict[str, str]:
            answer = http.send(http.build_request("GET", "version"))
            answer.raise_for_status()
            return dict(answer.json())

        told = self._patiently(asked)
        return f"{told['major']}.{told['minor'].rstrip('+')}"

    def _call(self, kind: type[Kind], call: Callable[[], Kind]) -> Kind:
        prepare(kind)
        return self._patiently(call)

    def _patiently(self, call: Callable[[], Result]) -> Result:
        """Call, again and again while the server throttles or is away, for up to the patience."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                with translate_errors(self.server):
                    return call()
            except _Again as again:
                if time.monotonic() + again.pause_s > deadline:
                    raise NotNow(str(again)) from again.__cause__
                time.sleep(again.pause_s)


class _Again(EngineError):
    """A call that may succeed after a pause."""

    def __init__(self, problem: str, pause_s: float = _PAUSE_S) -> None:
        super().__init__(problem)
        self.pause_s = pause_s


@contextlib.contextmanager
def translate_errors(server: str) -> Iterator[None]:
    """Turn errors of the API into ours, each with the way out."""
    try:
        yield
    except httpx2.HTTPStatusError as error:
        raise _of_status(error, server) from error
    except httpx2.TransportError as error:
        problem = f"the API server at {server} does not answer: {error or type(error).__name__}"
        raise _Again(problem) from error
    except ConfigError as error:
        raise EngineError(f"the credentials for {server} cannot be had: {error}") from error


def _of_status(error: httpx2.HTTPStatusError, server: str) -> EngineError:
    said = _said(error)
    # In a watch there is an error without a response.
    of_watch = int(error.status.code or 0) if isinstance(error, ApiError) else 0
    match error.response.status_code if error.response is not None else of_watch:
        case 401:
            return EngineError(
                f"the API server at {server} does not accept our credentials ({said}): they may have "
                "expired; log in to the cluster again"
            )
        case 403:
            return EngineError(_missing_rule(said) or f"Kubernetes refuses: {said}")
        case 404:
            return Gone(f"Kubernetes: {said}")
        case 409:
            return Conflict(f"Kubernetes: {said}")
        case 410:
            return Expired(f"Kubernetes: {said}")
        case 429 | 500 | 502 | 503 | 504:
            return _Again(f"the API server at {server} is busy or starting: {said}", _pause_s(error))
        case _:
            return EngineError(f"Kubernetes refuses: {said}")


def _missing_rule(message: str) -> str | None:
    found = _DENIED.search(message)
    if found is None:
        return None
    rule = RoleRule(found["group"], found["resource"], (found["verb"],))
    place = f"the Role in namespace {found['namespace']}" if found["namespace"] else "the ClusterRole"
    return (
        f"the cluster lets {found['user']} not {found['verb']} {found['resource']}: {place} lacks the rule "
        f"{rule}; `ctl doctor --launcher kubernetes` shows all that are missing"
    )


def _said(error: httpx2.HTTPStatusError) -> str:
    if isinstance(error, ApiError) and error.status.message:
        return str(error.status.message)
    with contextlib.suppress(ValueError, TypeError, KeyError, httpx2.ResponseNotRead):
        return str(error.response.json()["message"])
    return str(error)


def _pause_s(error: httpx2.HTTPStatusError) -> float:
    """The seconds that the server asks to wait."""
    asked = error.response.headers.get("Retry-After", "") if error.response is not None else ""
    return float(asked) if asked.isdigit() and asked != "0" else _PAUSE_S


_making = threading.Lock()
_made: set[type[Any]] = set()


def prepare(kind: type[Any]) -> None:
    """Make the decoders of a kind of object, of lists of it, and of what watches and errors consist of."""
    if kind in _made:
        return
    with _making:
        if not _made:
            decoders.decode_status(b"{}")
            decoders.decode_watch_event(b'{"type": "ADDED", "object": {}}')
        with contextlib.suppress(msgspec.ValidationError):  # it is made, and requires some field
            decoders.decode_object(b"{}", kind)
        decoders.decode_list(b'{"items": []}', kind)
        _made.add(kind)
