import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        server = np.array([os.environ["SERVER_NAME"].encode()], dtype=object)
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "OUTPUT",
                        pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().copy(),
                    ),
                    pb_utils.Tensor("SERVER", server),
                ]
            )
            for request in requests
        ]
