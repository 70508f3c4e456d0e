"""A model repository of models that Python packages carry, and inputs as real ones for each of them.

The wheels are downloaded with pip by name and version into a folder of their own, never installed; only the
model files are taken out of them.
"""

import base64
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).with_name("real_models")
RATE_HZ = 16000


@dataclass(frozen=True)
class Packaged:
    """A model's files inside a wheel, with their names in the repository."""

    requirement: str
    files: dict[str, str]


OCR = "rapidocr-onnxruntime==1.4.4"
PACKAGED = {
    "vad": Packaged("silero-vad==6.2.3", {"silero_vad/data/silero_vad_op18_ifless.onnx": "model.onnx"}),
    "filetype": Packaged(
        "magika==1.0.3",
        {
            "magika/models/standard_v3_3/model.onnx": "model.onnx",
            "magika/models/standard_v3_3/config.min.json": "config.min.json",
        },
    ),
    "orientation": Packaged(
        OCR, {"rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": "model.onnx"}
    ),
    "layout": Packaged(OCR, {"rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": "model.onnx"}),
    "ocr": Packaged(OCR, {"rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": "model.onnx"}),
    "embedding": Packaged(
        "openwakeword==0.4.0", {"openwakeword/resources/models/embedding_model.onnx": "model.onnx"}
    ),
    "pitch": Packaged("basic-pitch==0.4.0", {"basic_pitch/saved_models/icassp_2022/nmp.onnx": "model.onnx"}),
}
TYPED_FILES = ("README.md", "pyproject.toml", "benchmarks/support/real_repository.py")
"""Files of this project whose types are the input of a model."""


def make(wheels: Path, repository: Path, models: Iterable[str]) -> None:
    """Write a repository of some of PACKAGED; `wheels` keeps the downloads. Raises CalledProcessError."""
    for model in models:
        packaged = PACKAGED[model]
        version = repository / model / "1"
        version.mkdir(parents=True)
        shutil.copyfile(SOURCES / model / "config.pbtxt", repository / model / "config.pbtxt")
        own = SOURCES / model / "model.py"
        code = own if own.exists() else ROOT / "model_repository" / "onnx_model.py"
        shutil.copyfile(code, version / "model.py")
        with zipfile.ZipFile(wheel(wheels, packaged.requirement)) as archive:
            for inside, name in packaged.files.items():
                (version / name).write_bytes(archive.read(inside))


def wheel(wheels: Path, requirement: str) -> Path:
    """Return the wheel of a requirement, downloaded once. Raises CalledProcessError."""
    kept = wheels / requirement
    if not list(kept.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*command, "--dest", str(kept), requirement], check=True)
    return next(kept.glob("*.whl"))


def write_inputs(directory: Path) -> dict[str, Path]:
    """Inputs for each of PACKAGED in perf_analyzer's JSON form: model -> file."""
    random = np.random.default_rng(1)
    contents = [(ROOT / name).read_bytes() for name in TYPED_FILES]
    entries = {
        "vad": [{"AUDIO": _b64(audio.tobytes())} for audio in _hums(random, RATE_HZ)],
        "filetype": [{"CONTENT": _b64(struct.pack("<I", len(c)) + c)} for c in contents],
        "orientation": [
            {"x": {"content": _b64(image.tobytes()), "shape": list(image.shape)}}
            for image in _lines_of_text(random, 48, 192)
        ],
        "layout": [{"x": _b64(image.tobytes())} for image in _lines_of_text(random, 96, 160)],
        "ocr": [{"x": _b64(image.tobytes())} for image in _lines_of_text(random, 48, 160)],
        "embedding": [
            {"input_1": _b64(random.standard_normal((76, 32, 1)).astype("<f4").tobytes())} for _ in range(4)
        ],
        "pitch": [{"serving_default_input_2:0": _b64(audio.tobytes())} for audio in _hums(random, 43844)],
    }
    written = {}
    for model, data in entries.items():
        written[model] = directory / f"{model}.json"
        written[model].write_text(json.dumps({"data": data}))
    return written


def _b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def _hums(random: np.random.Generator, samples: int) -> Iterable[np.ndarray]:
    """A voice-like sound of so many samples: a fundamental with overtones, and noise."""
    at_s = np.arange(samples) / RATE_HZ
    for pitch_hz in (110, 147, 196, 220):
        voice = sum(np.sin(2 * np.pi * k * pitch_hz * at_s) / k for k in range(1, 9))
        yield (0.2 * voice + 0.02 * random.standard_normal(samples)).astype("<f4")


def _lines_of_text(random: np.random.Generator, height: int, width: int) -> Iterable[np.ndarray]:
    """A line of dark strokes on a light ground, as the package's own code scales it."""
    for _ in range(4):
        image = np.ones((3, height, width), "<f4")
        for left in range(8, width - 8, 14):
            top, bottom = random.integers(6, 20), random.integers(28, 42)
            image[:, top:bottom, left : left + 3] = -1.0
            image[:, top : top + 3, left : left + int(random.integers(4, 12))] = -1.0
        yield image
