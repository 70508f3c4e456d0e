"""Rendering of config.pbtxt, with a model's instance groups on the one device of a partition."""

from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy

from controlplane.domain.errors import InputError
from controlplane.domain.plan import ServedModel
from controlplane.render.config import (
    TURN,
    batch_limit,
    check_drop,
    check_servable,
    instances_note,
    measured_config,
    parse_config,
    place_instances,
    served_config,
    stubs_on_gpu,
    take_turns,
    takes_live_batch,
)

SOURCE = """
name: "resnet"
backend: "onnxruntime"
max_batch_size: 16
input [ { name: "X", data_type: TYPE_FP32, dims: [ -1, 4 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 4 ], label_filename: "labels.txt" } ]
dynamic_batching { preferred_batch_size: [ 2, 8 ] max_queue_delay_microseconds: 700 preserve_ordering: true }
instance_group [ { count: 3, kind: KIND_GPU, gpus: [ 2 ], host_policy: "near" }, { count: 1 } ]
parameters { key: "b" value { string_value: "2" } }
parameters { key: "a" value { string_value: "1" } }
"""


def rendered(source: str, served: ServedModel, gpu_type: str = "cpu", **more: Any) -> ModelConfig:
    config = parse_config(source, "f")
    text = served_config(config, endpoint="W1", served=served, gpu_type=gpu_type, **more)
    return text_format.Parse(text, ModelConfig())


def test_only_what_the_plan_decides_is_changed() -> None:
    source = parse_config(SOURCE, "f")
    config = rendered(SOURCE, ServedModel("resnet", batch=4, instances=2, max_queue_delay_us=50))
    assert config.name == "W1"
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert config.dynamic_batching.max_queue_delay_microseconds == 50
    assert config.dynamic_batching.preserve_ordering
    for changed in ("name", "dynamic_batching", "instance_group"):
        config.ClearField(changed)
        source.ClearField(changed)
    assert config == source


NOT_OF_PYTHON = {
    "implicit state": """
        backend: "onnxruntime" max_batch_size: 4
        sequence_batching { oldest { } state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 2
          use_same_buffer_for_input_output: true
          initial_state { name: "zero" data_type: TYPE_FP32 dims: 2 zero_data: true } } }""",
    "profiles": """
        platform: "tensorrt_plan" optimization { cuda { graphs: true graph_spec { batch_size: 1 } } }""",
    "accelerators": """
        backend: "onnxruntime" optimization { priority: PRIORITY_MAX execution_accelerators {
          gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision" value: "16" } } } }""",
    "ragged batches": """
        backend: "b" max_batch_size: 4
        batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "N" data_type: TYPE_FP32
          source_input: "X" }
        batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }""",
    "shapes": """
        backend: "b" input { name: "X" data_type: TYPE_INT32 dims: 2 is_shape_tensor: true
          is_non_linear_format_io: true format: FORMAT_NCHW } output { name: "Y" is_shape_tensor: true }""",
    "files": """
        platform: "openvino" default_model_filename: "m.xml"
        model_operations { op_library_filename: "o.so" } cc_model_filenames { key: "7.0" value: "m7" }
        metric_tags { key: "a" value: "b" } model_repository_agents { agents { name: "checksum" } }""",
}


@pytest.mark.parametrize("source", NOT_OF_PYTHON.values(), ids=NOT_OF_PYTHON)
def test_what_other_backends_serve_stays_field_by_field(source: str) -> None:
    written = parse_config(source, "f")
    config = rendered(source, ServedModel("m", batch=max(1, written.max_batch_size)))
    for changed in ("name", "dynamic_batching", "instance_group"):
        config.ClearField(changed)
    assert config == written


@pytest.mark.parametrize(("source_limit", "planned", "expected"), [(16, 32, 16), (64, 48, 32), (8, 3, 3)])
def test_the_batch_is_capped_by_the_source_and_by_32(source_limit: int, planned: int, expected: int) -> None:
    config = rendered(f'backend: "b" max_batch_size: {source_limit}', ServedModel("m", batch=planned))
    assert list(config.dynamic_batching.preferred_batch_size) == [expected]
    assert config.max_batch_size == source_limit


def test_a_model_without_batching_keeps_the_limits_of_its_queue() -> None:
    written = "priority_levels: 2 default_priority_level: 1 default_queue_policy { max_queue_size: 4 }"
    source = f'backend: "b" max_batch_size: 0 dynamic_batching {{ {written} }}'
    config = rendered(source, ServedModel("m", batch=8))
    assert config.dynamic_batching == parse_config(source, "f").dynamic_batching
    assert config.max_batch_size == 0
    assert batch_limit(config) == 1


def test_what_waits_too_long_is_refused_and_other_limits_of_the_queue_stay() -> None:
    written = "default_queue_policy { max_queue_size: 4 } priority_levels: 2"
    source = f'backend: "b" max_batch_size: 8 dynamic_batching {{ {written} }}'
    batching = rendered(source, ServedModel("m", 4), drop_after_ms=12.5).dynamic_batching
    policy = batching.default_queue_policy
    assert (policy.timeout_action, policy.default_timeout_microseconds) == (ModelQueuePolicy.REJECT, 12_500)
    assert policy.allow_timeout_override
    assert (policy.max_queue_size, batching.priority_levels) == (4, 2)
    assert not rendered('backend: "b" max_batch_size: 8', ServedModel("m", 4)).dynamic_batching.HasField(
        "default_queue_policy"
    )


@pytest.mark.parametrize("kind", ["sequence_batching { }", 'platform: "ensemble"'])
def test_what_has_no_such_queue_refuses_a_time_in_it(kind: str) -> None:
    with pytest.raises(InputError) as raised:
        check_drop(parse_config(f"max_batch_size: 8 {kind}", "f"), 5.0, "f")
    assert raised.value.field == "drop_after_ms"


