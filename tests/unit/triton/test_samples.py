"""Small inferences: a model's own sample, else zeros for every kind of input, in KServe's binary layout."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from controlplane.domain.errors import EngineError
from controlplane.domain.tensors import SAMPLE_TEXT
from controlplane.triton.samples import (
    SampleInput,
    infer_body,
    sample_inputs,
    sample_request,
    zero_inputs,
)

WARM = {
    "max_batch_size": 4,
    "input": [{"name": "T", "data_type": "TYPE_STRING", "dims": ["-1"]}],
    "model_warmup": [
        {
            "name": "sample",
            "batch_size": 1,
            "inputs": {
                "T": {"data_type": "TYPE_STRING", "dims": ["2"], "input_data_file": "t"},
                "N": {"data_type": "TYPE_INT32", "dims": ["3"], "zero_data": True},
            },
        }
    ],
}
"""As GET .../config answers."""


def test_a_batching_model_gets_a_batch_dimension() -> None:
    config = {"max_batch_size": 8, "input": [{"name": "X", "data_type": "TYPE_FP16", "dims": ["3", "-1"]}]}
    assert zero_inputs(config) == (SampleInput("X", "FP16", (1, 3, 1), bytes(6)),)


def test_a_variable_input_has_the_shape_of_the_configuration() -> None:
    config = {
        "max_batch_size": 8,
        "input": [{"name": "X", "data_type": "TYPE_FP16", "dims": ["3", "-1"]}],
        "parameters": {"sample_shape.X": {"string_value": "3,5"}},
    }
    assert zero_inputs(config) == (SampleInput("X", "FP16", (1, 3, 5), bytes(30)),)


def test_texts_are_not_empty_and_optional_inputs_are_left_out() -> None:
    config = {
        "max_batch_size": 0,
        "input": [
            {"name": "T", "data_type": "TYPE_STRING", "dims": [2]},
            {"name": "O", "data_type": "TYPE_FP32", "dims": [2], "optional": True},
        ],
    }
    text = struct.pack("<I", len(SAMPLE_TEXT)) + SAMPLE_TEXT
    assert zero_inputs(config) == (SampleInput("T", "BYTES", (2,), 2 * text),)


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(EngineError, match="TYPE_NEW"):
        zero_inputs({"input": [{"name": "X", "data_type": "TYPE_NEW", "dims": [1]}]})


def test_a_model_with_a_warm_up_sample_gets_that(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "t").write_bytes(b"the tensor")
    assert sample_inputs(WARM, tmp_path) == (
        SampleInput("T", "BYTES", (1, 2), b"the tensor"),
        SampleInput("N", "INT32", (1, 3), bytes(12)),
    )


def test_a_sample_without_its_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="warmup/t: no such file"):
        sample_inputs(WARM, tmp_path)


def test_the_body_is_json_then_the_tensors() -> None:
    body, length = infer_body(
        (SampleInput("X", "FP32", (1,), bytes(4)), SampleInput("Y", "INT8", (2,), b"ab")), {}
    )
    header = json.loads(body[:length])
    assert [i["parameters"]["binary_data_size"] for i in header["inputs"]] == [4, 2]
    assert body[length:] == bytes(4) + b"ab"


def test_of_optional_inputs_alone_those_of_a_known_shape_are_sent() -> None:
    optional = {"data_type": "TYPE_INT8", "optional": True}
    inputs = [{"name": "A", "dims": [-1], **optional}, {"name": "B", "dims": [2], **optional}]
    assert [i.name for i in zero_inputs({"input": inputs})] == ["B"]
    shape = {"parameters": {"sample_shape.A": {"string_value": "3"}}}
    assert [i.shape for i in zero_inputs({"input": inputs, **shape})] == [(3,), (2,)]


@pytest.mark.parametrize(
    ("batching", "sequences"),
    [
        ({"sequence_batching": {}}, True),
        ({"sequence_batching": {"iterative_sequence": True}}, False),
        ({}, False),
    ],
)
def test_a_model_with_sequences_gets_a_whole_one(
    batching: dict[str, dict[str, bool]], sequences: bool
) -> None:
    config = {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}], **batching}
    made = sample_request("m", "", lambda _: config)
    said = json.loads(made.body[: made.json_length])["parameters"]
    assert (said.get("sequence_start"), said.get("sequence_end")) == (
        (True, True) if sequences else (None, None)
    )


def test_a_sequence_has_a_name_where_the_model_reads_one() -> None:
    control = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}
    inputs = [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]
    config = {"input": inputs, "sequence_batching": {"control_input": [{"control": [control]}]}}
    made = sample_request("m", "", lambda _: config)
    assert isinstance(json.loads(made.body[: made.json_length])["parameters"]["sequence_id"], str)


def test_a_decoupled_model_gets_a_message_for_its_stream() -> None:
    config = {
        "model_transaction_policy": {"decoupled": True},
        "sequence_batching": {},
        "max_batch_size": 4,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
    }
    made = sample_request("m", "", lambda _: config)
    message = service_pb2.ModelInferRequest.FromString(made.body)
    assert made.json_length is None
    assert (message.model_name, message.inputs[0].name, list(message.inputs[0].shape)) == ("m", "X", [1, 2])
    assert message.raw_input_contents == [bytes(8)]
    assert message.parameters["sequence_start"].bool_param
    assert message.parameters["sequence_id"].int64_param


def test_an_alias_gets_the_sample_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "own" / "warmup").mkdir(parents=True)
    (tmp_path / "own" / "warmup" / "x").write_bytes(b"abcd")
    inputs = [{"name": "X", "data_type": "TYPE_INT8", "dims": [4]}]
    sample = {"X": {"data_type": "TYPE_INT8", "dims": [4], "input_data_file": "x"}}
    step = {"model_name": "own", "input_map": {"X": "X"}}
    configs = {
        "own": {"input": inputs, "model_warmup": [{"inputs": sample}]},
        "alias": {"input": inputs, "ensemble_scheduling": {"step": [step]}},
    }
    made = sample_request("alias", str(tmp_path), configs.__getitem__)
    assert made.body.endswith(b"abcd")
    assert not made.generated
