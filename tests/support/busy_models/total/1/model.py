"""Adds up the inputs of each sequence."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            x, start, sequence = (
                int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0])
                for name in ("X", "START", "CORRID")
            )
            self.sums[sequence] = (0 if start else self.sums[sequence]) + x
            total = np.array([[self.sums[sequence]]], dtype=np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)]))
        return answers
