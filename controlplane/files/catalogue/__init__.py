"""The built-in catalogue: measurements others published, with the source beside each number.

One folder a device: `device.json` (the device, and for each model the coefficients of the published fits),
`solo.csv` (a model alone), `pairs.csv` (two models side by side) and `colocation.csv` (one model's latency
beside any number of others). What is assumed and not measured says so: `"assumed": true` beside a value, a
reason in a table's column `assumed`.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any

from controlplane.domain.device import Device, ShareGrid, ShareKind
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile
from controlplane.files.documents import parse_json

_ROOT = resources.files(__name__)


def devices() -> tuple[str, ...]:
    """The device types the catalogue speaks for."""
    return tuple(sorted(entry.name for entry in _ROOT.iterdir() if entry.joinpath("device.json").is_file()))


@functools.cache
def device(name: str) -> Device | None:
    """A device type; None where the catalogue does not know it."""
    if name not in devices():
        return None
    told = _told(name)
    return Device(
        name=name,
        share_kind=ShareKind(told["share_kind"]),
        grid=ShareGrid(told["minimum_percent"], told["step_percent"]),
        memory_mb=_value(told.get("memory_mb")),
        price_per_hour=_value(told.get("price_per_hour")),
        hardware=MappingProxyType(_values(told.get("hardware", {}))),
    )


@functools.cache
def profiles(name: str) -> Mapping[str, Profile]:
    """Model -> profile on a device type; empty where the catalogue does not know it."""
    if name not in devices():
        return MappingProxyType({})
    told = _told(name)
    solo: dict[str, list[Measurement]] = {model: [] for model in told["models"]}
    for row in _rows(name, "solo.csv"):
        solo[row["model"]].append(
            Measurement(
                percent=float(row["pct"]),
                batch=int(row["batch"]),
                execution_ms=float(row["latency_ms"]),
                capacity_rps=float(row["throughput_img_s"]) if row.get("throughput_img_s") else None,
            )
        )
    beside: dict[str, list[ColocationPoint]] = {model: [] for model in told["models"]}
    for row in _rows(name, "pairs.csv"):
        for me, other in (("1", "2"), ("2", "1")):
            neighbour = Neighbour(row[f"model{other}"], float(row[f"pct{other}"]), int(row[f"batch{other}"]))
            beside[row[f"model{me}"]].append(
                ColocationPoint(
                    float(row[f"pct{me}"]),
                    int(row[f"batch{me}"]),
                    (neighbour,),
                    float(row[f"latency{me}_ms"]),
                )
            )
    for row in _rows(name, "colocation.csv"):
        beside[row["model"]].append(
            ColocationPoint(
                float(row["pct"]),
                int(row["batch"]),
                tuple(_neighbour(text) for text in row["neighbours"].split()),
                float(row["latency_ms"]),
            )
        )
    memory = _values(told.get("model_memory_mb", {}))
    return MappingProxyType(
        {
            model: Profile(
                model=model,
                device=name,
                share_kind=ShareKind(told["share_kind"]),
                environment=Environment(**told.get("environment", {})),
                points=tuple(solo[model]),
                colocation=tuple(beside[model]),
                fits=_fits(told, model, coefficients),
                holdout_error=told.get("holdout_error", {}).get(model, {}),
                memory_mb=memory.get(model),
            )
            for model, coefficients in told["models"].items()
        }
    )


def _neighbour(text: str) -> Neighbour:
    """`model@percentxbatch`."""
    model, rest = text.split("@")
    percent, batch = rest.split("x")
    return Neighbour(model, float(percent), int(batch))


def _fits(
    told: Mapping[str, Any], model: str, igniter: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, float]]:
    named = {fit: _values(of[model]) for fit, of in told.get("fits", {}).items() if model in of}
    return {"igniter": _values(igniter), **named} if igniter else dict(named)


def _told(name: str) -> dict[str, Any]:
    file = _ROOT / name / "device.json"
    told: dict[str, Any] = parse_json(file.read_text(), f"catalogue/{name}/device.json")
    return told


def _rows(name: str, file: str) -> Iterator[dict[str, str]]:
    table: Traversable = _ROOT / name / file
    if table.is_file():
        yield from csv.DictReader(table.read_text().splitlines())


def _value(told: Mapping[str, Any] | None) -> float | None:
    return None if told is None else float(told["value"])


def _values(told: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {name: float(entry["value"]) for name, entry in told.items()}
