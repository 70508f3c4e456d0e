from __future__ import annotations

import numpy as np
import pytest

from controlplane.domain.errors import InputError
from controlplane.profiler.requests import example_request
from controlplane.render.config import parse_config
from controlplane.render.source import SourceModel

pytestmark = pytest.mark.unit


def source(inputs: str, max_batch: int = 8) -> SourceModel:
    text = f'backend: "b"\nmax_batch_size: {max_batch}\n{inputs}'
    return SourceModel("m", "/models/m", parse_config(text, "f"), ("1",))


def test_shapes_and_types_come_from_the_configuration() -> None:
    request = example_request(
        source(
            'input [ { name: "X", data_type: TYPE_FP32, dims: [ 2, 3 ] }, '
            '{ name: "N", data_type: TYPE_INT64, dims: [ 4 ] }, '
            '{ name: "T", data_type: TYPE_STRING, dims: [ 2 ] }, '
            '{ name: "O", data_type: TYPE_FP32, dims: [ -1 ], optional: true } ]'
        ),
        {},
    )
    told = [(i.name, i.datatype, list(i.shape)) for i in request.inputs]
    assert told == [("X", "FP32", [1, 2, 3]), ("N", "INT64", [1, 4]), ("T", "BYTES", [1, 2])]
    floats, ones, texts = request.raw_input_contents
    assert np.isfinite(np.frombuffer(floats, np.float32)).all()
    assert np.frombuffer(ones, np.int64).tolist() == [1, 1, 1, 1]
    assert texts == bytes(8)


def test_a_model_without_batching_has_no_batch_dimension() -> None:
    request = example_request(source('input [ { name: "X", data_type: TYPE_FP16, dims: [ 2 ] } ]', 0), {})
    assert list(request.inputs[0].shape) == [2]
    assert len(request.raw_input_contents[0]) == 4


OPEN = 'input [ { name: "X", data_type: TYPE_FP32, dims: [ 3, -1 ] } ]'


def test_open_dimensions_are_asked_for_and_then_taken() -> None:
    with pytest.raises(InputError, match=r"config\.pbtxt: X: .*--shape X:3,N"):
        example_request(source(OPEN), {})
    assert list(example_request(source(OPEN), {"X": (3, 5)}).inputs[0].shape) == [1, 3, 5]


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"X": (4, 5)}, "does not fit"),
        ({"X": (3,)}, "does not fit"),
        ({"X": (3, 0)}, "does not fit"),
        ({"Y": (3, 5)}, "there is no input 'Y'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        example_request(source(OPEN), shapes)


def test_a_configuration_without_inputs_is_refused() -> None:
    with pytest.raises(InputError, match="lists no input"):
        example_request(source(""), {})


def test_a_model_with_sequences_is_measured_without_them() -> None:
    with pytest.raises(InputError, match="measure a copy without sequence_batching"):
        example_request(
            source('sequence_batching { } input [ { name: "X", data_type: TYPE_FP32, dims: [ 1 ] } ]'), {}
        )
