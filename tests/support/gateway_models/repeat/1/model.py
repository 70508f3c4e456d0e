import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers 0, 1, 2, ..., as many as the first value says, the second value's seconds apart."""

    def execute(self, requests):
        server = np.array([os.environ["SERVER_NAME"].encode()], dtype=object)
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            sender = request.get_response_sender()
            for number in range(int(data[0])):
                if len(data) > 1:
                    time.sleep(float(data[1]))
                output = pb_utils.Tensor("OUTPUT", np.array([number], dtype=np.float32))
                sender.send(pb_utils.InferenceResponse([output, pb_utils.Tensor("SERVER", server)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
