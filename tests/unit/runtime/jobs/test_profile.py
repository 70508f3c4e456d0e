"""Measuring several models: what each comes to, and what holds up the others."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.errors import EngineError, FleetBusy, InputError, MissingTool, NotNow, RequestRefused
from controlplane.domain.profile import Environment, Measurement, Profile, RequestSet
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from controlplane.files.measurements.profiles import partial_path, read_profile, write_partial
from controlplane.latency.evaluate import disagreeing
from controlplane.profiler.requests import Inputs, Subject, Wishes
from controlplane.profiler.session import Measured, Place, Profiler, resumed
from controlplane.profiler.sweep import Point
from controlplane.runtime.jobs.completing import Completer
from controlplane.runtime.jobs.profile import (
    Failed,
    Written,
    profile_models,
    read_subjects,
    readable_subjects,
)

PLACE = Place(Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID), "cpu-0")
CONFIG = 'backend: "b"\ninput [ { name: "T", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'


@dataclass
class Measures:
    """A profiler whose every model takes 7.5 s and has three points, or fails."""

    profiles: Path
    fails: Mapping[str, EngineError] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)
    incomplete: tuple[Any, ...] = ()
    now_s: float = 0.0
    clock: Any = field(init=False)

    def __post_init__(self) -> None:
        self.clock = self

    def monotonic(self) -> float:
        return self.now_s

    def measure(self, subject: Subject, *_: object, **__: object) -> Measured:
        self.now_s += 7.5
        model = subject.source.name
        self.measured.append(model)
        if model in self.fails:
            raise self.fails[model]
        session = len(self.measured)
        points = tuple(Measurement(50.0, b, execution_ms=2.0 * b, n=session) for b in (1, 2, 4))
        profile = Profile(model, "cpu", ShareKind.CPU_QUOTA, Environment(), points, inputs=subject.inputs)
        return Measured(profile, *self.incomplete)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for model in ("a", "b", "c"):
        (tmp_path / "models" / model / "1").mkdir(parents=True)
        (tmp_path / "models" / model / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


def profiled(profiler: Measures, repository: Path, wishes: Wishes | None = None) -> list[Written | Failed]:
    subjects = read_subjects(repository, [], PLACE, wishes or Wishes())
    return list(profile_models(cast(Profiler, profiler), subjects, PLACE, resume=True))


def test_each_is_told_with_its_file_its_points_and_its_time(tmp_path: Path, repository: Path) -> None:
    told = [one for one in profiled(Measures(tmp_path / "profiles"), repository) if isinstance(one, Written)]
    assert [(one.profile.model, one.seconds) for one in told] == [("a", 7.5), ("b", 7.5), ("c", 7.5)]
    assert [len(read_profile(one.path).points) for one in told] == [3, 3, 3]


def test_the_shapes_of_a_measured_model_are_known_afterwards(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for model in ("a", "b"):
        (repository / model / "config.pbtxt").write_text(CONFIG.replace("[ 1 ]", "[ -1 ]"))
    profiler = Measures(tmp_path / "profiles", {"b": EngineError("died")})
    shapes = {model: Inputs({"T": (3,)}) for model in ("a", "b")}
    profiled(profiler, repository, Wishes(inputs=shapes))
    assert read_subjects(repository, ["a"], PLACE, Wishes())[0].traffic.requests[0].inputs[0].shape == [3]
    with pytest.raises(InputError, match="--shape b:T:N"):
        read_subjects(repository, ["b"], PLACE, Wishes())


def test_a_model_profiled_again_keeps_both_times_of_each_point(tmp_path: Path, repository: Path) -> None:
    profiler = Measures(tmp_path / "profiles")
    profiled(profiler, repository)
    again = [one for one in profiled(profiler, repository) if isinstance(one, Written)]
    assert [(r.batch, r.first_ms, r.second_ms) for r in read_profile(again[0].path).repeats] == [
        (1, 2.0, 2.0),
        (2, 4.0, 4.0),
        (4, 8.0, 8.0),
    ]


def test_what_was_measured_of_a_model_is_written_and_the_rest_can_go_on(
    tmp_path: Path, repository: Path
) -> None:
    profiles = tmp_path / "profiles"
    write_partial(profiles, Profile("a", "cpu", ShareKind.CPU_QUOTA, Environment(), ()))
    missing = (Point(50.0, 8), Point(50.0, 16))
    profiler = Measures(profiles, incomplete=(missing, "too few batches of 8 within 60 s"))
    first = next(one for one in profiled(profiler, repository) if isinstance(one, Written))
    assert (first.missing, first.reason) == (2, "too few batches of 8 within 60 s")
    assert read_profile(first.path).largest_batch == 4, "no larger one than was seen is planned"
    assert partial_path(profiles, "cpu", "a").exists()


def test_an_earlier_profile_that_cannot_be_read_is_named_and_kept(tmp_path: Path, repository: Path) -> None:
    broken = tmp_path / "profiles" / "cpu" / "b.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    profiler = Measures(tmp_path / "profiles")
    with pytest.raises(InputError, match=r"b\.json"):
        profiled(profiler, repository)
    assert not profiler.measured
    assert broken.read_text() == "{"


def test_a_model_that_fails_is_named_and_the_others_go_on(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps({"data": [{"T": ["real"]}]}))
    fails = {"a": RequestRefused("empty content"), "b": EngineError("b.0: did not become ready within 60 s")}
    told = profiled(
        Measures(tmp_path / "profiles", fails),
        repository,
        Wishes(inputs={"a": Inputs(data=tmp_path / "in.json")}),
    )
    refused, failed, written = told
    assert isinstance(refused, Failed)
    assert isinstance(failed, Failed)
    assert isinstance(written, Written)
    assert (refused.model, refused.words) == ("a", "empty content")
    assert refused.refused is not None
    assert refused.refused.file == str(tmp_path / "in.json")
    assert (failed.model, failed.words, failed.refused) == (
        "b",
        "b.0: did not become ready within 60 s",
        None,
    )
    assert written.profile.model == "c"
    assert not (tmp_path / "profiles/cpu/a.json").exists()


@pytest.mark.parametrize("error", [FleetBusy("busy"), MissingTool("no tritonserver"), NotNow("disk full")])
def test_what_would_hit_every_model_ends_the_run(
    tmp_path: Path, repository: Path, error: EngineError
) -> None:
    profiler = Measures(tmp_path / "profiles", {"a": error})
    with pytest.raises(type(error)):
        profiled(profiler, repository)
    assert profiler.measured == ["a"]


def test_everything_is_checked_before_the_first_model_is_measured(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "in.json").write_text('{"data": [\n {"T": [1]}\n]}')
    given = Wishes(inputs={"c": Inputs(data=tmp_path / "in.json")})
    with pytest.raises(InputError, match=r"in\.json:2: data\[0\]\.T: element 0 must be a string"):
        read_subjects(repository, [], PLACE, given)
    with pytest.raises(InputError, match=r"c: has inputs, but is not among the models to measure"):
        read_subjects(repository, ["a", "b"], PLACE, given)
    with pytest.raises(InputError, match=r"bb: is not a model of .*did you mean 'b'"):
        read_subjects(repository, ["bb"], PLACE, Wishes())


def test_a_model_that_cannot_be_measured_leaves_the_others(repository: Path) -> None:
    (repository / "b" / "config.pbtxt").write_text("max_batch_size: many")
    (repository / "c" / "config.pbtxt").write_text(CONFIG.replace("[ 1 ]", "[ -1 ]"))

    def read(*models: str, said: Mapping[str, str], wishes: Wishes) -> tuple[list[str], list[str]]:
        completer = cast(Completer, SimpleNamespace(complete=lambda *_: said))
        subjects, failed = readable_subjects(repository, models, PLACE, wishes, completer)
        return [one.source.name for one in subjects], [one.model for one in failed]

    assert read(said={}, wishes=Wishes()) == (["a"], ["b", "c"])
    shape = Wishes(inputs={"c": Inputs({"T": (2,)})})
    assert read(said={"a": "no weights"}, wishes=shape) == (["c"], ["b", "a"])
    with pytest.raises(InputError, match="not a model configuration"):
        read("b", said={}, wishes=Wishes())
    with pytest.raises(InputError, match="does not fit"):
        read(said={}, wishes=Wishes(inputs={"c": Inputs({"T": (2, 2)})}))


def test_a_model_is_not_measured_where_triton_does_not_load_one_that_it_executes(repository: Path) -> None:
    (repository / "b" / "1" / "model.py").write_text('InferenceRequest(model_name="a")')
    (repository / "a" / "config.pbtxt").unlink()
    completer = cast(Completer, SimpleNamespace(complete=lambda *_: {"a": "no weights"}))
    subjects, failed = readable_subjects(repository, ["b", "c"], PLACE, Wishes(), completer)
    assert [one.source.name for one in subjects] == ["c"]
    assert [one.model for one in failed] == ["b"]
    assert "no weights" in failed[0].words


def test_points_measured_with_other_inputs_or_server_options_are_not_resumed() -> None:
    own = ServerOptions(("--log-verbose=1",), {"OMP_NUM_THREADS": "2"})
    here, elsewhere = (RequestSet(2, "hash of two", file=name) for name in ("in.json", "elsewhere.json"))
    fresh = Profile("a", "cpu", ShareKind.CPU_QUOTA, Environment(), (), inputs=here, options=own)
    points, wanted = (Measurement(percent=50.0, batch=1, execution_ms=2.0),), [Point(50.0, 1)]
    partial = replace(fresh, points=points, inputs=elsewhere)
    assert resumed(fresh, partial, wanted).points == points
    for other in ({"inputs": RequestSet(1, "other")}, {"inputs": None}, {"options": NO_OPTIONS}):
        assert resumed(fresh, replace(partial, **other), wanted) == fresh  # type: ignore[arg-type]
    assert resumed(replace(fresh, options=NO_OPTIONS), partial, wanted).points == ()


def test_a_folder_without_config_is_called_that(tmp_path: Path) -> None:
    bare = tmp_path / "bare-models"
    (bare / "bare" / "1").mkdir(parents=True)
    with pytest.raises(InputError, match=r"bare/config\.pbtxt: is missing, and Triton has not completed it"):
        read_subjects(bare, ["bare"], PLACE, Wishes())
    (bare / "bare" / "1").rmdir()
    with pytest.raises(InputError, match=r"has no model .*; folders without one: bare$"):
        read_subjects(bare, [], PLACE, Wishes())


def test_a_point_that_the_others_contradict_is_named() -> None:
    points = tuple(
        Measurement(p, b, 200.0 * b / p * (1.4 if (p, b) == (60.0, 4) else 1.0))
        for p in (20.0, 60.0, 100.0)
        for b in (1, 2, 4, 8)
    )
    profile = Profile("a", "cpu", ShareKind.CPU_QUOTA, Environment(), points)
    (found,) = disagreeing(profile)
    assert (found.percent, found.batch) == (60.0, 4)
    assert found.expected_ms == pytest.approx(200.0 * 4 / 60.0, rel=0.1)
    undisturbed = replace(profile, points=tuple(p for p in points if (p.percent, p.batch) != (60.0, 4)))
    assert disagreeing(undisturbed) == ()
