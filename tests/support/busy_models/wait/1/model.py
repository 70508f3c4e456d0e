"""Waits as many seconds as its input says, for each request, without a core: as on a device."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            time.sleep(float(x.as_numpy()[0, 0]))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())]))
        return answers
