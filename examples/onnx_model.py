"""Serves the network.onnx beside it in Triton's Python backend, without a config.pbtxt.

Inputs and outputs are those of the file. One thread that never spins: under a quota more would waste it.
Under the name model.onnx Triton would take the file for its onnxruntime backend's.
"""

from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

TYPES = {
    "tensor(float)": "TYPE_FP32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(int32)": "TYPE_INT32",
    "tensor(string)": "TYPE_STRING",
}


def open_session():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(Path(__file__).with_name("network.onnx")), options)


def is_open(dimension):
    return not isinstance(dimension, int)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        session = open_session()
        batched = all(tensor.shape and is_open(tensor.shape[0]) for tensor in session.get_inputs())
        for tensors, add in (
            (session.get_inputs(), config.add_input),
            (session.get_outputs(), config.add_output),
        ):
            for tensor in tensors:
                dims = [-1 if is_open(d) else d for d in tensor.shape[1 if batched else 0 :]]
                add({"name": tensor.name, "data_type": TYPES[tensor.type], "dims": dims})
        config.set_max_batch_size(4 if batched else 0)
        return config

    def initialize(self, args):
        self._session = open_session()
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        feeds = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
        results = self._session.run(self._outputs, feeds)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, np.ascontiguousarray(result))
                for name, result in zip(self._outputs, results, strict=True)
            ]
        )
