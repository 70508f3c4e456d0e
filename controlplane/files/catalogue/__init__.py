"""The built-in catalogue of published measurements, with the source beside each number.

Each device has a folder: `device.json` (the device, and for each model the coefficients of the published
fits), `solo.csv` (a model alone), `pairs.csv` (two models beside each other), `colocation.csv` (one model
beside any number of others), `repeats.csv` (points measured in two sessions) and `gpulet.csv` (what gpulet's
model reads of each batch size). Assumed values are marked: `"assumed": true` beside a value, or the reason in
a table's column `assumed`.
"""

from __future__ import annotations

import csv
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any

from controlplane.domain.device import Device, ShareGrid, ShareKind
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile, Repeat
from controlplane.files.documents import parse_json

_ROOT = resources.files(__name__)
_OF_A_BATCH = ("host_ms", "l2_pct", "dram_pct")
"""The columns of `gpulet.csv`: a host's time to assemble a batch, and the utilisation of L2 and DRAM."""


def devices() -> tuple[str, ...]:
    """Return the device types of the catalogue."""
    return tuple(sorted(entry.name for entry in _ROOT.iterdir() if entry.joinpath("device.json").is_file()))


@functools.cache
def device(name: str) -> Device | None:
    """Return a device type; None if the catalogue does not have it."""
    if name not in devices():
        return None
    content = _content(name)
    return Device(
        name=name,
        share_kind=ShareKind(content["share_kind"]),
        grid=ShareGrid(content["minimum_percent"], content["step_percent"]),
        memory_mb=_value(content.get("memory_mb")),
        price_per_hour=_value(content.get("price_per_hour")),
        hardware=MappingProxyType(_values(content.get("hardware", {}))),
    )


@functools.cache
def profiles(name: str) -> Mapping[str, Profile]:
    """Return a device type's profiles by model; empty if the catalogue does not have it."""
    if name not in devices():
        return MappingProxyType({})
    content = _content(name)
    solo: defaultdict[str, list[Measurement]] = defaultdict(list)
    for row in _rows(name, "solo.csv"):
        solo[row["model"]].append(
            Measurement(
                percent=float(row["pct"]),
                batch=int(row["batch"]),
                execution_ms=float(row["latency_ms"]),
                capacity_rps=float(row["throughput_img_s"]) if row.get("throughput_img_s") else None,
            )
        )
    beside: defaultdict[str, list[ColocationPoint]] = defaultdict(list)
    for row in _rows(name, "pairs.csv"):
        for me, other in (("1", "2"), ("2", "1")):
            percent, batch = float(row[f"pct{me}"]), int(row[f"batch{me}"])
            neighbour = Neighbour(row[f"model{other}"], float(row[f"pct{other}"]), int(row[f"batch{other}"]))
            point = ColocationPoint(percent, batch, (neighbour,), float(row[f"latency{me}_ms"]))
            beside[row[f"model{me}"]].append(point)
    for row in _rows(name, "colocation.csv"):
        percent, batch = float(row["pct"]), int(row["batch"])
        neighbours = tuple(_neighbour(text) for text in row["neighbours"].split())
        point = ColocationPoint(percent, batch, neighbours, float(row["latency_ms"]))
        beside[row["model"]].append(point)
    repeats: defaultdict[str, list[Repeat]] = defaultdict(list)
    for row in _rows(name, "repeats.csv"):
        times = float(row["first_ms"]), float(row["second_ms"])
        repeats[row["model"]].append(Repeat(float(row["pct"]), int(row["batch"]), *times))
    batches: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in _rows(name, "gpulet.csv"):
        known = {f"{field}.{row['batch']}": float(row[field]) for field in _OF_A_BATCH if row[field]}
        batches[row["model"]].update(known)
    memory = _values(content.get("model_memory_mb", {}))
    return MappingProxyType(
        {
            model: Profile(
                model=model,
                device=name,
                share_kind=ShareKind(content["share_kind"]),
                environment=Environment(**content.get("environment", {})),
                points=tuple(solo[model]),
                colocation=tuple(beside[model]),
                fits=_fits(content, model, coefficients)
                | ({"gpulet": batches[model]} if model in batches else {}),
                holdout_error=content.get("holdout_error", {}).get(model, {}),
                memory_mb=memory.get(model),
                repeats=tuple(repeats[model]),
            )
            for model, coefficients in content["models"].items()
        }
    )


def _neighbour(text: str) -> Neighbour:
    """Parse `model@percentxbatch`."""
    model, rest = text.split("@")
    percent, batch = rest.split("x")
    return Neighbour(model, float(percent), int(batch))


def _fits(
    content: Mapping[str, Any], model: str, igniter: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, float]]:
    named = {fit: _values(of[model]) for fit, of in content.get("fits", {}).items() if model in of}
    return {"igniter": _values(igniter), **named} if igniter else dict(named)


def _content(name: str) -> dict[str, Any]:
    file = _ROOT / name / "device.json"
    content: dict[str, Any] = parse_json(file.read_text(), f"catalogue/{name}/device.json")
    return content


def _rows(name: str, file: str) -> Iterator[dict[str, str]]:
    table: Traversable = _ROOT / name / file
    if table.is_file():
        yield from csv.DictReader(table.read_text().splitlines())


def _value(entry: Mapping[str, Any] | None) -> float | None:
    return None if entry is None else float(entry["value"])


def _values(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {name: float(entry["value"]) for name, entry in entries.items()}
