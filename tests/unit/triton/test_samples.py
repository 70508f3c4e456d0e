"""Small inferences: a model's own sample, else zeros for every kind of input, in KServe's binary layout."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from controlplane.domain.errors import EngineError
from controlplane.domain.tensors import SAMPLE_TEXT
from controlplane.triton.samples import SampleInput, sample_inputs, sample_request

TEXT = struct.pack("<I", len(SAMPLE_TEXT)) + SAMPLE_TEXT
VARIABLE = {"name": "X", "data_type": "TYPE_FP16", "dims": ["3", "-1"]}
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


def tensor(name: str, kind: str, *dims: int, **more: bool) -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": list(dims), **more}


def shape_of(name: str, shape: str) -> dict[str, Any]:
    return {f"sample_shape.{name}": {"string_value": shape}}


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        (
            {"max_batch_size": 8, "input": [VARIABLE]},
            [SampleInput("X", "FP16", (1, 3, 1), bytes(6))],
        ),
        (
            {"max_batch_size": 8, "input": [VARIABLE], "parameters": shape_of("X", "3,5")},
            [SampleInput("X", "FP16", (1, 3, 5), bytes(30))],
        ),
        (
            {"input": [tensor("T", "TYPE_STRING", 2), tensor("O", "TYPE_FP32", 2, optional=True)]},
            [SampleInput("T", "BYTES", (2,), 2 * TEXT)],
        ),
        (
            {"input": [tensor(n, "TYPE_INT8", d, optional=True) for n, d in (("A", -1), ("B", 2))]},
            [SampleInput("B", "INT8", (2,), bytes(2))],
        ),
        (
            {
                "input": [tensor(n, "TYPE_INT8", d, optional=True) for n, d in (("A", -1), ("B", 2))],
                "parameters": shape_of("A", "3"),
            },
            [SampleInput("A", "INT8", (3,), bytes(3)), SampleInput("B", "INT8", (2,), bytes(2))],
        ),
    ],
    ids=["batching", "variable", "no text is empty", "optional of a known shape", "optional with a shape"],
)
def test_zeros_have_the_shape_of_the_configuration(
    config: dict[str, Any], inputs: list[SampleInput], tmp_path: Path
) -> None:
    assert sample_inputs(config, tmp_path) == tuple(inputs)


def test_an_unknown_type_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="TYPE_NEW"):
        sample_inputs({"input": [tensor("X", "TYPE_NEW", 1)]}, tmp_path)


def test_a_model_with_a_warm_up_sample_gets_that_and_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="warmup/t: no such file"):
        sample_inputs(WARM, tmp_path)
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "t").write_bytes(b"the tensor")
    assert sample_inputs(WARM, tmp_path) == (
        SampleInput("T", "BYTES", (1, 2), b"the tensor"),
        SampleInput("N", "INT32", (1, 3), bytes(12)),
    )


def test_the_body_is_json_then_the_tensors() -> None:
    config = {"input": [tensor("X", "TYPE_FP32", 1), tensor("Y", "TYPE_STRING", 1)]}
    made = sample_request("m", "", lambda _: config)
    header = json.loads(made.body[: made.json_length])
    assert [i["parameters"]["binary_data_size"] for i in header["inputs"]] == [4, len(TEXT)]
    assert made.body[made.json_length :] == bytes(4) + TEXT


NAMED = {"control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}]}


@pytest.mark.parametrize(
    ("batching", "ids"),
    [
        ({"sequence_batching": {}}, int),
        ({"sequence_batching": {"control_input": [NAMED]}}, str),
        ({"sequence_batching": {"iterative_sequence": True}}, None),
        ({}, None),
    ],
)
def test_a_model_with_sequences_gets_a_whole_one(batching: dict[str, Any], ids: type | None) -> None:
    config = {"input": [tensor("X", "TYPE_FP32", 1)], **batching}
    made = sample_request("m", "", lambda _: config)
    said = json.loads(made.body[: made.json_length])["parameters"]
    if ids is None:
        assert said.keys() == {"binary_data_output"}
    else:
        assert (said["sequence_start"], said["sequence_end"], type(said["sequence_id"])) == (True, True, ids)


def test_a_decoupled_model_gets_a_message_for_its_stream() -> None:
    config = {
        "model_transaction_policy": {"decoupled": True},
        "sequence_batching": {},
        "max_batch_size": 4,
        "input": [tensor("X", "TYPE_FP32", 2)],
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
    inputs = [tensor("X", "TYPE_INT8", 4)]
    sample = {"X": {"data_type": "TYPE_INT8", "dims": [4], "input_data_file": "x"}}
    step = {"model_name": "own", "input_map": {"X": "X"}}
    configs = {
        "own": {"input": inputs, "model_warmup": [{"inputs": sample}]},
        "alias": {"input": inputs, "ensemble_scheduling": {"step": [step]}},
    }
    made = sample_request("alias", str(tmp_path), configs.__getitem__)
    assert made.body.endswith(b"abcd")
    assert not made.generated
