"""What the guard has the controller do, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from controlplane.domain.observation import Level


class Cause(StrEnum):
    """Why a route moves."""

    SLOW = "slow server"
    CRASH = "crash"
    HANG = "hang"
    FAILING = "failing inferences"
    IMPAIRED = "a model's process died"
    ENDING = "another program ends it"
    SHARE = "share given back"


class Topic(StrEnum):
    """The topic of a message that is repeated only after a while."""

    SLO = "P99 above the SLO"
    TRAFFIC = "traffic above plan"
    HOST = "the host is contended"
    EXHAUSTED = "no larger share left"
    WAITING = "waiting for a shadow"
    NO_ROOM = "no room for a shadow"
    ERRORS = "failed requests"
    REFUSED = "refused by policy"


@dataclass(frozen=True, slots=True)
class Redirect:
    """New requests of a partition go to `target` from now on."""

    partition: str
    source: str
    target: str
    cause: Cause


class Ending(StrEnum):
    """How a server ends that no route leads to."""

    DRAINED = "after draining"
    """When it has no open request any more."""
    HUNG = "when it cannot answer any more"
    """As DRAINED, but a process that does nothing gets SIGTERM and a moment to answer if it runs again."""
    REFUSED = "after what the dead process held"
    """It gets SIGTERM, and has the second in which Triton refuses the requests of the dead model process: one
    of them may have crashed it. The others go to the shadow when the server ends."""
    AT_ONCE = "at once"


@dataclass(frozen=True, slots=True)
class DrainAndStop:
    """End a server no route leads to.

    A server that drains is waited for while it streams, and until it has given no answer for `patience_s`: it
    has given none for `silent_s` so far.
    """

    server: str
    ending: Ending
    patience_s: float
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a server for a partition, as its shadow or, where no other lives, as its active server.

    One that several partitions share is launched by the id that it has in the plan.
    """

    partition: str
    server: str
    gpu: str
    percent: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load the models of a warm shadow."""

    server: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Send a real inference to a server now; its health shows the result."""

    server: str


class Accused(NamedTuple):
    """An endpoint whose requests were open at several deaths; of one client where that is known."""

    endpoint: str
    client: str = ""

    def __str__(self) -> str:
        return f"endpoint {self.endpoint}" + (f" from client {self.client}" if self.client else "")


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse the requests of `accused` for `seconds`; afterwards give them no second server for a while."""

    partition: str
    accused: Accused
    seconds: float


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """Start no server for this partition until `until_s`: its starts fail."""

    partition: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Learn:
    """Plan anew: all servers of a model take `factor` times as long for a batch as planned."""

    model: str
    gpu_type: str
    factor: float

    def __str__(self) -> str:
        return f"{self.model} takes {self.factor:.2f} times as long as planned on every {self.gpu_type}"


@dataclass(frozen=True, slots=True)
class SetBatch:
    """Give the model of an endpoint another batch on a server that serves; None: the plan's again."""

    partition: str
    server: str
    endpoint: str
    batch: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Add a message to the status and the events."""

    level: Level
    subject: str
    reason: str


Effect = Redirect | DrainAndStop | Launch | Load | Probe | Refuse | OpenBreaker | Learn | SetBatch | Report
