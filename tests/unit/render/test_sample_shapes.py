"""The shape of a sample for inputs of variable shape: written by the user, or kept from a measurement."""

from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain.errors import InputError
from controlplane.files.models import read_sample_shapes, write_sample_shapes
from controlplane.render.config import parse_config, sample_shapes, with_sample_shapes
from controlplane.render.source import read_source

OPEN = """backend: "b" max_batch_size: 8
input [ { name: "a:b", data_type: TYPE_FP32, dims: [ 3, -1 ] } ]
input [ { name: "N", data_type: TYPE_INT32, dims: [ 2 ] } ]
"""


def config(more: str = "") -> ModelConfig:
    return parse_config(OPEN + more, "f")


def parameter(value: str) -> str:
    return f'parameters {{ key: "sample_shape.a:b" value {{ string_value: "{value}" }} }}'


def test_a_measured_shape_is_for_variable_inputs_that_take_it() -> None:
    kept = {"a:b": (3, 7), "N": (2,), "gone": (1,)}
    assert sample_shapes(with_sample_shapes(config(), kept), "f") == {"a:b": (3, 7)}
    assert with_sample_shapes(config(), {"a:b": (4, 7)}) == config()


def test_the_users_own_shape_comes_first() -> None:
    written = config(parameter("3,5"))
    assert sample_shapes(with_sample_shapes(written, {"a:b": (3, 7)}), "f") == {"a:b": (3, 5)}


@pytest.mark.parametrize("value", ["", "3", "4,5", "3,-1", "3,0", "3,x", "3,²"])
def test_a_written_shape_that_does_not_fit_is_named(value: str) -> None:
    with pytest.raises(InputError, match=r"'a:b'; write positive numbers without the batch") as refused:
        sample_shapes(config(parameter(value)), "config.pbtxt")
    assert refused.value.file == "config.pbtxt"
    assert refused.value.field == "parameters.sample_shape.a:b"


def test_a_kept_shape_reaches_what_is_served_and_not_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(OPEN)
    assert read_sample_shapes(model) == {}
    write_sample_shapes(model, {"a:b": (3, 7)})
    served = read_source(tmp_path / "models", "m").config
    assert served.parameters["sample_shape.a:b"].string_value == "3,7"
    assert (model / "config.pbtxt").read_text() == OPEN
