"""A kubelet for tests: runs the pods of a fake cluster as processes of this host, each at its own address.

A pod's address is a loopback one, so that every pod has Triton's own ports. The first quota mechanism
that works here holds a limit of CPU, as the kubelet does by a cgroup.
"""

import contextlib
import http.client
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from fake_kubernetes import FakeCluster, Key

from controlplane.domain.fleet import ServerState, ShareUsage
from launchers.cpu_quota import CHAIN, Group, Mechanism, first_that_holds
from launchers.cpu_quota.mechanism import Weight
from launchers.gpu.control import PIPES
from launchers.kubernetes import names
from launchers.triton import labels, program

_TICK_S = 0.02
_PROBE_S = 0.2
_NETWORK = f"127.{16 + os.getpid() % 200}"
"""Of this process: another one's pods have the same ports at the same time."""
_addresses = itertools.count(1)


@dataclass
class _Run:
    """A pod that runs here, and what the kubelet would say of its container."""

    pod: dict[str, Any]
    address: str
    folder: Path
    group: Group
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    last: dict[str, Any] | None = None
    ready: bool = False
    probed_s: float = 0.0
    end_at_s: float | None = None
    kill_at_s: float = 0.0
    limit: str = ""

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])


@dataclass
class FakeKubelet:
    """The kubelet of all nodes of a cluster."""

    cluster: FakeCluster
    folder: Path
    _runs: dict[str, _Run] = field(default_factory=dict)
    _closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        found = first_that_holds(CHAIN)
        assert found is not None, "no quota can be held here"
        self._mechanism: Mechanism = found
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(30)
        for run in list(self._runs.values()):
            self._end(run)

    def pid(self, uid: str) -> int:
        """The process of a pod's container."""
        process = self._runs[uid].process
        assert process is not None
        return process.pid

    def usage(self, uid: str) -> ShareUsage:
        """The counters that a real kubelet exports."""
        run = self._runs[uid]
        first = self.pid(uid)
        pids = (first, *(child.pid for child in psutil.Process(first).children(recursive=True)))
        return self._mechanism.usage(run.group, pids)

    def leftovers(self, fleet: str) -> list[str]:
        with self._lock:
            return [f"process of {run.name}" for run in self._runs.values() if run.group.fleet == fleet]

    def _work(self) -> None:
        while not self._closing.wait(_TICK_S):
            with self._lock:
                self._sync()

    def _sync(self) -> None:
        with self.cluster.store.lock:
            pods = {
                obj["metadata"]["uid"]: (key, obj)
                for key, obj in self.cluster.store.objects.items()
                if key[0] == "pods"
            }
        for uid, (key, pod) in pods.items():
            if uid not in self._runs and "deletionTimestamp" not in pod["metadata"]:
                self._runs[uid] = self._take(key, pod)
        for uid, run in list(self._runs.items()):
            if uid not in pods:
                self._end(run)
                del self._runs[uid]
            else:
                self._tend(uid, run, *pods[uid])

    def _take(self, key: Key, pod: dict[str, Any]) -> _Run:
        server = labels.server_of(
            pod["metadata"]["annotations"][names.SERVER], id="", state=ServerState.RUNNING
        )
        number = next(_addresses)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        run = _Run(pod, f"{_NETWORK}.{number // 250}.{number % 250 + 1}", folder, Group.of(server.spec))
        self._mount(run, key[1])
        self._start(run)
        return run

    def _mount(self, run: _Run, namespace: str) -> None:
        """Compose the mounts below /models in a folder of this host."""
        spec = run.pod["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in spec["containers"][0]["volumeMounts"]:
            volume = volumes[mount["name"]]
            place = run.folder / mount["mountPath"].lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                files = self.cluster.store.get(("configmaps", namespace, volume["configMap"]["name"]))
                place.write_text(files["data"][mount["subPath"]])
            elif "hostPath" in volume:
                place.symlink_to(Path(volume["hostPath"]["path"]) / mount.get("subPath", ""))

    def _start(self, run: _Run) -> None:
        container = run.pod["spec"]["containers"][0]
        home = program.find_home()
        run.limit = _limit(run.pod)
        # A GPU's share is not the kubelet's.
        prefix = self._mechanism.enter(run.group, _percent(run.limit)) if run.limit else []
        if run.limit:
            self._mechanism.weigh(run.group, Weight.FULL)  # in a cluster a start has its full weight
        command = [self._inside(run, home, word) for word in container["args"]]
        log = run.folder / f"{run.restarts}.log"
        with log.open("wb") as out:
            run.process = subprocess.Popen(
                [*prefix, *command],
                env=self._environment(run),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        run.ready = False

    def _environment(self, run: _Run) -> dict[str, str]:
        told = {one["name"]: one["value"] for one in run.pod["spec"]["containers"][0]["env"]}
        if PIPES in told:
            told[PIPES] = f"{run.folder}{told[PIPES]}"
        return {
            "HOME": os.environ.get("HOME", "/"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(program.find_home().libraries),
            **told,
        }

    def _inside(self, run: _Run, home: program.TritonHome, word: str) -> str:
        for inside, outside in (
            (str(program.IMAGE_HOME), str(home.path)),
            ("=/models", f"={run.folder}/models"),
            ("=0.0.0.0", f"={run.address}"),
        ):
            word = word.replace(inside, outside)
        return word

    def _tend(self, uid: str, run: _Run, key: Key, pod: dict[str, Any]) -> None:
        """Bring one pod nearer to what the API server says, and tell what became of it."""
        run.pod = pod
        assert run.process is not None
        self._read_log(run)
        if "deletionTimestamp" in pod["metadata"]:
            self._delete(uid, run, key)
            return
        code = run.process.poll()
        if code is not None:
            run.last = {"exitCode": 128 - code if code < 0 else code, "reason": "Error"}
            self._sweep(run)
            self._tell(run, key, {"terminated": run.last})
            run.restarts += 1
            self._start(run)
            return
        wanted = _limit(pod)
        if wanted != run.limit:
            self._mechanism.resize(run.group, _percent(wanted))
            run.limit = wanted
        if time.monotonic() - run.probed_s > _PROBE_S:
            run.probed_s = time.monotonic()
            run.ready = self._answers(run)
        self._tell(run, key, {"running": {"startedAt": "2026-01-01T00:00:00Z"}})

    def _delete(self, uid: str, run: _Run, key: Key) -> None:
        assert run.process is not None
        if run.end_at_s is None:
            hook = run.pod["spec"]["containers"][0]["lifecycle"]["preStop"]
            run.end_at_s = time.monotonic() + hook["sleep"]["seconds"]
            run.kill_at_s = time.monotonic() + run.pod["metadata"]["deletionGracePeriodSeconds"]
        if time.monotonic() > run.end_at_s:
            run.process.terminate()
        if run.process.poll() is not None or time.monotonic() > run.kill_at_s:
            self._end(run)
            del self._runs[uid]
            self.cluster.store.remove(key)

    def _end(self, run: _Run) -> None:
        assert run.process is not None
        self._sweep(run)
        run.process.wait()
        with contextlib.suppress(OSError):
            self._mechanism.leave(run.group)
        shutil.rmtree(run.folder, ignore_errors=True)

    def _sweep(self, run: _Run) -> None:
        """End all of a container's processes, as the end of its first does, and drop its shared memory."""
        assert run.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.process.pid, signal.SIGKILL)
        for region in Path("/dev/shm").glob(f"trisect~{run.group.fleet}~{run.group.server}~*"):
            region.unlink(missing_ok=True)

    def _read_log(self, run: _Run) -> None:
        log = run.folder / f"{max(0, run.restarts - 1) if run.last else run.restarts}.log"
        with contextlib.suppress(FileNotFoundError):
            self.cluster.logs[run.name] = log.read_text(errors="replace")

    def _answers(self, run: _Run) -> bool:
        probe = run.pod["spec"]["containers"][0]["readinessProbe"]
        if "exec" in probe:
            command, environment = probe["exec"]["command"], self._environment(run)
            told = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=10)
            return told.returncode == 0
        path = probe["httpGet"]["path"]
        connection = http.client.HTTPConnection(run.address, 8000, timeout=1)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _tell(self, run: _Run, key: Key, state: dict[str, Any]) -> None:
        container = {
            "name": names.CONTAINER,
            "image": "test",
            "imageID": "",
            "ready": run.ready,
            "restartCount": run.restarts,
            "state": state,
            "lastState": {"terminated": run.last} if run.last else {},
            "resources": {"limits": {"cpu": run.limit}},
        }
        ready = "True" if run.ready and "running" in state else "False"
        status = {
            "phase": "Running",
            "podIP": run.address,
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [container],
        }
        if run.pod.get("status") != status:
            self.cluster.store.edit(key, lambda obj: obj.update(status=status))


def _limit(pod: dict[str, Any]) -> str:
    """Return the limit of CPU; empty without one."""
    return str(pod["spec"]["containers"][0]["resources"].get("limits", {}).get("cpu", ""))


def _percent(limit: str) -> float:
    return int(limit.removesuffix("m")) / 10
