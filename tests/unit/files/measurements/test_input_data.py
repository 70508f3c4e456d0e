"""perf_analyzer's JSON form of real inputs."""

import base64
import json
import struct
import zipfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import InputError
from controlplane.domain.tensors import Sample, Shapes, TensorSpec
from controlplane.files.measurements.input_data import read_sequences

NUMBERS = TensorSpec("X", "FP32", (2, 2))
TEXT = TensorSpec("T", "BYTES", (1,))
OPEN = TensorSpec("O", "INT32", (-1, -1))


def read(
    directory: Path, content: object, *specs: TensorSpec, shapes: Shapes | None = None
) -> tuple[Sample, ...]:
    path = directory / "in.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return tuple(chain.from_iterable(read_sequences(path, specs, shapes or {})))


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def test_lists_contents_and_base64_are_the_same_values(tmp_path: Path) -> None:
    raw = np.array([1, 2, 3, 4], "<f4").tobytes()
    text = struct.pack("<I", 5) + b"h\xc3\xa9y!"
    forms = {
        "data": [
            {"X": [1, 2, 3, 4], "T": ["h\u00e9y!"]},
            {"X": {"content": [1.0, 2, 3, 4]}, "T": {"content": ["h\u00e9y!"], "shape": [1]}},
            {"X": b64(raw), "T": b64(text)},
            {"X": {"content": b64(raw), "shape": [2, 2]}, "T": {"content": b64(text)}},
        ],
        "validation_data": [{"Y": [1]}],
    }
    samples = read(tmp_path, forms, NUMBERS, TEXT)
    assert len(samples) == 4
    assert set(samples) == {samples[0]}
    x, t = samples[0]
    assert (x.datatype, x.shape, x.data) == ("FP32", (2, 2), raw)
    assert (t.datatype, t.shape, t.data) == ("BYTES", (1,), text)


def test_streams_count_as_their_entries_in_turn(tmp_path: Path) -> None:
    told = {"data": [[{"T": ["a"]}, {"T": ["b"]}], [{"T": ["c"]}]]}
    assert [sample[0].data[4:] for sample in read(tmp_path, told, TEXT)] == [b"a", b"b", b"c"]


def test_open_dimensions_come_from_the_entry_before_the_option(tmp_path: Path) -> None:
    told = {"data": [{"O": [1, 2]}, {"O": {"content": [1, 2, 3], "shape": [3, 1]}}]}
    samples = read(tmp_path, told, OPEN, shapes={"O": (1, 2)})
    assert [sample[0].shape for sample in samples] == [(1, 2), (3, 1)]


def test_optional_inputs_may_be_left_out(tmp_path: Path) -> None:
    spare = TensorSpec("S", "BOOL", (1,), optional=True)
    with_it, without = read(tmp_path, {"data": [{"T": ["a"], "S": [True]}, {"T": ["a"]}]}, TEXT, spare)
    assert [t.name for t in with_it] == ["T", "S"]
    assert with_it[1].data == b"\x01"
    assert [t.name for t in without] == ["T"]


@given(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=2, max_size=2))
def test_short_floats_are_written_as_triton_reads_them(values: list[float]) -> None:
    import tempfile

    specs = (TensorSpec("H", "FP16", (2,)), TensorSpec("B", "BF16", (2,)))
    with tempfile.TemporaryDirectory() as directory:
        ((half, brain),) = read(Path(directory), {"data": [{"H": values, "B": values}]}, *specs)
    assert np.frombuffer(half.data, np.float16).tolist() == values
    widened = np.frombuffer(b"".join(b"\0\0" + brain.data[i : i + 2] for i in (0, 2)), np.float32)
    assert np.allclose(widened, values, rtol=1 / 128, atol=1e-37)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"in\.json:1: must be an object"),
        ('{"data": [\n}', r"in\.json:2: is not JSON"),
        ({"dta": []}, r"in\.json:2: dta: unknown key; did you mean 'data'"),
        ({"data": []}, r"in\.json:2: data: must be a list of at least one entry"),
        ({"data": [{"T": ["a"]}, 3]}, r"in\.json:8: data\[1\]: must be an object of inputs"),
        ({"data": [{}]}, r"in\.json:3: data\[0\]: input 'T' is missing"),
        ({"data": [{"T": ["a"], "U": [1]}]}, r"in\.json:7: data\[0\]\.U: is not an input of the model"),
        ({"data": [{"T": "a"}]}, r"data\[0\]\.T: must be a flat list"),
        ({"data": [{"T": [1]}]}, r"data\[0\]\.T: element 0 must be a string, not 1"),
        ({"data": [{"T": ["a", "b"]}]}, r"in\.json:4: data\[0\]\.T: has 2 elements, and its shape takes 1"),
        ({"data": [[{"T": ["a"]}, {"T": []}]]}, r"data\[0\]\[1\]\.T: has 0 elements"),
        ({"data": [{"T": {"content": ["a"], "shpe": [1]}}]}, r"data\[0\]\.T\.shpe: unknown key"),
        ({"data": [{"T": {"content": ["a"], "shape": [2]}}]}, r"data\[0\]\.T\.shape: \[2\] does not fit"),
        ({"data": [{"T": {"content": ["a"], "shape": "1"}}]}, r"T\.shape: must be a list of whole numbers"),
        ({"data": [{"T": {"b64": "!"}}]}, r"data\[0\]\.T: is not base64"),
        ({"data": [{"T": b64(b"abc")}]}, r"each element of BYTES must follow its length"),
    ],
)
def test_mistakes_are_named_with_line_and_field(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, content, TEXT)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (NUMBERS, [1, 2, [3], 4], "element 2 must be a finite number"),
        (NUMBERS, [1, 2, 3, True], "element 3 must be a finite number"),
        (NUMBERS, [1, 2, 3, 1e39], "element 3 must be within FP32's range"),
        (NUMBERS, b64(b"abc"), "holds 3 bytes, and 4 x FP32 takes 16"),
        (TensorSpec("X", "UINT8", (1,)), [256], "element 0 must be a whole number from 0 to 255"),
        (TensorSpec("X", "INT64", (1,)), [1.0], "element 0 must be a whole number"),
        (TensorSpec("X", "BOOL", (1,)), [2], "element 0 must be true or false"),
        (TensorSpec("X", "FP32", (-1,)), [1], 'are variable: give "shape" beside.*--shape MODEL:X:DIMS'),
    ],
)
def test_values_that_do_not_fit_their_type_are_refused(
    tmp_path: Path, spec: TensorSpec, value: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, {"data": [{"X": value}]}, spec)


def test_other_forms_of_perf_analyzer_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory; only perf_analyzer's JSON file is supported"):
        read_sequences(tmp_path, [TEXT], {})
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.writestr("in.json", "{}")
    with pytest.raises(InputError, match="is a zip archive"):
        read_sequences(tmp_path / "in.zip", [TEXT], {})
    with pytest.raises(InputError, match="no such file"):
        read_sequences(tmp_path / "random", [TEXT], {})
