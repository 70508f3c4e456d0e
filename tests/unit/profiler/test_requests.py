import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from model_files import write_text_sample, write_texts
from tritonclient.grpc.service_pb2 import ModelInferRequest

from controlplane.domain.errors import InputError
from controlplane.domain.tensors import SAMPLE_TEXT
from controlplane.profiler.requests import (
    Inputs,
    check_batches_form,
    request_of,
    request_set,
    requests_for,
)
from controlplane.render.config import parse_config
from controlplane.render.source import SourceModel, read_source


def source(inputs: str, max_batch: int = 8) -> SourceModel:
    text = f'backend: "b"\nmax_batch_size: {max_batch}\n{inputs}'
    return SourceModel("m", "/models/m", parse_config(text, "f"), ("1",))


def generated(inputs: str, max_batch: int = 8) -> ModelInferRequest:
    (request,) = requests_for(source(inputs, max_batch))
    return request


def data_file(directory: Path, *entries: object) -> Inputs:
    path = directory / "in.json"
    path.write_text(json.dumps({"data": entries}))
    return Inputs(data=path)


def test_shapes_and_types_come_from_the_configuration() -> None:
    request = generated(
        'input [ { name: "X", data_type: TYPE_FP32, dims: [ 2, 3 ] }, '
        '{ name: "N", data_type: TYPE_INT64, dims: [ 4 ] }, '
        '{ name: "T", data_type: TYPE_STRING, dims: [ 2 ] }, '
        '{ name: "O", data_type: TYPE_FP32, dims: [ -1 ], optional: true } ]'
    )
    told = [(i.name, i.datatype, list(i.shape)) for i in request.inputs]
    assert told == [("X", "FP32", [1, 2, 3]), ("N", "INT64", [1, 4]), ("T", "BYTES", [1, 2])]
    floats, ones, texts = request.raw_input_contents
    assert np.isfinite(np.frombuffer(floats, np.float32)).all()
    assert np.frombuffer(ones, np.int64).tolist() == [1, 1, 1, 1]
    assert len(SAMPLE_TEXT) == 128
    assert texts == 2 * (struct.pack("<I", 128) + SAMPLE_TEXT)


def test_a_model_without_batching_has_no_batch_dimension() -> None:
    request = generated('input [ { name: "X", data_type: TYPE_FP16, dims: [ 2 ] } ]', 0)
    assert list(request.inputs[0].shape) == [2]
    assert len(request.raw_input_contents[0]) == 4


OPEN = 'input [ { name: "X", data_type: TYPE_FP32, dims: [ 3, -1 ] } ]'