@pytest.mark.parametrize(
    ("field", "written"),
    [
        ("default_queue_policy.timeout_action", "default_queue_policy { timeout_action: DELAY }"),
        (
            "default_queue_policy.default_timeout_microseconds",
            "default_queue_policy { default_timeout_microseconds: 7000 allow_timeout_override: true }",
        ),
        ("priority_queue_policy", "priority_levels: 2 priority_queue_policy { key: 1 value { } }"),
    ],
)
def test_a_queue_policy_of_the_source_that_contradicts_is_refused_by_name(field: str, written: str) -> None:
    source = parse_config(f"max_batch_size: 8 dynamic_batching {{ {written} }}", "f")
    with pytest.raises(InputError) as raised:
        check_drop(source, 5.0, "m/config.pbtxt")
    assert (raised.value.file, raised.value.field) == ("m/config.pbtxt", f"dynamic_batching.{field}")


def test_the_same_timeout_in_the_source_stays_as_written() -> None:
    written = "default_queue_policy { default_timeout_microseconds: 5000 }"
    source = f'backend: "b" max_batch_size: 8 dynamic_batching {{ {written} }}'
    config = parse_config(source, "f")
    check_drop(config, 5.0, "f")
    batching = rendered(source, ServedModel("m", 4), drop_after_ms=5.0).dynamic_batching
    assert batching.default_queue_policy == config.dynamic_batching.default_queue_policy


def test_what_would_refuse_or_answer_equal_requests_is_not_measured() -> None:
    policies = "default_queue_policy { max_queue_size: 4 } priority_queue_policy { key: 1 value { } }"
    kept = 'backend: "b" max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1'
    source = parse_config(f"{kept} {policies} }} response_cache {{ enable: true }}", "f")
    assert measured_config(source) == parse_config(kept + " }", "f")


def test_the_text_is_the_same_for_the_same_plan() -> None:
    reversed_lines = "\n".join(reversed(SOURCE.strip().splitlines()))
    one, other = (
        served_config(
            parse_config(text, "f"), endpoint="W1", served=ServedModel("m", batch=4), gpu_type="cpu"
        )
        for text in (SOURCE, reversed_lines)
    )
    assert one == other


@pytest.mark.parametrize(
    "config",
    [
        "instance_group [ { gpus: [ 0, 1 ] } ]",
        "instance_group [ { gpus: [ 0 ] }, { gpus: [ 1 ] } ]",
        'parameters { key: "gpu_device_ids" value { string_value: "0,1" } }',
    ],
)
def test_what_cannot_have_a_share_of_one_device_is_refused_with_the_reason(config: str) -> None:
    with pytest.raises(InputError, match="several GPUs"):
        check_servable(parse_config(config, "f"), "f")


def test_a_model_with_sequences_keeps_its_own_batcher() -> None:
    source = (
        'backend: "b" max_batch_size: 8 sequence_batching { max_sequence_idle_microseconds: 7 oldest { } }'
    )
    check_servable(parse_config(source, "f"), "f")
    config = rendered(source, ServedModel("m", batch=4, max_queue_delay_us=50))
    assert config.sequence_batching == parse_config(source, "f").sequence_batching
    assert not config.HasField("dynamic_batching")


def test_models_that_take_turns_share_one_resource() -> None:
    config = rendered(SOURCE, ServedModel("m", 4), "v100", turns=True)
    limiters = [group.rate_limiter.resources for group in config.instance_group]
    assert [[(r.name, r.count) for r in one] for one in limiters] == [[("turn", 1)]] * 2
    assert not rendered(SOURCE, ServedModel("m", 4)).instance_group[0].HasField("rate_limiter")


@pytest.mark.parametrize(
    ("written", "takes"),
    [
        ("max_batch_size: 8", True),
        ('max_batch_size: 8 input { name: "X" dims: [ -1 ] allow_ragged_batch: true }', True),
        ("max_batch_size: 0", False),
        ("max_batch_size: 1", False),
        ("max_batch_size: 8 sequence_batching { }", False),
        # Its first dimension is no batch, and which input comes first is Triton's choice.
        ('max_batch_size: 8 input { name: "S" dims: [ 2 ] is_shape_tensor: true }', False),
    ],
)
def test_a_batch_changes_where_the_first_dimension_of_every_input_is_the_batch(
    written: str, takes: bool
) -> None:
    config = text_format.Parse(f'backend: "b" {written}', ModelConfig())
    assert takes_live_batch(config, ServedModel("m", 4)) == takes


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


@pytest.mark.parametrize(
    ("written", "processes"),
    [
        ("", 1),
        ("instance_group { count: 3 }", 1),
        ("instance_group { kind: KIND_CPU }", 0),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_MODEL }", 1),
        (f"instance_group {{ count: 3 }} {SEQUENCES}", 3),
    ],
)
def test_a_python_instance_is_a_process_of_its_own_on_the_gpu_unless_its_kind_is_cpu(
    written: str, processes: int
) -> None:
    assert stubs_on_gpu(parse_config(f'backend: "python" {written}', "f")) == processes
    assert stubs_on_gpu(parse_config(f'backend: "onnxruntime" {written}', "f")) == 0


def test_what_differs_from_the_written_instances_is_named() -> None:
    several, one = "instance_group { count: 3 kind: KIND_CPU }", "instance_group { kind: KIND_CPU }"
    assert "several" in instances_note(config_of(several), on_gpu=False)
    assert "3 instances" in instances_note(config_of(several, more=SEQUENCES), on_gpu=False)
    assert instances_note(config_of(one), on_gpu=False) == ""
    assert "CPU" in instances_note(config_of(one), on_gpu=True)
