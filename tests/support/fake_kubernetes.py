"""A served Kubernetes API for tests: objects with versions, watches, and the ways in which one fails.

It knows what the product uses: create, get, list and watch with labels, server-side apply, merge patches, and
replacement of a version, `pods/resize`, `pods/log`, status, deletion with a uid and a grace period, access
reviews. `Faults` makes it throttle, forget versions, refuse permissions and tokens, or go away.
"""

import asyncio
import contextlib
import copy
import datetime
import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

Json = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace (empty for the cluster), name."""

_KINDS = {
    "pods": ("v1", "Pod"),
    "configmaps": ("v1", "ConfigMap"),
    "events": ("v1", "Event"),
    "nodes": ("v1", "Node"),
    "poddisruptionbudgets": ("policy/v1", "PodDisruptionBudget"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "fleets": ("trisect.dev/v1alpha1", "Fleet"),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice"),
    "selfsubjectaccessreviews": ("authorization.k8s.io/v1", "SelfSubjectAccessReview"),
}


class Refused(Exception):
    """An answer with an error."""

    def __init__(self, code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.headers = headers or {}
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


@dataclass
class Faults:
    """What goes wrong. `throttled` requests are answered with 429 and `retry_after`."""

    throttled: int = 0
    retry_after: str = "1"
    token: str | None = None
    denied: set[tuple[str, str]] = field(default_factory=set)
    """(verb, resource), where a resource may be `pods/resize`."""
    forgets: bool = False
    """Watches from any version but the present one get 410."""
    refuses_pods: str | None = None
    """What admission says of every pod."""


class Store:
    """Objects and their history; every change has a version. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[Key, Json] = {}
        self.version = 100
        self.history: list[tuple[int, str, Key, Json]] = []
        self.changed: list[Callable[[], None]] = []

    def put(self, key: Key, obj: Json, event: str) -> Json:
        with self.lock:
            self.version += 1
            obj["metadata"]["resourceVersion"] = str(self.version)
            self.objects[key] = obj
            return self._record(event, key, obj)

    def create(self, key: Key, obj: Json) -> Json:
        with self.lock:
            if key in self.objects:
                raise Refused(409, "AlreadyExists", f'{key[0]} "{key[2]}" already exists')
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            obj["apiVersion"], obj["kind"] = _KINDS[key[0]]
            obj["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now, namespace=key[1] or None)
            obj["metadata"].setdefault("generation", 1)
            return self.put(key, obj, "ADDED")

    def get(self, key: Key) -> Json:
        with self.lock:
            if key not in self.objects:
                raise Refused(404, "NotFound", f'{key[0]} "{key[2]}" not found')
            return copy.deepcopy(self.objects[key])

    def remove(self, key: Key) -> None:
        with self.lock:
            obj = self.objects.pop(key, None)
            if obj is not None:
                self.version += 1
                obj["metadata"]["resourceVersion"] = str(self.version)
                self._record("DELETED", key, obj)

    def edit(self, key: Key, change: Callable[[Json], None]) -> None:
        """Change an object if it is there."""
        with self.lock:
            if key in self.objects:
                obj = copy.deepcopy(self.objects[key])
                change(obj)
                self.put(key, obj, "MODIFIED")

    def select(self, plural: str, namespace: str, labels: dict[str, str]) -> list[Json]:
        with self.lock:
            found = [o for (p, ns, _), o in sorted(self.objects.items()) if (p, ns) == (plural, namespace)]
            return [copy.deepcopy(o) for o in found if labels.items() <= _labels(o).items()]

    def _record(self, event: str, key: Key, obj: Json) -> Json:
        made = copy.deepcopy(obj)
        self.history.append((self.version, event, key, made))
        for notify in list(self.changed):
            notify()
        return copy.deepcopy(made)


def _name(obj: Json) -> str:
    return str(obj.get("metadata", {}).get("name", ""))


def _labels(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _merged(old: Any, new: Any) -> Any:
    """A strategic merge, as far as containers need it: lists of named things merge by name."""
    if isinstance(old, dict) and isinstance(new, dict):
        merged = {k: _merged(old.get(k), new[k]) if k in new else old[k] for k in {**old, **new}}
        return {k: value for k, value in merged.items() if value is not None or k not in new}
    if isinstance(old, list) and isinstance(new, list) and all("name" in one for one in [*old, *new]):
        by_name = {one["name"]: one for one in old}
        return list({**by_name, **{n["name"]: _merged(by_name.get(n["name"]), n) for n in new}}.values())
    return copy.deepcopy(new)


def _without_nulls(value: Any) -> Any:
    """A value as the API server keeps it after a merge patch: it drops nulls, in lists too."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


@dataclass
class FakeCluster:
    """The API server. `logs` are what containers wrote, by the pod's name.

    `commands` has the output and the exit code of any command in a pod.
    """

    store: Store = field(default_factory=Store)
    faults: Faults = field(default_factory=Faults)
    logs: dict[str, str] = field(default_factory=dict)
    commands: dict[str, tuple[str, int]] = field(default_factory=dict)
    executed: list[tuple[str, list[str]]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path, *, token: str = "good", namespace: str = "trisect") -> Path:
        """Write a kubeconfig whose token is in a file beside it, as a cluster renews them."""
        token_file = path.with_suffix(".token")
        token_file.write_text(token)
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": {"server": self.url}}],
                    "users": [{"name": "test", "user": {"tokenFile": str(token_file)}}],
                    "contexts": [
                        {
                            "name": "test",
                            "context": {"cluster": "test", "user": "test", "namespace": namespace},
                        }
                    ],
                }
            )
        )
        return path

    def add_node(self, name: str, cores: int = 2) -> None:
        labels = {"kubernetes.io/hostname": name}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"allocatable": {"cpu": str(cores)}, "conditions": ready}
        self.store.create(
            ("nodes", "", name), {"metadata": {"name": name, "labels": labels}, "status": status}
        )

    def application(self) -> web.Application:
        made = web.Application()
        made.router.add_route("*", "/{path:.*}", self._answer)
        return made

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            self.requests.append(f"{request.method} {request.path}")
            self._authenticated(request)
            self._throttled()
            if request.path == "/version":
                return web.json_response({"major": "1", "minor": "34"})
            return await self._resource(request)
        except Refused as refused:
            status = refused.status
            return web.json_response(status, status=int(status["code"]), headers=refused.headers)

    def _authenticated(self, request: web.Request) -> None:
        wanted = self.faults.token
        if wanted is not None and request.headers.get("Authorization") != f"Bearer {wanted}":
            raise Refused(401, "Unauthorized", "Unauthorized")

    def _throttled(self) -> None:
        if self.faults.throttled > 0:
            self.faults.throttled -= 1
            headers = {"Retry-After": self.faults.retry_after}
            raise Refused(429, "TooManyRequests", "too many requests, please try again later", headers)

    async def _resource(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        group = "" if parts[0] == "api" else parts[1]
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        plural, name, sub = [*parts, "", ""][:3]
        if plural not in _KINDS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        watching = request.query.get("watch") == "true"
        reading = "watch" if watching else "get" if name else "list"
        verbs = {"GET": reading, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        verb = verbs[request.method]
        self._permitted(verb, f"{plural}/{sub}" if sub else plural, group, namespace)
        key = (plural, namespace, name)
        body = await request.json() if request.method in ("POST", "PUT", "PATCH") else {}
        match verb:
            case "watch":
                return await self._watch(request, plural, namespace)
            case "get" if sub == "log":
                return web.Response(text=self.logs.get(name, ""))
            case "get" if sub == "exec":
                return await self._execute(request, name)
            case "get":
                return web.json_response(self.store.get(key))
            case "list":
                items = self.store.select(plural, namespace, _selector(request))
                meta = {"resourceVersion": str(self.store.version)}
                return web.json_response({"kind": "List", "metadata": meta, "items": items})
            case "create":
                metadata = body.setdefault("metadata", {})
                if "generateName" in metadata:
                    metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
                return self._create(request, (plural, namespace, metadata.get("name", "")), body)
            case "update":
                return self._replace(key, body)
            case "patch":
                return self._patch(request, key, sub, body)
            case _:
                return self._delete(request, key)

    def _permitted(self, verb: str, resource: str, group: str, namespace: str) -> None:
        if (verb, resource) in self.faults.denied:
            place = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            raise Refused(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "tester" cannot {verb} resource "{resource}" in API group '
                f'"{group}" {place}',
            )

    def _create(self, request: web.Request, key: Key, body: Json) -> web.Response:
        if key[0] == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            body["status"] = {"allowed": (asked["verb"], resource) not in self.faults.denied}
            return web.json_response(body, status=201)
        if key[0] == "pods" and self.faults.refuses_pods is not None:
            raise Refused(403, "Forbidden", f'pods "{key[2]}" is forbidden: {self.faults.refuses_pods}')
        if "dryRun" in request.query:
            return web.json_response(body, status=201)
        return web.json_response(self.store.create(key, body), status=201)

    async def _execute(self, request: web.Request, pod: str) -> web.StreamResponse:
        """Run nothing: write what `commands` has for a pod, and end with its exit code."""
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        self.executed.append((pod, request.query.getall("command")))
        out, code = self.commands[pod]
        for byte in out.encode():  # a message may end anywhere, even within a character
            await socket.send_bytes(bytes((1, byte)))
        causes = [{"reason": "ExitCode", "message": str(code)}]
        end = {"status": "Failure", "details": {"causes": causes}} if code else {"status": "Success"}
        await socket.send_bytes(b"\x03" + json.dumps(end).encode())
        await socket.close()
        return socket

    def _replace(self, key: Key, body: Json) -> web.Response:
        with self.store.lock:
            if body["metadata"]["resourceVersion"] != self.store.get(key)["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", "the object has been modified")
            return web.json_response(self.store.put(key, body, "MODIFIED"))

    def _patch(self, request: web.Request, key: Key, sub: str, body: Json) -> web.Response:
        with self.store.lock:
            applied = "apply-patch" in request.headers["Content-Type"]
            if applied and key not in self.store.objects:
                return web.json_response(self.store.create(key, body), status=201)
            changed = {"resize": "spec", "status": "status"}.get(sub)
            before = self.store.get(key)
            merged = _merged(before, {changed: body[changed]} if changed else body)
            if "application/merge-patch" in request.headers["Content-Type"]:
                merged = _without_nulls(merged)
            merged["metadata"]["generation"] += merged.get("spec") != before.get("spec")
            return web.json_response(self.store.put(key, merged, "MODIFIED"))

    def _delete(self, request: web.Request, key: Key) -> web.Response:
        with self.store.lock:
            obj = self.store.get(key)
            uid, grace = request.query.get("uid"), request.query.get("gracePeriodSeconds")
            if uid is not None and uid != obj["metadata"]["uid"]:
                raise Refused(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
            if key[0] != "pods" or grace == "0":
                self.store.remove(key)
            else:
                seconds = int(grace) if grace is not None else obj["spec"]["terminationGracePeriodSeconds"]
                obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                obj["metadata"]["deletionGracePeriodSeconds"] = seconds
                self.store.put(key, obj, "MODIFIED")
            return web.json_response({"kind": "Status", "status": "Success"})

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        labels, seen = _selector(request), int(request.query.get("resourceVersion") or self.store.version)
        loop, wake = asyncio.get_running_loop(), asyncio.Event()
        if self.faults.forgets and seen != self.store.version:
            raise Refused(410, "Expired", f"too old resource version: {seen}")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(wake.set)

        self.store.changed.append(notify)
        try:
            while True:
                wake.clear()
                with self.store.lock:
                    fresh = [one for one in self.store.history if one[0] > seen]
                for version, event, key, obj in fresh:
                    seen = version
                    if key[:2] == (plural, namespace) and labels.items() <= _labels(obj).items():
                        await answer.write(json.dumps({"type": event, "object": obj}).encode() + b"\n")
                await wake.wait()
        except ConnectionError:
            return answer  # the client has closed its watch
        finally:
            self.store.changed.remove(notify)


def _selector(request: web.Request) -> dict[str, str]:
    told = request.query.get("labelSelector", "")
    return dict(part.split("=", 1) for part in told.split(",") if part)


class Serving:
    """A cluster that is served from a thread; it can go away and come back on its port."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: web.AppRunner | None = None
        self._listening: socket.socket | None = None
        self._accepted: list[asyncio.Task[Any]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            cluster.port = free.getsockname()[1]
        self.come_back()

    def come_back(self) -> None:
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)

    def go_away(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)

    def close(self) -> None:
        self.go_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _open(self) -> None:
        # Watches never end by themselves: they are cut.
        self._runner = web.AppRunner(self._cluster.application(), shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        self._listening = socket.create_server(("127.0.0.1", self._cluster.port), backlog=128)
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept, self._listening, self._runner.server)

    def _accept(self, listening: socket.socket, serve: Any) -> None:
        accepted, _ = listening.accept()
        self._accepted.append(self._loop.create_task(self._loop.connect_accepted_socket(serve, accepted)))

    async def _shut(self) -> None:
        """Accept no more, then close what was accepted: a site leaves open what comes while it is stopped."""
        if self._runner is not None and self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            await asyncio.gather(*self._accepted)
            self._accepted.clear()
            await self._runner.cleanup()
            self._runner = None


@contextlib.contextmanager
def served() -> Iterator[tuple[FakeCluster, Serving]]:
    cluster = FakeCluster()
    serving = Serving(cluster)
    try:
        yield cluster, serving
    finally:
        serving.close()
