"""The Lease by which one of a fleet's controllers leads.

A leader that cannot reach the API server goes on: redirects need none, and no other controller can take the
Lease meanwhile. Where it is only cut off itself, another one takes over; the gateway then refuses its routes,
which carry the lower term, and its next renewal says that it no longer leads.

Clocks of nodes differ, so a candidate never compares the Lease's times with its own: it waits until the Lease
has stayed the same for its whole duration by the candidate's own clock.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease

from controlplane.domain.errors import EngineError, Troubles
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi, Conflict, Gone

DURATION_S = 6
"""The time after which a Lease that is not renewed may be taken."""
RENEW_S = 2.0
LOOK_S = 1.0
"""The interval at which a candidate reads the Lease."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease's content. `renewed` is the holder's time as text, of which only a change counts.

    `term` is the number of the leadership: each new holder has a higher one.
    """

    holder: str
    term: int
    duration_s: float
    renewed: str


@dataclass(frozen=True, slots=True)
class SeenLease:
    """What a candidate knows: the record, since when it has not changed, and by the candidate's own clock."""

    record: LeaseRecord | None = None
    since_s: float = 0.0

    def read(self, record: LeaseRecord | None, now_s: float) -> SeenLease:
        """Return what is known after a read of the Lease."""
        return self if record == self.record else SeenLease(record, now_s)

    def unread(self, now_s: float) -> SeenLease:
        """Return what is known after the API server did not answer: the holder could not renew either."""
        return replace(self, since_s=now_s)


def may_take(known: SeenLease, identity: str, now_s: float) -> bool:
    """Return whether a candidate makes a Lease that is not there, or takes a free or expired one.

    Its own name in the Lease is that of a process that has ended, so it need not wait.
    """
    record = known.record
    if record is None or record.holder in ("", identity):
        return True
    return now_s - known.since_s >= record.duration_s


Say = Callable[[str], None]


class Leadership:
    """One candidate for a fleet's Lease. `identity` is the pod's name, which no two that run share.

    `api` has no patience: each call is made again at the next look.
    """

    def __init__(self, api: ClusterApi, fleet: str, identity: str, say: Say) -> None:
        self._api = api
        self._name = names.object_name(fleet, "controller")
        self._labels = {names.MANAGED_BY: names.MANAGER, names.FLEET: names.label_value(fleet)}
        self._identity = identity
        self._say = say
        self._lease: Lease | None = None
        self._troubles = Troubles(say)
        self.term = 0

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this candidate leads; False where `stop` is set first."""
        known = SeenLease(since_s=time.monotonic())
        while not stop.is_set():
            try:
                known = known.read(self._read(), time.monotonic())
                if self._try(known):
                    self._say(f"{self._identity} leads (term {self.term})")
                    return True
                self._troubles.over()
            except EngineError as error:
                known = known.unread(time.monotonic())
                self._troubles.met(error)
            stop.wait(LOOK_S)
        return False

    def keep(self, stop: threading.Event, lost: Callable[[], None]) -> None:
        """Renew until `stop` is set; then free the Lease. Call `lost` once another one leads."""
        while not stop.wait(RENEW_S):
            try:
                self._renew()
                self._troubles.over()
            except Conflict:
                self._say(f"{self._identity} no longer leads: another controller holds the Lease")
                lost()
                return
            except EngineError as error:
                self._troubles.met(error)
        self._free()

    def _read(self) -> LeaseRecord | None:
        self._lease = self._api.get(Lease, self._name)
        return None if self._lease is None else _record(self._lease)

    def _try(self, known: SeenLease) -> bool:
        """Make or take the Lease where it may be; False where another candidate was faster."""
        if not may_take(known, self._identity, time.monotonic()):
            return False
        term = 1 if known.record is None else known.record.term + 1
        try:
            self._write(self._identity, term)
        except Conflict:
            return False
        self.term = term
        return True

    def _renew(self) -> None:
        """Write the Lease anew. Raises Conflict where another candidate has written it."""
        try:
            self._write(self._identity, self.term)
        except Gone:
            self._lease = None  # deleted: made again at the next renewal
        except Conflict:
            # The answer to the renewal before may have been lost: the content says which one leads.
            record = self._read()
            if record is None or (record.holder, record.term) != (self._identity, self.term):
                raise

    def _free(self) -> None:
        try:
            self._write("", self.term)
        except EngineError as error:
            self._troubles.met(error)

    def _write(self, holder: str, term: int) -> None:
        """Create the Lease, or replace the one that was read. Raises Conflict where it has changed since."""
        now = datetime.datetime.now(datetime.UTC)
        spec = LeaseSpec(
            holderIdentity=holder,
            leaseDurationSeconds=DURATION_S,
            leaseTransitions=term,
            renewTime=now,
            acquireTime=now,
        )
        if self._lease is None:
            made = Lease(metadata=ObjectMeta(name=self._name, labels=self._labels), spec=spec)
            self._lease = self._api.create(made)
            return
        before = self._lease
        if before.spec is not None and (before.spec.leaseTransitions or 0) == term:
            spec.acquireTime = before.spec.acquireTime
        self._lease = self._api.replace(Lease(metadata=before.metadata, spec=spec))


def _record(lease: Lease) -> LeaseRecord:
    spec = lease.spec or LeaseSpec()
    return LeaseRecord(
        spec.holderIdentity or "",
        spec.leaseTransitions or 0,
        float(spec.leaseDurationSeconds or DURATION_S),
        str(spec.renewTime),
    )
