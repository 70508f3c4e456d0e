"""Models and measurements for the suite that needs a real GPU: independent of our profiler and of any client.

Residual networks as torchvision's are, with random weights. By ONNX where Triton has that backend (the
vendor's image), else by PyTorch through the Python backend (any host with PyTorch).
"""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import direct
import numpy as np
from numpy.typing import NDArray

from controlplane.domain.fleet import Server
from controlplane.sockets import connect

CONFIG = """
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "X", data_type: TYPE_FP32, dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "Y", data_type: TYPE_FP32, dims: [ 1000 ] }} ]
instance_group [ {{ kind: {kind} count: 1 }} ]
"""

TORCH = """
import json

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch import nn

STAGES = {stages}


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1), nn.ReLU(), nn.Conv2d(after, after, 3, 1, 1)
        )
        same = before == after and stride == 1
        self.past = nn.Identity() if same else nn.Conv2d(before, after, 1, stride)

    def forward(self, x):
        return torch.relu(self.inner(x) + self.past(x))


def network():
    layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate(STAGES):
        for block in range(blocks):
            layers.append(Block(channels, 64 * 2**stage, 2 if stage and block == 0 else 1))
            channels = 64 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class TritonPythonModel:
    def initialize(self, args):
        torch.manual_seed(1)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        kind = json.loads(args["model_config"])["instance_group"][0]["kind"]
        self.device = "cuda" if kind == "KIND_GPU" else "cpu"
        self.network = network().eval().to(self.device)
        with torch.inference_mode():
            for batch in (1, 4, 8, 16):
                self.network(torch.zeros(batch, 3, 224, 224, device=self.device))

    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        with torch.inference_mode():
            x = torch.from_numpy(np.concatenate(rows)).to(self.device)
            y = self.network(x).cpu().numpy()
        cuts = np.cumsum([len(r) for r in rows])[:-1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", part)]) for part in np.split(y, cuts)]
"""


def onnx_model(stages: tuple[int, ...], path: Path, seed: int = 1) -> None:
    """Residual blocks, random weights: 224x224 images to 1000 classes."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        out = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        values = (random.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(x: str, before: int, after: int, kernel: int, stride: int = 1) -> str:
        pad = [kernel // 2] * 4
        return node("Conv", x, weight(after, before, kernel, kernel), strides=[stride] * 2, pads=pad)

    x = node("Relu", conv("X", 3, 64, 7, 2))
    x = node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, blocks in enumerate(stages):
        wanted = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage and block == 0 else 1
            inner = node("Relu", conv(x, channels, wanted, 3, stride))
            inner = conv(inner, wanted, wanted, 3)
            past = x if stride == 1 and channels == wanted else conv(x, channels, wanted, 1, stride)
            x = node("Relu", node("Add", inner, past))
            channels = wanted
    x = node("Flatten", node("GlobalAveragePool", x))
    nodes.append(helper.make_node("MatMul", [x, weight(channels, 1000)], ["Y"]))
    image = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["b", 3, 224, 224])
    classes = helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["b", 1000])
    graph = helper.make_graph(nodes, "resnet_like", [image], [classes], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(made, str(path))


def write_repository(
    folder: Path, name: str, stages: tuple[int, ...], *, backend: str, kind: str = "KIND_GPU"
) -> Path:
    """A model repository with one such model, for the `onnxruntime` or the `python` backend."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    if backend == "onnxruntime":
        onnx_model(stages, version / "model.onnx")
    else:
        (version / "model.py").write_text(TORCH.replace("{stages}", repr(stages)))
    (folder / name / "config.pbtxt").write_text(CONFIG.format(kind=kind, backend=backend))
    return folder


@dataclass(frozen=True)
class Seen:
    """What a closed loop of clients saw: Triton's mean execution, the clients' mean and P99, the rate."""

    execution_ms: float
    mean_ms: float
    p99_ms: float
    rate_rps: float
    n: int


def statistics(server: Server, model: str) -> dict[str, int]:
    told = direct.get(server, f"/v2/models/{model}/stats")["model_stats"][0]
    compute = ("compute_input", "compute_infer", "compute_output")
    return {
        "executions": told["execution_count"],
        "ns": sum(entry[kind]["ns"] for entry in told["batch_stats"] for kind in compute),
    }


def infer(connection: http.client.HTTPConnection, model: str, header: bytes, image: bytes) -> None:
    """One request with Triton's binary tensors, in and out."""
    headers = {"Inference-Header-Content-Length": str(len(header))}
    connection.request("POST", f"/v2/models/{model}/infer", header + image, headers)
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status == 200, said[:500]


def drive(server: Server, model: str, image: NDArray[np.float32], seconds: float, clients: int = 1) -> Seen:
    """Clients that each send the next batch when the last was answered; the first second is not counted."""
    body = image.tobytes()
    tensor = {"name": "X", "datatype": "FP32", "shape": image.shape}
    tensor["parameters"] = {"binary_data_size": len(body)}
    asked = {"inputs": [tensor], "outputs": [{"name": "Y", "parameters": {"binary_data": True}}]}
    header = json.dumps(asked).encode()

    def client(until: float) -> list[float]:
        connection = http.client.HTTPConnection("triton")
        connection.sock = connect(server.host, server.http_port, 60.0)
        try:
            took = []
            while (start := time.perf_counter()) < until:
                infer(connection, model, header, body)
                took.append(time.perf_counter() - start)
            return took
        finally:
            connection.close()

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, [time.perf_counter() + 1.0] * clients))
        before, begin = statistics(server, model), time.perf_counter()
        took = [t for each in pool.map(client, [begin + seconds] * clients) for t in each]
        wall, after = time.perf_counter() - begin, statistics(server, model)
    milliseconds = np.asarray(took) * 1000
    executions = after["executions"] - before["executions"]
    return Seen(
        (after["ns"] - before["ns"]) / executions / 1e6,
        float(milliseconds.mean()),
        float(np.quantile(milliseconds, 0.99)),
        len(took) * image.shape[0] / wall,
        executions,
    )
