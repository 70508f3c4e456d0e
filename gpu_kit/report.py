"""The report of a run: a JSON document, and the same for a reader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

JSON, TEXT = "gpu-report.json", "gpu-report.txt"
DONE, FAILED, CUT_OFF, NOT_RUN = "done", "failed", "cut off", "not run"
_NOT_EVERYWHERE = "torch"
"""The one step that has no meaning on some GPU hosts."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One step: its outcome, seconds, figures, and why it did not end."""

    name: str
    outcome: str
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All steps of a run. `rehearsal` says what stood in for the GPU; empty on a real one."""

    date: str
    device: str
    rehearsal: str
    steps: Sequence[Ran]

    @property
    def held(self) -> bool:
        """Whether every step was done; in a rehearsal, every one that has a meaning without a GPU."""
        return bool(self.steps) and all(
            step.outcome == DONE
            or (step.outcome == NOT_RUN and (bool(self.rehearsal) or step.name == _NOT_EVERYWHERE))
            for step in self.steps
        )

    def figures(self, step: str) -> Mapping[str, Any]:
        """Return the figures of a step; none where it was not run."""
        return next((one.figures for one in self.steps if one.name == step), {})

    def write(self, folder: Path) -> None:
        """Replace both files."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in ((JSON, json.dumps(asdict(self), indent=1) + "\n"), (TEXT, self.text())):
            unfinished = folder / f"{name}.new"
            unfinished.write_text(text)
            unfinished.replace(folder / name)

    def text(self) -> str:
        """Return the report for a reader."""
        title = f"rehearsal: {self.rehearsal} stood in for a GPU" if self.rehearsal else "on a GPU"
        lines = [f"GPU kit, {title}; {self.device}; {self.date}"]
        for outcome in (DONE, FAILED, CUT_OFF, NOT_RUN):
            if names := [step.name for step in self.steps if step.outcome == outcome]:
                lines.append(f"{outcome}: {', '.join(names)}")
        for step in self.steps:
            lines.append(f"\n{step.name}: {step.outcome}, {step.seconds:.1f} s")
            if step.reason:
                lines.append(f"  why: {step.reason}")
            lines += [f"  {line}" for line in _lines(step.figures)]
        return "\n".join(lines) + "\n"


def read(path: Path) -> Report:
    """Return the report of a JSON file."""
    content = json.loads(path.read_text())
    return Report(**{**content, "steps": [Ran(**step) for step in content["steps"]]})


def _lines(figures: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            lines += [f"{name}:", *(f"  {line}" for line in _lines(value))]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines += [f"{name}:", *(f"  {_row(row)}" for row in value)]
        else:
            lines.append(f"{name}: {_shown(value)}")
    return lines


def _row(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in row.items())


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
