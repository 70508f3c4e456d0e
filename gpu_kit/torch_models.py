"""ResNet-50 and BERT-base with random weights: prints the milliseconds of a batch as JSON.

    python torch_models.py [DEVICE]

For a Python of the host that has PyTorch: it needs nothing else. Exit code 3 without PyTorch or a GPU.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    print(f"{sys.executable}: {error}", file=sys.stderr)
    sys.exit(3)

BATCHES = (1, 8, 32)
SECONDS = 1.0
"""Of each batch."""


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
    """A convolution that keeps the picture's size but for its stride, normalised."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    """A block of a residual network."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        inner = convolution(inputs, width, 1), nn.ReLU(), convolution(width, width, 3, stride), nn.ReLU()
        self.body = nn.Sequential(*inner, convolution(width, 4 * width, 1))
        same = inputs == 4 * width and stride == 1
        self.beside = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what goes beside the block to what it makes."""
        return torch.relu(self.body(x) + self.beside(x))


def resnet50() -> nn.Module:
    """He et al. (2016), Table 1: pictures of 224 x 224."""
    layers, inputs = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(inputs, width, 1 if number else stride))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def bert_base() -> nn.Module:
    """Devlin et al. (2019): 12 layers of 768; texts of 128 tokens, without their positions."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(30522, 768), encoder)


def milliseconds(model: nn.Module, inputs: torch.Tensor, device: str) -> float:
    """Return the median time of one batch, over SECONDS after one that does not count."""
    times: list[float] = []
    ends = None
    while ends is None or time.monotonic() < ends:
        began = time.perf_counter()
        model(inputs)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
        ends = ends or time.monotonic() + SECONDS
    return statistics.median(times[1:] or times)


def main(device: str) -> int:
    """Measure both models."""
    if device == "cuda" and not torch.cuda.is_available():
        print(f"{sys.executable}: its PyTorch {torch.__version__} finds no GPU", file=sys.stderr)
        return 3
    found: dict[str, dict[str, float]] = {"resnet50": {}, "bert_base": {}}
    with torch.inference_mode():
        resnet, bert = resnet50().to(device).eval(), bert_base().to(device).eval()
        for n in BATCHES:
            pictures = torch.rand(n, 3, 224, 224, device=device)
            texts = torch.randint(30522, (n, 128), device=device)
            found["resnet50"][f"batch {n}"] = milliseconds(resnet, pictures, device)
            found["bert_base"][f"batch {n}"] = milliseconds(bert, texts, device)
    print(json.dumps({"torch": torch.__version__, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["cuda"]))
