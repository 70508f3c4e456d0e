"""A model that needs the driver alone: one kernel a batch, of so many `blocks` for each inference.

Two parameters of a request change the server that it reaches: `slower` makes later batches take so many times
as long, `fault` ends the GPU's MPS clients. `hold_mb` of GPU memory are taken when it is loaded. On a CPU it
computes for as long as the fake of libcuda would take with the whole GPU.
"""

import json
import os
import time

import triton_python_backend_utils as pb_utils

from launchers.gpu.probe import Kernels

BLOCKS_A_SECOND = 1_024_000
"""On a CPU."""


class Core:
    """A CPU in the place of a GPU."""

    def queue(self, blocks):
        self.until = time.thread_time() + blocks / BLOCKS_A_SECOND

    def wait(self):
        while time.thread_time() < self.until:
            pass

    def hold(self, megabytes):
        self.held = b"\1" * (megabytes * 2**20)


class TritonPythonModel:
    """What Triton calls."""

    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]
        self.blocks = int(given["blocks"]["string_value"])
        self.slower = 1.0
        self.kernels = Kernels() if os.environ.get("CUDA_VISIBLE_DEVICES") else Core()
        if hold_mb := int(given["hold_mb"]["string_value"]):
            self.kernels.hold(hold_mb)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        for request in requests:
            asked = json.loads(request.parameters() or "{}")
            self.slower = float(asked.get("slower", self.slower))
            if "fault" in asked:
                self.kernels.fault()
        self.kernels.queue(round(self.slower * self.blocks * sum(len(x) for x in inputs)))
        self.kernels.wait()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in inputs]