def test_open_dimensions_are_asked_for_and_then_taken() -> None:
    with pytest.raises(InputError, match=r"config\.pbtxt: X: .*--shape m:X:3,N, or --input-data m:FILE"):
        requests_for(source(OPEN))
    (request,) = requests_for(source(OPEN), Inputs(shapes={"X": (3, 5)}))
    assert list(request.inputs[0].shape) == [1, 3, 5]


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"X": (4, 5)}, "--shape m:X: .*does not fit"),
        ({"X": (3,)}, "does not fit"),
        ({"X": (3, 0)}, "does not fit"),
        ({"Y": (3, 5)}, "there is no input 'Y'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        requests_for(source(OPEN), Inputs(shapes=shapes))


def test_a_configuration_without_inputs_is_refused() -> None:
    with pytest.raises(InputError, match="lists no input"):
        requests_for(source(""))


OPTIONAL = """
input [ { name: "A", data_type: TYPE_FP32, dims: [ -1 ], optional: true },
        { name: "B", data_type: TYPE_FP32, dims: [ 2 ], optional: true } ]
"""


def test_of_optional_inputs_alone_those_of_a_known_shape_are_sent(tmp_path: Path) -> None:
    def names(text: str, given: Inputs) -> list[str]:
        return [tensor.name for tensor in requests_for(source(text), given)[0].inputs]

    assert names(OPTIONAL, Inputs()) == ["B"]
    assert names(OPTIONAL, Inputs(shapes={"A": (3,)})) == ["A", "B"]
    assert names(OPTIONAL, data_file(tmp_path, {"B": [1, 2]})) == ["B"]
    with pytest.raises(InputError, match="--shape m:A:N, or --input-data m:FILE"):
        requests_for(source(OPTIONAL.replace("[ 2 ]", "[ -1 ]")))


def test_a_request_that_is_a_sequence_by_itself_has_no_marks() -> None:
    (request,) = requests_for(source(STEPS + "sequence_batching { iterative_sequence: true }"))
    assert not request.parameters


STEPS = 'input [ { name: "X", data_type: TYPE_FP32, dims: [ 1 ] } ]'


def marks(requests: Sequence[ModelInferRequest]) -> list[tuple[bool, bool]]:
    """Whether each request is the first and the last of its sequence."""
    flags = ("sequence_start", "sequence_end")
    first, last = ([r.parameters[name].bool_param for r in requests] for name in flags)
    return list(zip(first, last, strict=True))


def test_a_model_with_sequences_is_measured_with_whole_ones(tmp_path: Path) -> None:
    requests = requests_for(source(f"sequence_batching {{ }} {STEPS}"))
    assert marks(requests) == [(True, False), *18 * [(False, False)], (False, True)]
    assert len({r.parameters["sequence_id"].int64_param for r in requests}) == 1
    given = data_file(tmp_path, [{"X": [1]}, {"X": [2]}], [{"X": [3]}])
    requests = requests_for(source(f"sequence_batching {{ }} {STEPS}"), given)
    assert marks(requests) == [(True, False), (False, True), (True, True)]


def test_a_model_that_takes_texts_as_sequence_ids_gets_them() -> None:
    control = "control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ]"
    ids = f"control_input [ {{ name: 'ID' {control} }} ]"
    request = requests_for(source(f"sequence_batching {{ {ids} }} {STEPS}"))[0]
    assert request.parameters["sequence_id"].string_param.isdigit()


def test_generated_values_stay_in_their_range() -> None:
    numbers = '{{ name: "{}", data_type: TYPE_{}, dims: [ 200 ] }}'.format
    two = f"input [ {numbers('I', 'INT64')}, {numbers('X', 'FP32')} ]"
    (request,) = requests_for(source(two), Inputs(ranges={"I": (3, 5), "X": (-1.0, 0.5)}))
    assert set(np.frombuffer(request.raw_input_contents[0], np.int64)) == {3, 4, 5}
    floats = np.frombuffer(request.raw_input_contents[1], np.float32)
    assert (floats.min() >= -1.0, floats.max() <= 0.5) == (True, True)
    with pytest.raises(InputError, match=r"--range m:T: there is no input of numbers 'T'"):
        requests_for(source(two), Inputs(ranges={"T": (0, 1)}))


def test_a_models_own_sample_comes_before_generated_values(tmp_path: Path) -> None:
    write_texts(tmp_path, "fussy", b"{", "a JSON object")
    write_text_sample(tmp_path, "fussy", b"{}")
    (request,) = requests_for(read_source(tmp_path, "fussy"))
    assert list(request.inputs[0].shape) == [1, 1]
    assert request.raw_input_contents[0] == struct.pack("<I", 2) + b"{}"
    (tmp_path / "fussy" / "warmup" / "text").unlink()
    with pytest.raises(InputError, match=r"config\.pbtxt: model_warmup: .*warmup/text: no such file"):
        requests_for(read_source(tmp_path, "fussy"))


def test_each_entry_of_a_file_is_a_request(tmp_path: Path) -> None:
    inputs = data_file(tmp_path, {"X": {"content": [1, 2, 3], "shape": [3, 1]}}, {"X": [4, 5, 6]})
    requests = requests_for(source(OPEN), Inputs({"X": (3, 1)}, inputs.data))
    assert [list(r.inputs[0].shape) for r in requests] == [[1, 3, 1], [1, 3, 1]]
    values = [np.frombuffer(r.raw_input_contents[0], np.float32).tolist() for r in requests]
    assert values == [[1, 2, 3], [4, 5, 6]]


def test_a_request_of_several_inferences_takes_entries_in_turn(tmp_path: Path) -> None:
    given = data_file(tmp_path, {"X": [1, 2]}, {"X": [3, 4]})
    samples = requests_for(source('input [ { name: "X", data_type: TYPE_INT32, dims: [ 2 ] } ]'), given)
    request = request_of(samples, 3)
    (tensor,) = request.inputs
    assert list(tensor.shape) == [3, 2]
    assert np.frombuffer(request.raw_input_contents[0], np.int32).tolist() == [1, 2, 3, 4, 1, 2]
    assert [list(s.inputs[0].shape) for s in samples] == [[1, 2], [1, 2]]


def test_requests_of_several_shapes_are_refused_where_they_would_share_a_batch(tmp_path: Path) -> None:
    inputs = data_file(
        tmp_path,
        {"X": {"content": [1, 2, 3], "shape": [3, 1]}},
        {"X": {"content": [1, 2, 3, 4, 5, 6], "shape": [3, 2]}},
    )
    model = source(OPEN)
    requests = requests_for(model, inputs)
    check_batches_form(model, requests, inputs, largest_batch=1)
    with pytest.raises(
        InputError, match=r"in\.json: data: entry 1 and entry 0 differ in shapes.*--set batches=1"
    ):
        check_batches_form(model, requests, inputs, largest_batch=4)
    ragged = source(OPEN.replace("dims:", "allow_ragged_batch: true, dims:"))
    check_batches_form(ragged, requests, inputs, largest_batch=4)


def test_request_sets_are_equal_where_the_requests_are(tmp_path: Path) -> None:
    model = source('input [ { name: "T", data_type: TYPE_STRING, dims: [ 1 ] } ]')
    first = data_file(tmp_path, {"T": ["a"]})
    one = request_set(requests_for(model, first), first)
    assert (one.file, one.requests) == (str(first.data), 1)
    moved = Inputs(data=(tmp_path / "in.json").rename(tmp_path / "moved.json"))
    assert request_set(requests_for(model, moved), moved).sha256 == one.sha256
    other = data_file(tmp_path, {"T": ["b"]})
    assert request_set(requests_for(model, other), other).sha256 != one.sha256
    assert request_set(requests_for(model), Inputs()).sha256 != one.sha256
    assert request_set(requests_for(model), Inputs()).file is None
