"""Small inferences, as a server gets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from controlplane.monitor.inference import infer_body, sample_request
from controlplane.monitor.samples import SampleInput

pytestmark = pytest.mark.unit


def test_the_body_is_json_then_the_tensors() -> None:
    body, length = infer_body(
        (SampleInput("X", "FP32", (1,), bytes(4)), SampleInput("Y", "INT8", (2,), b"ab")), {}
    )
    header = json.loads(body[:length])
    assert [i["parameters"]["binary_data_size"] for i in header["inputs"]] == [4, 2]
    assert body[length:] == bytes(4) + b"ab"


@pytest.mark.parametrize("sequences", [True, False])
def test_a_model_with_sequences_gets_a_whole_one(sequences: bool) -> None:
    config = {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]}
    made = sample_request("m", "", lambda _: config | ({"sequence_batching": {}} if sequences else {}))
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
