"""A repository as a Triton serves it that completes configurations, on real Tritons."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tritonclient.http as triton_http
from ctl_host import Host, ended, infer_http, partition, plan

from controlplane.files.sample_shapes import write_sample_shapes

pytestmark = pytest.mark.e2e

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


def write(repository: Path, model: str, code: str) -> Path:
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "1" / "model.py").write_text(code)
    return repository / model


def test_models_without_a_whole_configuration_are_surveyed_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ended(Host(tmp_path, f"init{os.getpid()}")) as host:
        write(host.repository, "bare", _COMPLETES)
        partial = write(host.repository, "partial", _COMPLETES)
        (partial / "config.pbtxt").write_text('backend: "python"')

        monkeypatch.setenv("XDG_STATE_HOME", host.environment["XDG_STATE_HOME"])
        write_sample_shapes(host.repository / "bare", {"X": (4,)})
        served = host.apply(plan(partition("a", 40, model="bare", shadow=False)))
        assert served.returncode == 0, served.stderr
        with triton_http.InferenceServerClient(f"127.0.0.1:{host.http}") as client:
            infer_http(client, "a")

        write(host.repository, "broken", 'raise ValueError("no such weights")')
        surveyed = host.bare("init", str(host.repository), "--json")
        assert surveyed.returncode == 0, surveyed.stderr
        found = {one["model"]: one for one in json.loads(surveyed.stdout)["models"]}
        assert {model: (one["state"], one["completed"]) for model, one in found.items()} == {
            "bare": ("ready", True),
            "broken": ("not supported", False),
            "echo": ("ready", False),
            "partial": ("needs inputs", True),
        }
        assert "ValueError: no such weights" in found["broken"]["note"]
        assert "model.py(1)" not in found["broken"]["note"]
        assert [p.name for p in (host.repository / "bare").iterdir()] == ["1"]
