"""A repository as a Triton serves it that completes configurations, on real Tritons."""

import json
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton_http
from bare_triton import ROOT
from ctl_fleet import Ctl, partition, plan
from model_files import write
from onnx import TensorProto, helper

from controlplane.files.models import write_sample_shapes

_COMPLETES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(8)
        return config

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        if any(x.shape[1] < 4 for x in tensors):
            raise pb_utils.TritonModelException("X needs 4 values")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in tensors]
"""

_TENSORS = "".join(
    f"{kind} [ {{ name: '{name}' data_type: TYPE_FP32 dims: [ 3 ] }} ]\n"
    for kind, name in (("input", "X"), ("output", "Y"))
)


def test_the_example_serves_an_onnx_file_where_only_the_python_backend_is(tmp_path: Path) -> None:
    shape = ["n", 3]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("X", "Y")]
    graph = helper.make_graph([helper.make_node("Neg", ["X"], ["Y"])], "g", tensors[:1], tensors[1:])
    opset = helper.make_opsetid("", 17)
    network = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    with Ctl(tmp_path, "onnx") as host:
        folder = write(host.repository, "negates", (ROOT / "examples" / "onnx_model.py").read_text())
        (folder / "1" / "network.onnx").write_bytes(network.SerializeToString())
        config = 'platform: "onnxruntime_onnx" max_batch_size: 4\n' + _TENSORS
        needs = write(host.repository, "native", "", config)
        (needs / "1" / "model.onnx").write_bytes(network.SerializeToString())
        surveyed = host.bare("init", str(host.repository), "--json")
        found = {one["model"]: one for one in json.loads(surveyed.stdout)["models"]}
        assert (found["negates"]["state"], found["negates"]["inputs"][0]["dims"]) == ("ready", [3])
        assert found["native"]["state"] == "not supported"
        assert "onnxruntime" in found["native"]["note"]
        host.apply(plan(partition("a", 40, model="negates", shadow=False)))
        with triton_http.InferenceServerClient(f"127.0.0.1:{host.http}") as client:
            given = triton_http.InferInput("X", [1, 3], "FP32")
            given.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
            assert client.infer("a", [given]).as_numpy("Y").tolist() == [[-1, -2, -3]]


def test_models_without_a_whole_configuration_are_surveyed_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ctl(tmp_path, "init") as host:
        write(host.repository, "bare", _COMPLETES)
        config = 'backend: "python" instance_group [ { kind: KIND_GPU gpus: [ 3 ] } ]'
        write(host.repository, "partial", _COMPLETES, config)

        monkeypatch.setenv("XDG_STATE_HOME", host.environment["XDG_STATE_HOME"])
        write_sample_shapes(host.repository / "bare", {"X": (4,)})
        host.apply(plan(partition("a", 40, model="bare", shadow=False)))
        host.infer("a")

        write(host.repository, "broken", 'raise ValueError("no such weights")')
        write(host.repository, "ends", "import os\nos.kill(os.getppid(), 9)")
        surveyed = host.bare("init", str(host.repository), "--json", "--set", "load_timeout_s=15")
        found = {one["model"]: one for one in json.loads(surveyed.stdout)["models"]}
        assert {model: (one["state"], one["completed"]) for model, one in found.items()} == {
            "bare": ("ready", True),
            "broken": ("not supported", False),
            "echo": ("ready", False),
            "ends": ("not supported", False),
            "partial": ("needs inputs", True),
        }
        assert "ValueError: no such weights" in found["broken"]["note"]
        assert "model.py(1)" not in found["broken"]["note"]
        assert [p.name for p in (host.repository / "bare").iterdir()] == ["1"]
