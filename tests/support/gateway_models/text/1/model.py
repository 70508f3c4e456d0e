import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Its strings, reversed."""

    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            turned = np.array([item[::-1] for item in data.flat], dtype=object).reshape(data.shape)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", turned)]))
        return responses
