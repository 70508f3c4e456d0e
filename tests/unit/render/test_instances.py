"""A model's instance groups on the one device of a partition."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.render.config import TURN, instances_note, parse_config, place_instances, take_turns


def config_of(groups: str, backend: str = "tensorrt", more: str = "") -> ModelConfig:
    return parse_config(f'backend: "{backend}" {more} {groups}', "f")


def placed(config: ModelConfig, gpu_type: str = "v100", count: int = 1, *, turns: bool = False) -> list[str]:
    place_instances(config, count=count, gpu_type=gpu_type, turns=turns)
    return [text_format.MessageToString(group, as_one_line=True) for group in config.instance_group]


SEQUENCES = "sequence_batching { direct { } }"


@pytest.mark.parametrize(
    ("written", "on_gpu", "on_core"),
    [
        ("kind: KIND_CPU", "count: 1 kind: KIND_CPU", "count: 1 kind: KIND_CPU"),
        ("kind: KIND_GPU", "count: 1 kind: KIND_GPU gpus: 0", "count: 1 kind: KIND_CPU"),
        ("gpus: [ 3 ]", "count: 1 gpus: 0", "count: 1 kind: KIND_CPU"),
        ("kind: KIND_MODEL", "count: 1 kind: KIND_MODEL", "count: 1 kind: KIND_MODEL"),
        (
            'host_policy: "near"',
            'count: 1 host_policy: "near"',
            'count: 1 kind: KIND_CPU host_policy: "near"',
        ),
        ("count: 3", "count: 1", "count: 1 kind: KIND_CPU"),
    ],
)
def test_a_group_stays_where_the_user_placed_it(written: str, on_gpu: str, on_core: str) -> None:
    def told(gpu_type: str) -> ModelConfig:
        config = config_of(f"instance_group {{ {written} }}")
        place_instances(config, count=1, gpu_type=gpu_type, turns=False)
        return config

    assert told("v100") == config_of(f"instance_group {{ {on_gpu} }}")
    assert told("cpu") == config_of(f"instance_group {{ {on_core} }}")


def test_every_group_is_served_with_its_profile_and_devices() -> None:
    written = (
        'instance_group { kind: KIND_GPU profile: "0" secondary_devices { kind: KIND_NVDLA device_id: 1 } } '
        'instance_group { kind: KIND_GPU profile: "1" } instance_group { kind: KIND_GPU passive: true }'
    )
    config = config_of(written)
    assert take_turns(config)
    first, second, passive = placed(config, turns=True)
    assert all(kept in first for kept in ('profile: "0"', "secondary_devices { device_id: 1 }", TURN))
    assert all(kept in second for kept in ('profile: "1"', TURN))
    assert ("passive: true" in passive, TURN in passive) == (True, False)


def test_without_a_group_the_backends_own_default_holds_on_a_gpu() -> None:
    assert placed(config_of("")) == []
    assert placed(config_of(""), "cpu") == ["count: 1 kind: KIND_CPU"]
    [turning] = placed(config_of(""), turns=True)
    assert ("KIND" in turning, TURN in turning) == (False, True)
    [turning] = placed(config_of("", "openvino"), turns=True)
    assert "KIND_CPU" in turning
    assert 'name: "m"' in placed(config_of("", more='name: "m"'), "cpu")[0]  # instances keep their names


@pytest.mark.parametrize(
    ("written", "backend", "turns"),
    [
        ("instance_group { count: 3 }", "python", True),
        ("instance_group { count: 1 }", "python", False),
        ("instance_group { count: 1 } instance_group { passive: true count: 4 }", "python", False),
        ("", "python", False),
        ("", "onnxruntime", True),
    ],
)
def test_a_place_for_each_sequence_stays_and_its_instances_take_turns(
    written: str, backend: str, turns: bool
) -> None:
    config = config_of(written, backend, SEQUENCES)
    counts = [group.count for group in config.instance_group]
    assert take_turns(config) is turns
    placed(config, turns=turns)
    assert [group.count for group in config.instance_group] == (counts or [0] * turns)


def test_instances_of_a_model_without_state_do_not_take_turns() -> None:
    assert not take_turns(config_of("instance_group { count: 3 }"))


def test_what_differs_from_the_written_instances_is_named() -> None:
    several, one = "instance_group { count: 3 kind: KIND_CPU }", "instance_group { kind: KIND_CPU }"
    assert "several" in instances_note(config_of(several), on_gpu=False)
    assert "3 instances" in instances_note(config_of(several, more=SEQUENCES), on_gpu=False)
    assert instances_note(config_of(one), on_gpu=False) == ""
    assert "CPU" in instances_note(config_of(one), on_gpu=True)
