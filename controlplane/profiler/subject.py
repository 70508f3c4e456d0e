"""What is to be measured: a model, its points and its requests, all checked before a server starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.domain.device import Device
from controlplane.domain.profile import RequestSet
from controlplane.profiler.point import Requests
from controlplane.profiler.requests import NO_INPUTS, Inputs, check_batches_form, request_set, requests_for
from controlplane.profiler.sweep import Point, chosen_points
from controlplane.render.config import batch_limit
from controlplane.render.source import SourceModel, read_source


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user may choose. `percents` and `batches` None: eleven points.

    `budget_s` is aimed at for a whole model. `inputs` are by model; a model that has none here gets requests
    made from its configuration.
    """

    percents: Sequence[float] | None = None
    batches: Sequence[int] | None = None
    budget_s: float = 40.0
    inputs: Mapping[str, Inputs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is to be measured. `inputs` is what its profile remembers of `requests`."""

    source: SourceModel
    points: tuple[Point, ...]
    requests: Requests
    inputs: RequestSet
    budget_s: float


def read_subject(repository: Path, model: str, device: Device, wishes: Wishes | None = None) -> Subject:
    """Read a model and everything given for it. Raises InputError for what cannot be measured as asked."""
    wishes = wishes or Wishes()
    source = read_source(repository, model)
    points = chosen_points(device.grid, batch_limit(source.config), wishes.percents, wishes.batches)
    given = wishes.inputs.get(model, NO_INPUTS)
    requests = requests_for(source, given)
    check_batches_form(source, requests, given, max(p.batch for p in points))
    return Subject(source, points, requests, request_set(requests, given), wishes.budget_s)
