"""Calls of the API against a served fake: throttling, permissions, tokens, preconditions."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kubernetes import FakeCluster, Serving
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Node, Pod

from controlplane.domain.errors import EngineError, InputError, NotNow
from controlplane.domain.fleet import Cluster
from launchers.kubernetes.api import ClusterApi, Conflict, config_of


@pytest.fixture
def api(cluster: FakeCluster) -> Iterator[ClusterApi]:
    made = ClusterApi(Cluster(), patience_s=5.0)
    yield made
    made.close()


def config(name: str, **labels: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, labels=labels), data={"a": "b"})


def test_objects_are_found_by_their_labels(api: ClusterApi) -> None:
    api.create(config("one", fleet="a"))
    api.create(config("two", fleet="b"))
    assert [o.metadata.name for o in api.find(ConfigMap, {"fleet": "a"}) if o.metadata] == ["one"]
    assert api.get(ConfigMap, "three") is None
    assert api.namespace == "trisect"


def test_a_second_object_of_a_name_is_a_conflict_and_an_apply_is_none(api: ClusterApi) -> None:
    api.create(config("one"))
    with pytest.raises(Conflict, match="already exists"):
        api.create(config("one"))
    api.apply(config("one", fleet="c"))
    assert len(api.find(ConfigMap, {"fleet": "c"})) == 1


def test_a_throttled_call_waits_as_asked_and_then_succeeds(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.faults.throttled = 2
    start = time.monotonic()
    api.create(config("one"))
    assert time.monotonic() - start >= 2.0, "Retry-After: 1, twice"


def test_a_call_that_would_wait_beyond_the_patience_says_not_now(
    api: ClusterApi, cluster: FakeCluster
) -> None:
    cluster.faults.throttled, cluster.faults.retry_after = 1, "60"
    with pytest.raises(NotNow, match="busy"):
        api.find(ConfigMap, {})


def test_a_missing_permission_names_the_rule(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.faults.denied = {("create", "configmaps"), ("list", "nodes")}
    rule = r'namespace trisect lacks .* \{apiGroups: \[""\], resources: \["configmaps"\], verbs: \[create\]'
    with pytest.raises(EngineError, match=rule):
        api.create(config("one"))
    with pytest.raises(EngineError, match=r"the ClusterRole lacks the rule .*nodes.*list"):
        api.find(Node)


def test_a_renewed_token_is_read_again_and_an_expired_one_is_named(
    api: ClusterApi, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.faults.token = "good"
    assert api.find(ConfigMap, {}) == []
    cluster.faults.token = "renewed"
    with pytest.raises(EngineError, match="log in to the cluster again"):
        api.find(ConfigMap, {})
    (tmp_path / "config.token").write_text("renewed")
    assert api.find(ConfigMap, {}) == []


def test_a_deletion_of_one_uid_spares_a_successor(api: ClusterApi) -> None:
    api.create(config("one"))
    api.delete(ConfigMap, "one", uid="another")
    assert api.get(ConfigMap, "one") is not None
    api.delete(ConfigMap, "one")
    assert api.get(ConfigMap, "one") is None
    api.delete(ConfigMap, "one")


def test_an_absent_server_is_not_taken_for_an_empty_one(
    api: ClusterApi, serving: tuple[FakeCluster, Serving]
) -> None:
    _, server = serving
    server.go_away()
    with (
        contextlib.closing(ClusterApi(Cluster(), patience_s=0.0)) as impatient,
        pytest.raises(NotNow, match="does not answer"),
    ):
        impatient.find(Pod, {})
    server.come_back()
    assert api.find(Pod, {}) == []


def test_what_admission_refuses_is_told(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.faults.refuses_pods = 'violates PodSecurity "restricted:latest"'
    wanted = Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(containers=[Container(name="c")]))
    with pytest.raises(EngineError, match="violates PodSecurity"):
        api.admits(wanted)
    cluster.faults.refuses_pods = None
    api.admits(wanted)
    assert api.get(Pod, "p") is None


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (Cluster(context="other"), "context: .*other"),
        (Cluster(namespace="No_Name"), "namespace: 'No_Name'"),
    ],
)
def test_a_wrong_place_names_its_option(cluster: FakeCluster, place: Cluster, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ClusterApi(place)


def test_no_kubeconfig_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(InputError, match="set KUBECONFIG"):
        config_of(Cluster())
