"""The subject of a measurement: a model, its points and its requests, checked before a server starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.domain.device import Device
from controlplane.domain.profile import RequestSet
from controlplane.profiler.requests import (
    NO_INPUTS,
    Inputs,
    Traffic,
    check_batches_form,
    request_set,
    requests_for,
)
from controlplane.profiler.sweep import Point, chosen_points, fewer_points
from controlplane.render.config import batch_limit, iterates
from controlplane.render.source import SourceModel, read_source, steps_of


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's options. Without `percents` and `batches`, eleven points are measured.

    `budget_s` is the approximate time for a whole model. `inputs` are by model; for the other models,
    requests are generated from the configuration.
    """

    percents: Sequence[float] | None = None
    batches: Sequence[int] | None = None
    budget_s: float = 40.0
    inputs: Mapping[str, Inputs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to measure. `inputs` is the description of `traffic` for its profile.

    `fewer`: what a slow model is measured at instead of `points`; empty where the user chose the points.
    """

    source: SourceModel
    points: tuple[Point, ...]
    traffic: Traffic
    inputs: RequestSet
    budget_s: float
    fewer: tuple[tuple[Point, ...], ...] = ()


def read_subject(repository: Path, model: str, device: Device, wishes: Wishes | None = None) -> Subject:
    """Read a model and the user's inputs for it. Raises InputError if it cannot be measured with them."""
    wishes = wishes or Wishes()
    source = read_source(repository, model)
    largest = batch_limit(source.config)
    points = chosen_points(model, device.grid, largest, wishes.percents, wishes.batches)
    free = wishes.percents is None and wishes.batches is None
    given = wishes.inputs.get(model, NO_INPUTS)
    requests = requests_for(source, given)
    check_batches_form(source, requests, given, max(p.batch for p in points))
    traffic = Traffic(
        requests,
        streamed=source.config.model_transaction_policy.decoupled,
        in_sequence=source.config.HasField("sequence_batching"),
        in_steps=iterates(source.config),
        steps=steps_of(source),
    )
    fewer = fewer_points(device.grid, largest) if free else ()
    return Subject(source, points, traffic, request_set(requests, given), wishes.budget_s, fewer)
