"""Makes the sample models: three small networks with random, seeded weights, as ONNX.

`python model_repository/make.py [MODEL ...]` writes MODEL/1/model.onnx and, beside it, the Python model
that serves it. Each has the character of its larger namesake: AlexNet's time goes into reading large fully
connected weights, so batching pays; ResNet's into convolutions, so it hardly does; the transformer's into
many small kernels. Run with one thread, each takes a few milliseconds for one image or sentence.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
OPSET = 17
IR_VERSION = 9


class Network:
    """An ONNX graph under construction. Layers return the name of their output."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def constant(self, values: NDArray[np.generic]) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int) -> str:
        """He-scaled normal weights: activations keep their size through any depth."""
        fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        values = self._random.standard_normal(shape, dtype=np.float32) * np.float32(np.sqrt(2 / fan_in))
        return self.constant(values)

    def zeros(self, size: int) -> str:
        return self.constant(np.zeros(size, np.float32))

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def reshape(self, x: str, *shape: int) -> str:
        """A 0 keeps the input's dimension, as the batch must be."""
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def conv(self, x: str, channels_in: int, channels: int, kernel: int, stride: int = 1) -> str:
        weight = self.weight(channels, channels_in, kernel, kernel)
        pad = kernel // 2
        return self.node("Conv", x, weight, self.zeros(channels), strides=[stride] * 2, pads=[pad] * 4)

    def relu(self, x: str) -> str:
        return self.node("Relu", x)

    def halve(self, x: str) -> str:
        return self.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])

    def dense(self, x: str, size_in: int, size: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(size_in, size)), self.zeros(size))

    def norm(self, x: str, size: int) -> str:
        scale = self.constant(np.ones(size, np.float32))
        return self.node("LayerNormalization", x, scale, self.zeros(size), axis=-1)

    def model(self, name: str, input_type: int, dims: list[int], classes: int) -> onnx.ModelProto:
        """The graph so far; its last layer is the output."""
        self._nodes[-1].output[0] = "OUTPUT"
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info("INPUT", input_type, ["batch", *dims])],
            [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["batch", classes])],
            self._weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        made.ir_version = IR_VERSION
        onnx.checker.check_model(made, full_check=True)
        return made


def alexnet_tiny() -> onnx.ModelProto:
    """A few convolutions, then fully connected layers of 13 million weights."""
    net = Network(seed=1)
    x = net.halve(net.relu(net.conv("INPUT", 3, 48, 5, stride=2)))
    x = net.halve(net.relu(net.conv(x, 48, 96, 3)))
    x = net.halve(net.relu(net.conv(x, 96, 128, 3)))
    x = net.reshape(x, 0, -1)
    x = net.relu(net.dense(x, 128 * 4 * 4, 3072))
    x = net.relu(net.dense(x, 3072, 2048))
    net.dense(x, 2048, 100)
    return net.model("alexnet_tiny", TensorProto.FLOAT, [3, 64, 64], 100)


def resnet_tiny() -> onnx.ModelProto:
    """Three stages of residual blocks and a global average; batch norms are folded into the biases."""
    net = Network(seed=2)
    width = 28
    x = net.relu(net.conv("INPUT", 3, width, 3, stride=2))
    for stage in range(3):
        wider = width if stage == 0 else 2 * width
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            branch = net.conv(net.relu(net.conv(x, width, wider, 3, stride)), wider, wider, 3)
            shortcut = x if width == wider else net.conv(x, width, wider, 1, stride)
            x = net.relu(net.node("Add", branch, shortcut))
            width = wider
    x = net.reshape(net.node("GlobalAveragePool", x), 0, width)
    net.dense(x, width, 100)
    return net.model("resnet_tiny", TensorProto.FLOAT, [3, 64, 64], 100)


def transformer_tiny() -> onnx.ModelProto:
    """An encoder over 32 tokens: six layers, four heads, width 128; the first token's state is classified."""
    net = Network(seed=3)
    tokens, width, heads, vocabulary = 32, 128, 4, 4096
    split = (0, tokens, heads, width // heads)
    x = net.node("Gather", net.weight(vocabulary, width), "INPUT")
    x = net.node("Add", x, net.weight(tokens, width))
    scale = net.constant(np.array((width // heads) ** -0.5, np.float32))
    for _ in range(6):
        y = net.norm(x, width)
        query, key, value = (net.reshape(net.dense(y, width, width), *split) for _ in range(3))
        query = net.node("Mul", net.node("Transpose", query, perm=[0, 2, 1, 3]), scale)
        key = net.node("Transpose", key, perm=[0, 2, 3, 1])
        value = net.node("Transpose", value, perm=[0, 2, 1, 3])
        mixed = net.node("MatMul", net.node("Softmax", net.node("MatMul", query, key), axis=-1), value)
        mixed = net.reshape(net.node("Transpose", mixed, perm=[0, 2, 1, 3]), 0, tokens, width)
        x = net.node("Add", x, net.dense(mixed, width, width))
        y = net.dense(net.relu(net.dense(net.norm(x, width), width, 4 * width)), 4 * width, width)
        x = net.node("Add", x, y)
    first = net.node("Gather", net.norm(x, width), net.constant(np.array(0, np.int64)), axis=1)
    net.dense(first, width, 16)
    return net.model("transformer_tiny", TensorProto.INT64, [tokens], 16)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "alexnet_tiny": alexnet_tiny,
    "resnet_tiny": resnet_tiny,
    "transformer_tiny": transformer_tiny,
}


def write(name: str) -> None:
    """MODEL/1, complete or not at all: a server may be reading it."""
    version = HERE / name / "1"
    with tempfile.TemporaryDirectory(dir=HERE / name, prefix=".making-") as made:
        onnx.save(MODELS[name](), f"{made}/model.onnx")
        shutil.copyfile(HERE / "onnx_model.py", f"{made}/model.py")
        version.mkdir(exist_ok=True)
        for file in Path(made).iterdir():
            file.replace(version / file.name)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        print(f"no sample model is called {unknown[0]}; there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    for name in names or MODELS:
        write(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
