import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from launchers.kubernetes import files, names
from launchers.kubernetes.devices import NodeDevice
from launchers.kubernetes.files import RenderedFiles
from launchers.kubernetes.options import ModelVolume, PodOptions
from launchers.kubernetes.pod import PodPlace, cpu_resources, pod, volumes_of_models


def spec(role: Role = Role.ACTIVE, **more: bool) -> ServerSpec:
    return ServerSpec(Labels("f", "p", "W1", role, "r"), "/r", ("b", "a"), "n/cpu-0", 37.5, **more)


def probe_path(wanted: ServerSpec) -> str:
    server = Server("", wanted, ServerState.RUNNING, "", 8000, 8001, 8002, reload_key="k")
    made = pod(server, RenderedFiles({}, {}), PodPlace("n"), PodOptions("i")).to_dict()
    return str(made["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"])


def test_readiness_asks_for_a_model_unless_the_models_are_unloaded_on_purpose() -> None:
    assert probe_path(spec()) == "/v2/models/a/ready"
    assert probe_path(spec(Role.SHADOW, reloads=True)) == "/v2/health/live"


@pytest.mark.parametrize("role", [Role.SHADOW, Role.SHARED])
def test_a_shadow_that_stands_by_requests_no_share(role: Role) -> None:
    active, shadow = cpu_resources(spec()), cpu_resources(spec(role))
    assert active.requests == active.limits == {"cpu": "375m"}
    assert shadow.limits == active.limits
    assert shadow.requests == {"cpu": "10m"}


def test_a_rendered_repository_is_read_as_texts_and_links(tmp_path: Path) -> None:
    source, rendered = tmp_path / "source" / "alexnet", tmp_path / "rendered"
    (source / "1").mkdir(parents=True)
    (rendered / "W1").mkdir(parents=True)
    (rendered / "W1" / "config.pbtxt").write_text("x")
    (rendered / "W1" / "1").symlink_to(source / "1")
    assert files.read(str(rendered)) == RenderedFiles({"W1/config.pbtxt": "x"}, {"W1/1": "alexnet/1"})


@pytest.mark.parametrize(("content", "problem"), [(b"\xff\xfe", "no text"), (b"x" * 10**6, "do not fit")])
def test_what_no_config_map_holds_is_refused_with_its_file(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "weights.bin").write_bytes(content)
    with pytest.raises(InputError, match=f"{tmp_path}.*{problem}.*version folder"):
        files.read(str(tmp_path))


def test_links_without_a_volume_name_the_variable() -> None:
    with pytest.raises(InputError, match=r"\$TRISECT_MODELS: .*pvc:NAME"):
        volumes_of_models(RenderedFiles({}, {"W1/1": "alexnet/1"}), "c", None)


@pytest.mark.parametrize("text", ["pvc:", "pvc:No_Name", "host:models", "image:", "s4://bucket", "models"])
def test_a_wrong_volume_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"\$TRISECT_MODELS"):
        ModelVolume.parse(text)


@pytest.mark.parametrize("text", ["s3://bucket/models", "gs://bucket", "as://account/container"])
def test_a_bucket_is_refused_with_the_way_to_mount_it(text: str) -> None:
    with pytest.raises(InputError, match=r"mount the bucket as a claim .* pvc:NAME"):
        ModelVolume.parse(text)


@pytest.mark.parametrize("text", ["cpu-0", "/cpu-0", "node/", "node/cpu-", "node/tpu-0"])
def test_a_wrong_device_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="device"):
        NodeDevice.parse(text)


def test_a_device_names_its_node() -> None:
    core, gpu = NodeDevice.parse("a.b/cpu-12"), NodeDevice.parse("a/GPU-1")
    assert (core.node, core.device, core.gpu) == ("a.b", "cpu-12", False)
    assert (gpu.node, gpu.device, gpu.gpu) == ("a", "GPU-1", True)


SAFE = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


@given(SAFE)
def test_every_name_becomes_a_legal_label_value(name: str) -> None:
    value = names.label_value(name)
    assert len(value) <= 63
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", value)


@given(st.lists(SAFE, min_size=1, max_size=4))
def test_every_name_becomes_a_legal_object_name(parts: list[str]) -> None:
    name = names.object_name(*parts)
    assert len(name) <= 63, "a pod's hostname is cut there"
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)


def test_names_that_look_alike_stay_apart() -> None:
    assert names.object_name("W1") != names.object_name("w1")
    assert names.object_name("a", "b-c") != names.object_name("a-b", "c")
    assert names.label_value("fleet-") != names.label_value("fleet_")
