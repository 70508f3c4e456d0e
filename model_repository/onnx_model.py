"""Serves the model.onnx beside it: Triton's Python backend around onnxruntime, on one thread.

One thread that never spins: under a CPU quota more threads burn the share early and then stall.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(Path(__file__).with_name("model.onnx")), options, providers=["CPUExecutionProvider"]
        )
        config = json.loads(args["model_config"])
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._outputs = [tensor["name"] for tensor in config["output"]]

    def execute(self, requests):
        feeds = {name: _stacked(requests, name) for name in self._inputs}
        results = self._session.run(self._outputs, feeds)
        answers, start = [], 0
        for request in requests:
            end = start + pb_utils.get_input_tensor_by_name(request, self._inputs[0]).shape()[0]
            tensors = [
                pb_utils.Tensor(name, result[start:end])
                for name, result in zip(self._outputs, results, strict=True)
            ]
            answers.append(pb_utils.InferenceResponse(tensors))
            start = end
        return answers


def _stacked(requests, name):
    """The batch Triton made: the requests' tensors, one after another."""
    parts = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
