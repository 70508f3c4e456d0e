"""silero-vad: how likely each window of a second of audio (16 kHz) holds speech."""

from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

RATE, WINDOW, CONTEXT = 16000, 512, 64
WINDOWS = RATE // WINDOW


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(str(Path(__file__).with_name("model.onnx")), options)

    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(r, "AUDIO").as_numpy() for r in requests]
        found = self._speech(np.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("SPEECH", np.ascontiguousarray(rows))])
            for rows in np.split(found, ends)
        ]

    def _speech(self, audio):
        """Windows in turn, each after the end of the one before it; all seconds of a batch side by side."""
        padded = np.pad(audio, ((0, 0), (CONTEXT, 0)))
        state = np.zeros((2, len(audio), 128), np.float32)
        found = np.empty((len(audio), WINDOWS), np.float32)
        for i in range(WINDOWS):
            window = padded[:, i * WINDOW : (i + 1) * WINDOW + CONTEXT]
            feeds = {"input": window, "sr": np.array(RATE), "state": state}
            probability, state = self._session.run(["output", "stateN"], feeds)
            found[:, i] = probability[:, 0]
        return found
