"""Clients of a fleet that each send one request after another, and count what failed."""

import random
from collections.abc import Callable, Sequence
from functools import partial

import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from background import Clients
from ctl_fleet import Ctl, infer_grpc, infer_http

CLIENTS = 4
PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5


class Traffic(Clients):
    """The clients, a quarter for each pair of an endpoint and a protocol of four."""

    def __init__(
        self,
        host: Ctl,
        endpoints: Sequence[str] = ("a",),
        protocols: Sequence[str] = ("http",),
        pause_s: float = PAUSE_S,
    ) -> None:
        super().__init__(CLIENTS, pause_s)
        self._host = host
        self._each = [(endpoint, protocol) for endpoint in endpoints for protocol in protocols]

    def walk(self, dice: random.Random) -> None:
        """A step of a random walk of the rate, between that of PAUSE_S and a tenth of it."""
        self.pause_s = min(max(self.pause_s * dice.choice((0.7, 1.0, 1.4)), PAUSE_S), LONGEST_PAUSE_S)

    def call(self, number: int) -> Callable[[], object]:
        """An inference of its endpoint, over its protocol."""
        endpoint, protocol = self._each[number % len(self._each)]
        if protocol == "http":
            target = f"127.0.0.1:{self._host.http}"
            return partial(
                infer_http, triton_http.InferenceServerClient(target, network_timeout=60.0), endpoint
            )
        return partial(
            infer_grpc, triton_grpc.InferenceServerClient(f"127.0.0.1:{self._host.grpc}"), endpoint
        )
