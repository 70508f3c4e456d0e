"""Zeros for every kind of input, in KServe's binary layout."""

from __future__ import annotations

import json
import struct

import pytest
from tritonclient.grpc import service_pb2

from controlplane.domain.errors import EngineError
from controlplane.domain.tensors import SAMPLE_TEXT
from controlplane.monitor.inference import ZeroInput, infer_body, zero_inputs, zero_request

pytestmark = pytest.mark.unit


def test_a_batching_model_gets_a_batch_dimension() -> None:
    config = {"max_batch_size": 8, "input": [{"name": "X", "data_type": "TYPE_FP16", "dims": ["3", "-1"]}]}
    assert zero_inputs(config, batch=2) == (ZeroInput("X", "FP16", (2, 3, 1), bytes(12)),)


def test_texts_are_not_empty_and_optional_inputs_are_left_out() -> None:
    config = {
        "max_batch_size": 0,
        "input": [
            {"name": "T", "data_type": "TYPE_STRING", "dims": [2]},
            {"name": "O", "data_type": "TYPE_FP32", "dims": [2], "optional": True},
        ],
    }
    text = struct.pack("<I", len(SAMPLE_TEXT)) + SAMPLE_TEXT
    assert zero_inputs(config) == (ZeroInput("T", "BYTES", (2,), 2 * text),)


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(EngineError, match="TYPE_NEW"):
        zero_inputs({"input": [{"name": "X", "data_type": "TYPE_NEW", "dims": [1]}]})


def test_the_body_is_json_then_the_tensors() -> None:
    body, length = infer_body(
        (ZeroInput("X", "FP32", (1,), bytes(4)), ZeroInput("Y", "INT8", (2,), b"ab")), {}
    )
    header = json.loads(body[:length])
    assert [i["parameters"]["binary_data_size"] for i in header["inputs"]] == [4, 2]
    assert body[length:] == bytes(4) + b"ab"


@pytest.mark.parametrize("sequences", [True, False])
def test_a_model_with_sequences_gets_a_whole_one(sequences: bool) -> None:
    config = {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]}
    made = zero_request("m", config | ({"sequence_batching": {}} if sequences else {}))
    said = json.loads(made.body[: made.json_length])["parameters"]
    assert (said.get("sequence_start"), said.get("sequence_end")) == (
        (True, True) if sequences else (None, None)
    )


def test_a_decoupled_model_gets_a_message_for_its_stream() -> None:
    config = {
        "model_transaction_policy": {"decoupled": True},
        "sequence_batching": {},
        "max_batch_size": 4,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
    }
    made = zero_request("m", config)
    message = service_pb2.ModelInferRequest.FromString(made.body)
    assert made.json_length is None
    assert (message.model_name, message.inputs[0].name, list(message.inputs[0].shape)) == ("m", "X", [1, 2])
    assert message.raw_input_contents == [bytes(8)]
    assert message.parameters["sequence_start"].bool_param
    assert message.parameters["sequence_id"].int64_param
