"""The watch against a served fake: no end is missed, whatever the connection does."""

import contextlib
from collections.abc import Iterator
from typing import Any

from background import until
from fake_kubernetes import FakeCluster, Key, Serving

from controlplane.domain.fleet import Cluster, Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.observation import OUT_OF_MEMORY, Health, News, out_of_memory
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi
from launchers.kubernetes.pods import PodEnds, PodWatcher
from launchers.triton import labels


def add(cluster: FakeCluster, partition: str) -> Server:
    """A pod that runs."""
    spec = ServerSpec(Labels("f", "p", partition, Role.ACTIVE, "r"), "/r", ("m",), "n/cpu-0", 50)
    server = Server("", spec, ServerState.RUNNING, "", 8000, 8001, 8002)
    metadata = {
        "name": names.server_object(spec),
        "labels": dict(names.server_labels(spec)),
        "annotations": {names.SERVER: labels.text_of(server)},
    }
    made = cluster.store.create(key(server), {"metadata": metadata, "spec": {"containers": []}})
    tell(cluster, server, {"running": {}})
    return Server(made["metadata"]["uid"], spec, ServerState.RUNNING, "", 8000, 8001, 8002)


def key(server: Server) -> Key:
    return ("pods", "trisect", names.server_object(server.spec))


def tell(cluster: FakeCluster, server: Server, state: dict[str, Any], **more: Any) -> None:
    container = {
        "name": "triton",
        "image": "",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": state,
    }
    status = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [{**container, **more}]}
    cluster.store.edit(key(server), lambda obj: obj.update(status=status))


@contextlib.contextmanager
def watching(ends: PodEnds | None = None) -> Iterator[PodWatcher]:
    watcher = PodWatcher(ClusterApi(Cluster(), patience_s=0.0), "f", ends or PodEnds())
    with contextlib.closing(watcher):
        yield watcher


def heard(ends: PodWatcher, *servers: Server) -> tuple[News, ...]:
    return until(lambda: ends.news(servers))


OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


def test_ends_are_told_with_their_reasons(cluster: FakeCluster) -> None:
    one, two, three, other = (add(cluster, name) for name in ("one", "two", "three", "other"))
    with watching() as ends:
        tell(cluster, one, OOM)
        reason = f"its container ended: {out_of_memory(one)}"
        assert heard(ends, one, other) == (News((one.name,), reason, certain=True),)
        # The kubelet was faster than the watch: only the count of restarts shows the end.
        tell(cluster, two, {"running": {}}, restartCount=1, lastState=OOM)
        assert OUT_OF_MEMORY in heard(ends, two)[0].reason
        evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        cluster.store.edit(key(three), lambda obj: obj.update(status=evicted))
        assert "Evicted: The node was low" in heard(ends, three)[0].reason
        cluster.store.remove(key(other))
        assert "deleted" in heard(ends, other)[0].reason
        assert ends.news((one, two, three, other)) == ()


def test_a_pod_that_is_deleted_is_ending_before_it_is_gone(cluster: FakeCluster) -> None:
    one = add(cluster, "one")
    with watching() as ends:
        now = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        cluster.store.edit(key(one), lambda obj: obj["metadata"].update(now))
        assert [(n.servers, n.health) for n in heard(ends, one)] == [((one.name,), Health.ENDING)]
        cluster.store.remove(key(one))
        assert [(n.servers, n.health) for n in heard(ends, one)] == [((one.name,), Health.GONE)]


def test_an_end_while_the_server_was_away_is_told_afterwards(serving: tuple[FakeCluster, Serving]) -> None:
    cluster, server = serving
    one, two = add(cluster, "one"), add(cluster, "two")
    with watching() as ends:
        server.go_away()
        cluster.store.remove(key(one))
        tell(cluster, two, OOM)
        server.come_back()
        found = set[str]()
        until(lambda: found.update(n.servers[0] for n in ends.news((one, two))) or len(found) == 2)
        assert found == {one.name, two.name}


def test_a_forgotten_version_is_listed_again(serving: tuple[FakeCluster, Serving]) -> None:
    cluster, server = serving
    one = add(cluster, "one")
    with watching() as ends:
        server.go_away()
        cluster.faults.forgets = True
        cluster.store.remove(key(one))
        cluster.requests.clear()
        server.come_back()
        assert "deleted" in heard(ends, one)[0].reason
        assert len(cluster.requests) >= 2, "a watch that was refused, and a list"


def test_a_new_server_is_watched_and_a_running_one_is_no_news(cluster: FakeCluster) -> None:
    one = add(cluster, "one")
    tell(cluster, one, {"running": {}}, restartCount=3, lastState=OOM)
    with watching() as ends:
        two = add(cluster, "two")
        tell(cluster, two, OOM)
        assert [news.servers for news in heard(ends, one, two)] == [(two.name,)]


def test_each_watch_reports_a_restart_in_place_once(cluster: FakeCluster) -> None:
    one, two, ends = add(cluster, "one"), add(cluster, "two"), PodEnds()
    with watching(ends):
        pass
    tell(cluster, one, {"running": {}}, restartCount=1, lastState=OOM)
    for _ in range(2):
        with watching(ends) as again:
            assert OUT_OF_MEMORY in heard(again, one)[0].reason
            assert again.news((one,)) == ()
    cluster.store.remove(key(one))
    with watching(ends) as later:
        tell(cluster, two, OOM)
        assert OUT_OF_MEMORY in heard(later, two)[0].reason
        assert OUT_OF_MEMORY in heard(later, one)[0].reason, "its first end is the reason"
    with watching(ends) as last:
        assert [news.servers for news in last.news((one, two))] == [(two.name,)], "the other pod is gone"


def test_an_end_is_kept_until_its_server_is_asked_for(cluster: FakeCluster) -> None:
    one = add(cluster, "one")
    with watching() as ends:
        two = add(cluster, "two")
        tell(cluster, two, {"running": {}}, restartCount=1, lastState=OOM)
        tell(cluster, one, OOM)  # heard after the other
        assert [news.servers for news in heard(ends, one)] == [(one.name,)]
        assert [news.servers for news in ends.news((one, two))] == [(two.name,)]


def test_a_watch_starts_while_the_server_is_away(serving: tuple[FakeCluster, Serving]) -> None:
    cluster, server = serving
    server.go_away()
    with watching() as ends:
        server.come_back()
        until(lambda: any("pods" in request for request in cluster.requests))
        one = until(lambda: add(cluster, "one"))
        tell(cluster, one, OOM)
        assert heard(ends, one)[0].servers == (one.name,)
