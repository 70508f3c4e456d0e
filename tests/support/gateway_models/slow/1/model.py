import os
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Takes as many seconds as the first value says, unless cancelled. Notes both beside itself.

    A value below 0: for as long as a file `hold` lies there.
    """

    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def note(self, what):
        with (self.folder / what).open("a") as note:
            note.write("x")

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        data = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        self.note("begun")
        until = time.monotonic() + float(data[0])
        while (self.folder / "hold").exists() if data[0] < 0 else time.monotonic() < until:
            if request.is_cancelled():
                self.note("cancelled")
                return pb_utils.InferenceResponse(
                    error=pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
                )
            time.sleep(0.005)
        server = np.array([os.environ["SERVER_NAME"].encode()], dtype=object)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT", data), pb_utils.Tensor("SERVER", server)]
        )
