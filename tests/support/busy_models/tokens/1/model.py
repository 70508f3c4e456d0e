"""Answers N times, GAP seconds apart, within its execution: as a generator around a blocking library does.

The last answer comes once the file UNTIL exists.
"""

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, gap, until = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0]
                for name in ("N", "GAP", "UNTIL")
            )
            sender = request.get_response_sender()
            for i in range(int(count)):
                time.sleep(float(gap))
                while i == count - 1 and not os.path.exists(until):
                    time.sleep(0.05)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("I", np.array([i], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
