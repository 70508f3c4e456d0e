"""Reading and writing of profile files, DIR/<device>/<model>.json.

An unfinished measurement is in <model>.partial.json, in the same format.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from controlplane.domain.device import ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import (
    AnswerTimes,
    ColocationPoint,
    Environment,
    Measurement,
    Neighbour,
    Profile,
    Repeat,
    RequestSet,
)
from controlplane.domain.server_options import ServerOptions
from controlplane.files.documents import SCHEMA_VERSION, Document, Strict, read
from controlplane.files.writing import write_json

_PARTIAL = ".partial.json"


class _Environment(Strict):
    gpu: str | None = None
    driver: str | None = None
    triton: str | None = None
    backend: str | None = None
    host: str | None = None
    date: str | None = None
    idle_w: Annotated[float, Field(ge=0)] | None = None
    tool: str | None = None


class _Point(Strict):
    percent: float
    batch: int
    execution_ms: float
    concurrency: int = 1
    std_ms: Annotated[float, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    capacity_rps: float | None = None
    throttled: Annotated[float, Field(ge=0, le=1)] | None = None
    host_busy: Annotated[float, Field(ge=0, le=1)] | None = None
    power_w: Annotated[float, Field(ge=0)] | None = None
    clock_mhz: Annotated[float, Field(gt=0)] | None = None


class _Neighbour(Strict):
    model: str
    percent: float
    batch: int


class _ColocationPoint(Strict):
    percent: float
    batch: int
    neighbours: Annotated[list[_Neighbour], Field(min_length=1)]
    execution_ms: float


class _RequestSet(Strict):
    file: str | None = None
    requests: Annotated[int, Field(ge=1)]
    sha256: str


class _AnswerTimes(Strict):
    first_ms: Annotated[float, Field(ge=0)]
    last_ms: Annotated[float, Field(ge=0)]


class _Options(Strict):
    triton_args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)


class _Repeat(Strict):
    percent: float
    batch: int
    first_ms: float
    second_ms: float


class _Profile(Strict):
    schema_version: int
    model: str
    device: str
    share_kind: Annotated[ShareKind, Field(strict=False)]
    environment: _Environment = _Environment()
    points: Annotated[list[_Point], Field(min_length=1)]
    colocation: list[_ColocationPoint] = Field(default_factory=list)
    fits: dict[str, dict[str, float]] = Field(default_factory=dict)
    holdout_error: dict[str, float] = Field(default_factory=dict)
    jitter: Annotated[float, Field(ge=0)] | None = None
    frontend_ms: Annotated[float, Field(ge=0)] | None = None
    request_ms: Annotated[float, Field(ge=0)] | None = None
    memory_mb: Annotated[float, Field(gt=0)] | None = None
    max_batch: Annotated[int, Field(ge=0)] | None = None
    inputs: _RequestSet | None = None
    repeats: list[_Repeat] = Field(default_factory=list)
    answers: _AnswerTimes | None = None
    options: _Options = _Options()


def profile_path(directory: Path, device: str, model: str) -> Path:
    """Return the file of a model's profile on a device type."""
    return directory / device / f"{model}.json"


def partial_path(directory: Path, device: str, model: str) -> Path:
    """Return the file of an unfinished measurement."""
    return directory / device / f"{model}{_PARTIAL}"


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises InputError with file, line and field of the first mistake."""
    document = read(path)
    parsed = document.parse(_Profile)
    points = _points(document, parsed)
    colocation = []
    for i, point in enumerate(parsed.colocation):
        with document.at("colocation", i):
            neighbours = tuple(Neighbour(n.model, n.percent, n.batch) for n in point.neighbours)
            colocation.append(ColocationPoint(point.percent, point.batch, neighbours, point.execution_ms))
    repeats = []
    for i, repeat in enumerate(parsed.repeats):
        with document.at("repeats", i):
            repeats.append(Repeat(**repeat.model_dump()))
    with document.at("options"):
        options = ServerOptions(tuple(parsed.options.triton_args), tuple(parsed.options.env.items()))
    with document.at():
        return Profile(
            model=parsed.model,
            device=parsed.device,
            share_kind=parsed.share_kind,
            environment=Environment(**parsed.environment.model_dump()),
            points=points,
            colocation=tuple(colocation),
            fits=parsed.fits,
            holdout_error=parsed.holdout_error,
            jitter=parsed.jitter,
            frontend_ms=parsed.frontend_ms,
            request_ms=parsed.request_ms,
            memory_mb=parsed.memory_mb,
            max_batch=parsed.max_batch,
            inputs=None if parsed.inputs is None else RequestSet(**parsed.inputs.model_dump()),
            repeats=tuple(repeats),
            answers=None if parsed.answers is None else AnswerTimes(**parsed.answers.model_dump()),
            options=options,
        )


def read_profiles(directory: Path, device: str) -> dict[str, Profile]:
    """Return the profiles of one device type by model; empty if there are none.

    Raises InputError for a broken file, for one whose device or model is not that of its path, and where
    `directory` is a file.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError("is not a directory of profiles", file=str(directory), field="--profiles")
    found = {}
    for path in sorted((directory / device).glob("*.json")):
        if path.name.endswith(_PARTIAL):
            continue
        profile = read_profile(path)
        for field, said, expected in (
            ("device", profile.device, device),
            ("model", profile.model, path.name.removesuffix(".json")),
        ):
            if said != expected:
                read(path).fail(f"is {said!r}, and the file stands where {expected!r} belongs", (field,))
        found[profile.model] = profile
    return found


def read_partial(directory: Path, device: str, model: str) -> Profile | None:
    """Read an unfinished measurement; None if there is none. Raises InputError as `read_profile` does."""
    path = partial_path(directory, device, model)
    return read_profile(path) if path.exists() else None


def write_partial(directory: Path, profile: Profile) -> None:
    """Write an unfinished measurement."""
    write_json(partial_path(directory, profile.device, profile.model), profile_document(profile))


def write_profile(directory: Path, profile: Profile, *, finished: bool = True) -> Path:
    """Replace a profile; once it is `finished`, remove its unfinished measurement. Return the file's path."""
    path = profile_path(directory, profile.device, profile.model)
    write_json(path, profile_document(profile))
    if finished:
        partial_path(directory, profile.device, profile.model).unlink(missing_ok=True)
    return path


def profile_document(profile: Profile) -> dict[str, Any]:
    """Return a profile as the JSON of its file."""
    document = asdict(replace(profile, points=(), colocation=()))
    document["share_kind"] = str(profile.share_kind)
    document["options"] = {"triton_args": list(profile.options.triton_args), "env": dict(profile.options.env)}
    document["points"] = [_values(point) for point in profile.points]
    document["colocation"] = [
        _values(pair) | {"neighbours": [_values(one) for one in pair.neighbours]}
        for pair in profile.colocation
    ]
    return {"schema_version": SCHEMA_VERSION, **document}


def _values(point: Measurement | ColocationPoint | Neighbour) -> dict[str, Any]:
    """The fields of hundreds of points: `asdict` copies each value, which takes ten times as long."""
    return {name: getattr(point, name) for name in point.__slots__}


def _points(document: Document, parsed: _Profile) -> tuple[Measurement, ...]:
    points = []
    seen: set[tuple[float, int, int]] = set()
    for i, point in enumerate(parsed.points):
        with document.at("points", i):
            points.append(Measurement(**point.model_dump()))
        key = (point.percent, point.batch, point.concurrency)
        if key in seen:
            document.fail("stands twice: same percent, batch and concurrency", ("points", i))
        seen.add(key)
    return tuple(points)
