"""Calls that change a server: shared memory, trace and log settings; and connections' own settings."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as tg
import tritonclient.http as th
import tritonclient.utils.shared_memory as shm

from conformance_calls.case import CLIENTS, Cases, Target, attempt, inputs, seen, x

CASES = Cases()


def _region(target: Target, kind: str) -> Any:
    """A region's life: registered, used, twice, unregistered."""
    module = CLIENTS[kind]
    key = f"/conformance-{time.monotonic_ns()}"
    region = shm.create_shared_memory_region("region", key, 32)
    Path(f"/dev/shm{key}").chmod(0o666)  # a container's user is another one where tests run as root

    def used() -> Any:
        given = module.InferInput("X", [4], "FP32")
        given.set_shared_memory("region", 16)
        wanted = module.InferRequestedOutput("Y")
        wanted.set_shared_memory("region", 16, offset=16)
        client.infer("plain", [given], outputs=[wanted])
        return shm.get_contents_as_numpy(region, np.float32, [4], offset=16).tolist()

    try:
        shm.set_shared_memory_region(region, [np.arange(4, dtype=np.float32)])
        with module.InferenceServerClient(target.address(kind)) as client:
            registered = partial(client.register_system_shared_memory, "region", key, 32)
            steps: tuple[Callable[[], Any], ...] = (
                *(registered, used, registered, target.middle, used),
                partial(client.unregister_system_shared_memory, "region"),
                used,
                partial(client.register_system_shared_memory, "x", "/not-there", 8),
                partial(client.get_system_shared_memory_status, "x"),
                client.unregister_system_shared_memory,
            )
            return [attempt(step) for step in steps]
    finally:
        shm.destroy_shared_memory_region(region)


for _kind in ("http", "grpc"):
    CASES.add(f"{_kind}: shared memory, redirected", partial(_region, kind=_kind))


@CASES.case("grpc: a region without a name", "region-names")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        return attempt(partial(client.register_cuda_shared_memory, "", b"", 0, 0))


@CASES.case("http: trace settings")
def _(target: Target) -> Any:
    with th.InferenceServerClient(target.address("http")) as client:
        change = client.update_trace_settings
        return [
            change("plain", {"trace_rate": "55"}),
            client.get_trace_settings("batched"),
            change("plain", {"trace_rate": None}),
            *(attempt(partial(change, settings=one)) for one in ({"trace_rate": "many"}, {"no": "such"})),
        ]


@CASES.case("grpc: log settings")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        found = [client.update_log_settings({"log_verbose_level": level}, as_json=True) for level in (1, 0)]
        return [*found, attempt(partial(client.update_log_settings, {"log_format": "nonsense"}))]


@CASES.case("grpc: pings")
def _(target: Target) -> Any:
    options = tg.KeepAliveOptions(
        keepalive_time_ms=100, keepalive_permit_without_calls=True, http2_max_pings_without_data=0
    )
    with tg.InferenceServerClient(target.address("grpc"), keepalive_options=options) as client:
        found = []
        for _ in range(2):
            found.append(seen(client.infer("plain", inputs(tg, x(1)))))
            time.sleep(0.5)  # some pings pass meanwhile
        return found
