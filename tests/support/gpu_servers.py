"""Servers on a real GPU for the suite that needs one, and the file of what was measured on it."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

from gpu_rig import write_repository

from controlplane.domain.errors import MissingTool
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec
from launchers.gpu import control, gpus
from launchers.process import ProcessLauncher
from launchers.triton import program

RESULTS = Path(os.environ.get("OUT") or Path(__file__).parents[2] / "docs" / "results")
STAGES = {"small": (2, 2, 2, 2), "large": (3, 4, 6, 3)}


def backend() -> str | None:
    """What runs the models here."""
    backends = program.find_home().backends
    if (backends / "onnxruntime").is_dir():
        return "onnxruntime"
    return "python" if (backends / "python").is_dir() and importlib.util.find_spec("torch") else None


def obstacle() -> str | None:
    if not gpus.inventory():
        return "no NVIDIA GPU"
    if control.found() is None:
        return f"no {control.PROGRAM}"
    try:
        found = backend()
    except MissingTool as error:
        return str(error)
    return None if found else "Triton has no onnxruntime backend, and this Python has no PyTorch"


class Rig:
    """Servers on one GPU, and what was measured with them."""

    def __init__(self, gpu: gpus.HostGpu, folder: Path) -> None:
        self.gpu = gpu
        self.launcher = ProcessLauncher(folder / "state")
        self.backend = backend() or ""
        self.repositories = {
            name: write_repository(folder / name, name, stages, backend=self.backend)
            for name, stages in STAGES.items()
        }
        self.results: dict[str, Any] = {}

    def start(self, model: str, percent: float) -> Server:
        labels = Labels("gputest", "plan", model, Role.PROFILE, f"p{percent:g}")
        spec = ServerSpec(labels, str(self.repositories[model]), (model,), self.gpu.uuid, percent)
        return self.launcher.start(spec, deadline_s=180)

    def stop(self, *servers: Server) -> None:
        for server in servers:
            self.launcher.stop(server, drain_s=5)

    def write(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        try:
            driver = pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
        said = {
            "gpu": self.gpu.name,
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
            "backend": self.backend,
            "date": datetime.date.today().isoformat(),
            **self.results,
        }
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", self.gpu.name.lower())
        (RESULTS / f"gpu-{name}.json").write_text(json.dumps(said, indent=1) + "\n")
