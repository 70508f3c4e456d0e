"""A request that crashes the server that executes it: it ends one server, not one after the other."""

import contextlib
import json
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import RemoteDisconnected
from pathlib import Path

import gateway_rig as rig
import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from background import until
from gateway_clients import http_call
from host_ports import free_ports

from controlplane.domain.fleet import Route
from controlplane.files.gateway.access import REFUSED
from controlplane.gateway.haproxy import HaproxyGateway

POISON = {
    "inputs": [{"name": "INPUT", "datatype": "BYTES", "shape": [1, 3], "data": ["p", "q", "r"]}],
    "outputs": [{"name": "OUTPUT", "parameters": {"classification": 2}}],
}
"""Triton 2.51 ends itself over the classes of texts."""
HARMLESS = {**POISON, "outputs": [{"name": "OUTPUT"}]}


@dataclass
class Poisoned:
    directory: Path
    gateway: HaproxyGateway
    ports: rig.Ports
    tritons: dict[str, rig.Triton]

    def route(self, *members: str, backup: str | None = None) -> None:
        """Route to these servers, new ones where the ones of these names are dead."""
        for name in (*members, *([backup] if backup else [])):
            if self.tritons[name].process.poll() is not None:
                self.tritons[name].kill()  # the processes of its models
                self._start(name)
        self.gateway.commit(
            {
                "text": Route(
                    tuple(self.tritons[name].backend for name in members),
                    self.tritons[backup].backend if backup else None,
                )
            }
        )

    def _start(self, name: str) -> None:
        def again() -> rig.Triton:
            self.tritons[name] = rig.launch(self.directory, name, {"text": "text"}, ports=free_ports(3))
            return self.tritons[name]

        rig.ready(again(), again)

    def alive(self) -> set[str]:
        return {name for name, triton in self.tritons.items() if triton.process.poll() is None}

    def http(self, document: object) -> int:
        address, path = f"{rig.HOST}:{self.ports.http}", "/v2/models/text/infer"
        with contextlib.suppress(RemoteDisconnected):
            status, _, headers = http_call(address, "POST", path, json.dumps(document))
            assert status != 429 or 0 < int(headers["retry-after"]) <= 60
            return status
        return 502

    def grpc(self, classes: int = 0, compression: str | None = None) -> grpc.StatusCode | None:
        x = triton_grpc.InferInput("INPUT", [1, 3], "BYTES")
        x.set_data_from_numpy(np.array([[b"p", b"q", b"r"]], dtype=np.object_))
        wanted = [triton_grpc.InferRequestedOutput("OUTPUT", class_count=classes)]
        with triton_grpc.InferenceServerClient(f"{rig.HOST}:{self.ports.grpc}") as client:
            try:
                client.infer("text", [x], outputs=wanted, compression_algorithm=compression)
            except triton_grpc.InferenceServerException as refusal:
                return refusal.status()
        return None

    def streamed(self) -> str:
        """The error of a streamed message."""
        errors: queue.Queue[object] = queue.Queue()
        x = triton_grpc.InferInput("INPUT", [1, 1], "BYTES")
        x.set_data_from_numpy(np.array([[b"p"]], dtype=np.object_))
        with triton_grpc.InferenceServerClient(f"{rig.HOST}:{self.ports.grpc}") as client:
            client.start_stream(lambda result, error: errors.put(error))
            client.async_stream_infer("text", [x])
            return str(errors.get(timeout=60))


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poisoned]:
    here = tmp_path_factory.mktemp("poisoned")
    models = {"text": "text"}
    with (
        rig.tritons(here, one=models, two=models, three=models) as tritons,
        rig.a_gateway(here) as (gateway, ports),
    ):
        yield Poisoned(here, gateway, ports, tritons)


SENDERS: dict[str, Callable[[Poisoned, int], object]] = {
    "http": lambda fleet, classes: fleet.http(POISON if classes else HARMLESS),
    "grpc": lambda fleet, classes: fleet.grpc(classes),
    "compressed grpc": lambda fleet, classes: fleet.grpc(classes, "gzip"),
}


def poison(fleet: Poisoned, sender: str) -> None:
    """Send one such request, and wait until a server has ended."""
    until(lambda: SENDERS[sender](fleet, 0) in (200, None))
    before = fleet.alive()
    SENDERS[sender](fleet, 2)
    until(lambda: fleet.alive() < before)


@pytest.mark.parametrize("sender", SENDERS)
def test_in_a_pool_it_ends_one_server(poisoned: Poisoned, sender: str) -> None:
    poisoned.route("one", "two", backup="three")
    poison(poisoned, sender)
    assert poisoned.http(HARMLESS) == 200
    assert len(poisoned.alive()) == 2


@pytest.mark.parametrize("sender", SENDERS)
def test_with_a_shadow_it_never_reaches_a_third_server(poisoned: Poisoned, sender: str) -> None:
    poisoned.route("three")  # so that it runs
    poisoned.route("one", backup="two")
    poison(poisoned, sender)
    assert "three" in poisoned.alive()


@pytest.mark.parametrize("sender", SENDERS)
def test_one_that_was_accused_before_ends_no_shadow(poisoned: Poisoned, sender: str) -> None:
    poisoned.route("one", backup="two")
    poisoned.gateway.refuse("text", "", time.time() - 1.0)
    poison(poisoned, sender)
    assert poisoned.http(HARMLESS) == 200
    assert "two" in poisoned.alive()


def test_a_refusal_of_before_the_clock_was_set_back_is_over(poisoned: Poisoned) -> None:
    poisoned.route("one")
    poisoned.gateway.refuse("text", "", time.time() + 3600.0)
    assert poisoned.http(HARMLESS) == 200
    assert poisoned.grpc() is None
    assert REFUSED not in poisoned.streamed()


def test_what_is_refused_reaches_no_server_until_it_ends(poisoned: Poisoned) -> None:
    poisoned.route("one", backup="two")
    poisoned.gateway.refuse("text", "", time.time() + 50.0)
    for document in (POISON, HARMLESS):
        assert poisoned.http(document) == 429
    for compression in (None, "gzip"):
        assert poisoned.grpc(2, compression) == "StatusCode.RESOURCE_EXHAUSTED"
    assert REFUSED in poisoned.streamed()
    assert poisoned.alive() >= {"one", "two"}
    poisoned.gateway.refuse("text", "", time.time() + 1.0)
    until(lambda: poisoned.http(HARMLESS) == 200)
    poisoned.gateway.refuse("other", "", time.time() + 60.0)
    assert poisoned.http(HARMLESS) == 200
