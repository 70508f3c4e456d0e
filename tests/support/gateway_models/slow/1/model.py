import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Takes as many seconds as the first value says."""

    def execute(self, requests):
        server = np.array([os.environ["SERVER_NAME"].encode()], dtype=object)
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            time.sleep(float(data[0]))
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT", data), pb_utils.Tensor("SERVER", server)]
                )
            )
        return responses
