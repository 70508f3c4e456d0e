from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.cli.jobs.profile import model_inputs
from controlplane.domain.errors import InputError
from controlplane.profiler.requests import Inputs


def test_a_shape_is_for_the_model_it_names_and_for_all_where_it_names_none() -> None:
    told = model_inputs(["ocr:IMAGE:3,48,320", "TOKENS:8", "x:0:2"], ["bert:in.json"], ["ocr", "bert"])
    assert told == {
        "ocr": Inputs({"IMAGE": (3, 48, 320), "TOKENS": (8,), "x:0": (2,)}),
        "bert": Inputs({"TOKENS": (8,), "x:0": (2,)}, Path("in.json")),
    }
    assert model_inputs([], [], ["ocr"]) == {}


@pytest.mark.parametrize(
    ("shapes", "files", "message"),
    [
        (["IMAGE"], [], "--shape: 'IMAGE' is not MODEL:INPUT:DIM,DIM"),
        (["ocr:IMAGE:3,0"], [], "--shape: .*with dimensions above 0"),
        ([], ["in.json"], "--input-data: 'in.json' is not MODEL:FILE"),
        ([], ["ocr:a", "ocr:b"], "--input-data: 'ocr' has two files"),
    ],
)
def test_what_is_in_no_such_form_is_refused(shapes: list[str], files: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_inputs(shapes, files, ["ocr"])


def test_ranges_are_by_model_and_input() -> None:
    found = model_inputs([], [], ["a", "b"], ["a:IDS:0,9", "X:-1,1.5"])
    assert found["a"].ranges == {"IDS": (0.0, 9.0), "X": (-1.0, 1.5)}
    assert found["b"].ranges == {"X": (-1.0, 1.5)}


@pytest.mark.parametrize("text", ["X", "a:X:1", "a:X:2,1", "a:X:nan,1", "a:X:0,inf", "a:X:0,1,2"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--range: .*LOW,HIGH"):
        model_inputs([], [], ["a"], [text])
