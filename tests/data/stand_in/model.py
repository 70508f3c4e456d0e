"""Stands in for models of other backends, by their names and tensors: see the methods."""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

_PAIRS = ({"OUTPUT0", "OUTPUT1"}, {"OUTPUT__0", "OUTPUT__1"})


class TritonPythonModel:
    """`repeat...` and `square...` are decoupled; sequences add their start; two inputs: sum, difference."""

    def initialize(self, args):
        """Choose what the model does."""
        config = json.loads(args["model_config"])
        self.name = args["model_name"]
        self.outputs = {o["name"]: pb_utils.triton_string_to_numpy(o["data_type"]) for o in config["output"]}
        self.inputs = [i["name"] for i in config["input"]]
        self.sequences = "sequence_batching" in config
        delay = config.get("parameters", {}).get("execute_delay_ms", {"string_value": "0"})
        self.delay_s = int(delay["string_value"]) / 1000
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)

    def execute(self, requests):
        """Answer each request."""
        if self.decoupled:
            for request in requests:
                self._stream(request)
            return None
        time.sleep(self.delay_s)
        return [pb_utils.InferenceResponse(self._answer(request)) for request in requests]

    def _answer(self, request):
        given = [pb_utils.get_input_tensor_by_name(request, name) for name in self.inputs]
        values = [None if tensor is None else tensor.as_numpy() for tensor in given]
        if self.sequences and not self.delay_s:
            start = pb_utils.get_input_tensor_by_name(request, "START")
            values = [values[0] + start.as_numpy().flat[0]]
        elif len(values) == 2 and set(self.outputs) in _PAIRS and "identity" not in self.name:
            one, other = (_numbers(value) for value in values)
            values = [one + other, one - other]
        return [
            pb_utils.Tensor(name, self._typed(value, kind))
            for (name, kind), value in zip(self.outputs.items(), values, strict=False)
            if value is not None
        ]

    def _typed(self, value, kind):
        if kind is np.object_ and value.dtype != np.object_:
            return np.array([str(one).encode() for one in value.flat], dtype=object).reshape(value.shape)
        return value.astype(kind)

    def _stream(self, request):
        """Read what is asked; answer beside other requests, as a backend that waits between answers does."""
        numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(-1)
        delays = pb_utils.get_input_tensor_by_name(request, "DELAY")
        if self.name.startswith("square"):
            numbers = np.repeat(numbers, numbers[0])
        delays_s = [0] * len(numbers) if delays is None else delays.as_numpy().reshape(-1) / 1000
        sender = request.get_response_sender()
        if len(delays_s) != len(numbers):
            words = f"expected IN and DELAY shape to match, got [{len(numbers)}] and [{len(delays_s)}]"
            failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(words))
            sender.send(failed, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        threading.Thread(target=self._send, args=(sender, numbers.copy(), delays_s)).start()

    def _send(self, sender, numbers, delays_s):
        for index, (number, delay_s) in enumerate(zip(numbers, delays_s, strict=True)):
            time.sleep(delay_s)
            found = {"OUT": np.array([number], np.int32), "IDX": np.array([index], np.uint32)}
            tensors = [pb_utils.Tensor(name, found[name]) for name in self.outputs]
            sender.send(pb_utils.InferenceResponse(tensors))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _numbers(values):
    """Texts as numbers; any other text, as of a server's test, is 0."""
    if values.dtype != np.object_:
        return values.astype(np.int32)
    found = [int(text) if text.lstrip(b"-").isdigit() else 0 for text in values.flat]
    return np.array(found, np.int32).reshape(values.shape)
