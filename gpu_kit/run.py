"""Run the steps, each in a process with a time limit, and write the report after each.

    ./run                                    in a folder of `make gpu-kit`
    python -m gpu_kit.run --device gpu       in a clone

The first steps tell most. What a step has recorded before it failed or was cut off is in the report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpu_kit.report import CUT_OFF, DONE, FAILED, NOT_RUN, Ran, Report

LIMITS_S = {
    "host": 30.0,
    "doctor": 60.0,
    "mps": 60.0,
    "kernels": 60.0,
    "profile": 120.0,
    "serve": 120.0,
    "neighbours": 90.0,
    "memory": 60.0,
    "crash": 90.0,
    "torch": 60.0,
}
"""The steps in their order."""
TOTAL_S = 540.0
_END_S = 20.0
"""A step that is cut off ends its servers in this time."""
_CODES = {0: DONE, 3: NOT_RUN}


def run(arguments: argparse.Namespace, steps: Sequence[str]) -> Report:
    """Run the steps and keep the report up to date."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    began = time.monotonic()
    ran: list[Ran] = []
    with tempfile.TemporaryDirectory(prefix="gpukit", dir=arguments.scratch) as name:
        folder = Path(name)
        for step in steps:
            left_s = arguments.seconds - (time.monotonic() - began)
            limit_s = min(LIMITS_S[step], left_s)
            one = Ran(step, CUT_OFF, reason="no time was left") if limit_s <= 0 else None
            ran.append(one or _run(step, arguments, folder, limit_s, ran))
            report = Report(date, arguments.device, arguments.rehearsal, ran)
            report.write(arguments.out)
            print(f"{step}: {ran[-1].outcome}, {ran[-1].seconds:.1f} s {ran[-1].reason}", flush=True)
    return report


def _run(step: str, arguments: argparse.Namespace, folder: Path, limit_s: float, ran: Sequence[Ran]) -> Ran:
    earlier = folder / "earlier.json"
    earlier.write_text(json.dumps({one.name: one.figures for one in ran}))
    out, said = folder / f"{step}.out", folder / f"{step}.err"
    began = time.monotonic()
    code = _process(step, arguments, folder, (out, said), limit_s)
    figures = dict(json.loads(line) for line in out.read_text().splitlines() if line.endswith("]"))
    seconds = time.monotonic() - began
    if code is None or code not in _CODES:
        _process("clean", arguments, folder, (folder / "clean.out", folder / "clean.err"), 60.0)
    if code is None:
        return Ran(step, CUT_OFF, seconds, figures, f"it took longer than {limit_s:.0f} s")
    outcome = _CODES.get(code, FAILED)
    return Ran(step, outcome, seconds, figures, "" if outcome == DONE else said.read_text()[-2000:].strip())


def _process(
    step: str, arguments: argparse.Namespace, folder: Path, files: tuple[Path, Path], limit_s: float
) -> int | None:
    """Run a step in a process group of its own; return its exit code, None where it was cut off."""
    short = ["--short"] if arguments.short else []
    command = [sys.executable, "-m", "gpu_kit.steps", step, arguments.device, str(folder)]
    command += ["--earlier", str(folder / "earlier.json"), *short]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "OPENBLAS_NUM_THREADS": "1"}
    with files[0].open("wb") as out, files[1].open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(given: Sequence[str] | None = None) -> int:
    """Return 0 where every step ended, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="gpu", help="`gpu`, `cpu`, or a device's name")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", ".")), help="the report's folder"
    )
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="of all steps together")
    parser.add_argument("--short", action="store_true", help="fewer points")
    parser.add_argument("--rehearsal", default="", help="what stands in for the GPU")
    parser.add_argument("--only", help="names of steps, separated by commas")
    parser.add_argument("--scratch", type=Path, help="where a folder for files is made, and removed")
    arguments = parser.parse_args(given)
    if arguments.device == "cpu":
        arguments.rehearsal = arguments.rehearsal or "a core of this host"
    report = run(arguments, arguments.only.split(",") if arguments.only else list(LIMITS_S))
    print(f"\n{report.text()}")
    return 0 if report.held else 1


if __name__ == "__main__":
    # As by Ctrl-C, so that what runs is ended.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.exit(main())
