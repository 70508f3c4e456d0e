"""magika: the type of a file, from its bytes. It refuses a file without content."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

HERE = Path(__file__).parent
BLOCK, END = 4096, 1024
PADDING = 256


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(str(HERE / "model.onnx"), options)
        self._labels = json.loads((HERE / "config.min.json").read_text())["target_labels_space"]

    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(r, "CONTENT").as_numpy().reshape(-1) for r in requests]
        good = [rows for rows in texts if all(rows)]
        answers = iter(self._answers(good) if good else ())
        return [next(answers) if all(rows) else _refusal() for rows in texts]

    def _answers(self, texts):
        labels, scores = self._infer(np.concatenate(texts))
        ends = np.cumsum([len(rows) for rows in texts])[:-1]
        return [_answer(*pair) for pair in zip(np.split(labels, ends), np.split(scores, ends), strict=True)]

    def _infer(self, contents):
        features = np.stack([_features(bytes(content)) for content in contents])
        (found,) = self._session.run(None, {"bytes": features})
        best = found.argmax(axis=1)
        labels = np.array([self._labels[i].encode() for i in best], dtype=object)
        return labels, found.max(axis=1)


def _features(content):
    """1,024 bytes from the beginning and from the end, blanks stripped, padded."""
    features = np.full(2 * END, PADDING, np.int32)
    begin = np.frombuffer(content[:BLOCK].lstrip()[:END], np.uint8)
    end = np.frombuffer(content[-BLOCK:].rstrip()[-END:], np.uint8)
    features[: begin.size] = begin
    features[2 * END - end.size :] = end
    return features


def _refusal():
    return pb_utils.InferenceResponse([], pb_utils.TritonError("empty content"))


def _answer(labels, scores):
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("LABEL", labels.reshape(-1, 1)),
            pb_utils.Tensor("SCORE", scores.astype(np.float32).reshape(-1, 1)),
        ]
    )
