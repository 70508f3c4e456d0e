"""What the steps work on: one device, its servers, the model, the plan."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.cli import wiring
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec
from controlplane.domain.plan import Plan
from controlplane.files.fleets import state_root
from controlplane.files.plans import read_plan
from controlplane.profiler.session import Place, Profiler
from controlplane.runtime import SystemClock
from controlplane.triton.client import TritonClient
from controlplane.triton.samples import SampleRequest
from launchers.process import ProcessLauncher

MODELS = Path(__file__).parent / "models"
MODEL = "spin"
FLEET = "gpukit"
PERCENT, SHADOW_PERCENT, BATCH = 20.0, 50.0, 4
START_S = 60.0


class Quiet:
    """Progress that nothing shows."""

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        """Show nothing."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The device and a folder for files. `short`: fewer points; `earlier`: the figures of earlier steps."""

    place: Place
    launcher: ProcessLauncher
    folder: Path
    short: bool
    earlier: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, device: str, folder: Path, short: bool, earlier: Mapping[str, Mapping[str, Any]]) -> Subject:
        """Return the subject on a device: `cpu`, `gpu`, or a name."""
        return cls(wiring.place(device), ProcessLauncher(state_root()), folder, short, earlier)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU, real or fake."""
        return self.place.device.name != CPU_DEVICE

    def profiler(self) -> Profiler:
        """Return a profiler with its files in the folder."""
        scratch = self.folder / "profiling"
        return Profiler(self.launcher, SystemClock(), Quiet(), self.folder / "profiles", scratch)

    def spec(
        self, name: str, percent: float, *, hold_mb: int = 0, limit_mb: float | None = None
    ) -> ServerSpec:
        """Return a server of the model alone, which takes `hold_mb` of the GPU's memory."""
        repository = self.folder / "servers" / name
        shutil.copytree(MODELS, repository, dirs_exist_ok=True)
        config = repository / MODEL / "config.pbtxt"
        config.write_text(re.sub(r'(key: "hold_mb".*")0"', rf'\g<1>{hold_mb}"', config.read_text()))
        return ServerSpec(
            Labels(FLEET, "kit", name, Role.PROFILE, f"p{percent:g}"),
            str(repository.resolve()),
            (MODEL,),
            self.place.name,
            percent,
            memory_limit_mb=limit_mb,
        )

    def plan(self, batch: int) -> Plan:
        """Return the plan to serve, which was made beforehand: a partition with a larger hot shadow."""
        kind = self.place.device.name
        device = self.place.name if kind == CPU_DEVICE else f"{kind}-0"
        written = (Path(__file__).parent / "plan.json").read_text()
        path = self.folder / "plan.json"
        written = written.replace("DEVICE", device).replace("TYPE", kind).replace('"BATCH"', str(batch))
        path.write_text(written)
        return read_plan(path)[0]


def infer(server: Server, **parameters: str) -> None:
    """Run one inference, whose parameters change the server. Raises EngineError."""
    x = {"name": "X", "datatype": "FP32", "shape": [1, 16], "data": [0.0] * 16}
    body = json.dumps({"inputs": [x], "parameters": parameters}).encode()
    TritonClient(server, deadline_s=10.0).infer(MODEL, SampleRequest(body, len(body), True, (MODEL,)))
