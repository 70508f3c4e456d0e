"""Leader election and the Fleet object, against a served fake of the API."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from fake_kubernetes import FakeCluster, Key, Serving
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.fleet import Cluster
from controlplane.domain.observation import FleetReport, Guarding, WantedFleet
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.leading import lease as election
from launchers.kubernetes.leading.fleets import FINALIZER, FleetObject, GatewayPods
from launchers.kubernetes.leading.lease import Leadership, LeaseRecord, SeenLease

LEASE: Key = ("leases", "trisect", names.object_name("f", "controller"))
FLEET: Key = ("fleets", "trisect", "f")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "RENEW_S", 0.02)
    monkeypatch.setattr(election, "LOOK_S", 0.02)


@dataclass
class Candidate:
    """One controller's part in the election, in a thread of its own."""

    name: str
    said: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    leads: threading.Event = field(default_factory=threading.Event)
    lost: threading.Event = field(default_factory=threading.Event)
    killed: bool = False

    def __post_init__(self) -> None:
        self.api = ClusterApi(Cluster(), patience_s=0.0)
        self.leadership = Leadership(self.api, "f", self.name, self.said.append)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self.leadership.acquire(self.stop):
            self.leads.set()
            if not self.killed:
                self.leadership.keep(self.stop, self.lost.set)

    def close(self) -> None:
        self.stop.set()
        self._thread.join(30)
        self.api.close()


@contextlib.contextmanager
def candidate(name: str, *, killed: bool = False) -> Iterator[Candidate]:
    """With `killed`, it leads and renews nothing."""
    made = Candidate(name, killed=killed)
    try:
        yield made
    finally:
        made.close()


def holder(cluster: FakeCluster) -> str:
    return str(cluster.store.get(LEASE)["spec"]["holderIdentity"])


RECORD = LeaseRecord("other", 3, 6.0, "then")


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_a_lease_of_another_is_taken_only_after_its_whole_duration(since_s: float, later_s: float) -> None:
    known = SeenLease().read(RECORD, since_s).read(RECORD, since_s + later_s)
    now_s = since_s + later_s
    assert election.may_take(known, "me", now_s) == (now_s - since_s >= RECORD.duration_s)


def test_a_renewed_lease_or_an_api_server_that_is_away_begins_the_wait_anew() -> None:
    known = SeenLease().read(RECORD, 0.0)
    renewed = known.read(LeaseRecord("other", 3, 6.0, "now"), 5.0)
    assert not election.may_take(renewed, "me", 10.0)
    assert not election.may_take(known.unread(5.0), "me", 10.0)


@pytest.mark.parametrize("name", ["", "me"])
def test_a_free_lease_and_one_of_an_earlier_run_are_taken_at_once(name: str) -> None:
    assert election.may_take(SeenLease().read(LeaseRecord(name, 3, 6.0, ""), 0.0), "me", 0.1)


def test_one_of_two_leads_and_a_leader_that_ends_frees_the_lease(cluster: FakeCluster) -> None:
    with candidate("one") as one:
        assert one.leads.wait(30)
        with candidate("two") as two:
            assert not two.leads.wait(0.2)
            assert holder(cluster) == "one"
            one.close()
            assert two.leads.wait(30)
            assert (one.leadership.term, two.leadership.term) == (1, 2)
            assert not one.lost.is_set()


def test_a_killed_leader_is_replaced_after_the_duration(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "DURATION_S", 1)
    with candidate("one", killed=True) as one:
        assert one.leads.wait(30)
        with candidate("two") as two:
            assert two.leads.wait(30)
    assert two.leadership.term == 2


def test_a_leader_whose_lease_another_one_took_says_so(cluster: FakeCluster) -> None:
    with candidate("one") as one:
        assert one.leads.wait(30)
        cluster.store.edit(
            LEASE, lambda lease: lease["spec"].update(holderIdentity="two", leaseTransitions=2)
        )
        assert one.lost.wait(30)
        assert any("no longer leads" in line for line in one.said)


def test_a_leader_goes_on_while_the_api_server_is_away(serving: tuple[FakeCluster, Serving]) -> None:
    cluster, server = serving
    with candidate("one") as one:
        assert one.leads.wait(30)
        server.go_away()
        while not any("does not answer" in line for line in one.said):
            assert not one.lost.wait(0.02)
        server.come_back()
        before = cluster.store.get(LEASE)["spec"]["renewTime"]
        while cluster.store.get(LEASE)["spec"]["renewTime"] == before:
            assert not one.lost.wait(0.02)


def test_a_missing_permission_is_said_once_and_waited_for(cluster: FakeCluster) -> None:
    cluster.faults.denied = {("create", "leases")}
    with candidate("one") as one:
        assert not one.leads.wait(0.3)
        assert len(one.said) == 1
        assert 'resources: ["leases"], verbs: [create]' in one.said[0]
        cluster.faults.denied = set()
        assert one.leads.wait(30)


def test_a_fleet_object_says_what_is_wanted_and_is_told_what_became_of_it(cluster: FakeCluster) -> None:
    made = FleetObject(ClusterApi(Cluster()), "f", "pod-1")
    assert made.read() is None

    def read() -> WantedFleet:
        found = made.read()
        assert found is not None
        return found

    cluster.store.create(FLEET, {"metadata": {"name": "f", "generation": 2}, "spec": {"plan": {"gpus": []}}})
    wanted = read()
    assert (wanted.plan, wanted.generation, wanted.applied, wanted.ending) == ({"gpus": []}, 2, None, False)
    for devices in ({"cpu-0": "a/cpu-0", "cpu-1": "b/cpu-0"}, {"cpu-0": "a/cpu-0"}):
        made.report(FleetReport(2, True, "Applied", "4 servers", "abc", 2, devices))
        made.read()
    made.hold()
    again = read()
    assert (again.applied, again.devices) == ("abc", {"cpu-0": "a/cpu-0"})
    lent = Guarding(
        "b", "settling", 1.0, None, False, 1, False, None, "cpu-0", 30.0, "s", {"a": "HUNG"}, True
    )
    made.remember([lent])
    cluster.store.edit(FLEET, lambda fleet: fleet["status"]["guarding"][0].update(newer=1))
    kept = read()
    assert (kept.applied, kept.guarding) == ("abc", (lent,))
    stored = cluster.store.get(FLEET)
    assert stored["metadata"]["finalizers"] == [FINALIZER]
    assert stored["status"]["leader"] == "pod-1"
    made.report(FleetReport(3, False, "Invalid", "gpus: is missing"))
    assert read().applied is None
    made.release()
    assert cluster.store.get(FLEET)["metadata"]["finalizers"] == []


def test_the_gateways_addresses_stay_known_without_the_api_server(
    serving: tuple[FakeCluster, Serving],
) -> None:
    cluster, server = serving
    labels = {"app.kubernetes.io/component": "gateway", "trisect.dev/fleet": "f"}
    for number in (1, 2, 3):
        key = ("pods", "trisect", f"g{number}")
        metadata = {"name": f"g{number}", "labels": labels}
        cluster.store.create(key, {"metadata": metadata, "spec": {"containers": []}})
    for name, status in (("g1", {"podIP": "10.0.0.1"}), ("g3", {"podIP": "10.0.0.3", "phase": "Failed"})):
        cluster.store.edit(("pods", "trisect", name), lambda pod, status=status: pod.update(status=status))
    pods = GatewayPods(ClusterApi(Cluster(), patience_s=0.0), "f")
    pods.refresh()
    server.go_away()
    assert pods.addresses() == ("10.0.0.1:8003",)
