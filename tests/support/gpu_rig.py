"""Models and measurements for the suite that needs a real GPU: independent of our own profiler."""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tritonclient.http as triton_http
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from controlplane.domain.fleet import Server

CONFIG = """
backend: "onnxruntime"
max_batch_size: 32
input [ {{ name: "X", data_type: TYPE_FP32, dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "Y", data_type: TYPE_FP32, dims: [ 1000 ] }} ]
instance_group [ {{ kind: {kind} count: 1 }} ]
"""


def resnet_like(stages: tuple[int, ...], seed: int = 1) -> onnx.ModelProto:
    """Residual blocks as in torchvision's ResNets, random weights: 224x224 images to 1000 classes."""
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
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def write_repository(folder: Path, name: str, stages: tuple[int, ...], kind: str = "KIND_GPU") -> Path:
    """A model repository with one such model."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    onnx.save(resnet_like(stages), str(version / "model.onnx"))
    (folder / name / "config.pbtxt").write_text(CONFIG.format(kind=kind))
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
    url = f"http://{server.host}:{server.http_port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as answer:
        told = json.loads(answer.read())["model_stats"][0]
    compute = ("compute_input", "compute_infer", "compute_output")
    return {
        "executions": told["execution_count"],
        "ns": sum(entry[kind]["ns"] for entry in told["batch_stats"] for kind in compute),
    }


def drive(server: Server, model: str, image: NDArray[np.float32], seconds: float, clients: int = 1) -> Seen:
    """Clients that each send the next batch when the last was answered; the first second is not counted."""

    def client(until: float) -> list[tuple[float, float]]:
        connection = triton_http.InferenceServerClient(f"{server.host}:{server.http_port}")
        try:
            x = triton_http.InferInput("X", list(image.shape), "FP32")
            x.set_data_from_numpy(image)
            took = []
            while (start := time.perf_counter()) < until:
                connection.infer(model, [x])
                took.append((start, time.perf_counter() - start))
            return took
        finally:
            connection.close()

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, [time.perf_counter() + 1.0] * clients))
        before, begin = statistics(server, model), time.perf_counter()
        took = [t for each in pool.map(client, [begin + seconds] * clients) for _, t in each]
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
