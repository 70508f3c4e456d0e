import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sum of a sequence's values so far."""

    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        server = np.array([[os.environ["SERVER_NAME"].encode()]], dtype=object)
        responses = []
        for request in requests:
            value, start, key = (
                float(pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0])
                for name in ("INPUT", "START", "CORRID")
            )
            self.sums[key] = value + (0 if start else self.sums.get(key, 0))
            output = np.array([[self.sums[key]]], dtype=np.float32)
            tensors = [pb_utils.Tensor("OUTPUT", output), pb_utils.Tensor("SERVER", server)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
