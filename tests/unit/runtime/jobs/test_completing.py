"""What a model that Triton cannot load costs the others."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from build import server, spec

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.files.models import read_completed
from controlplane.ports import Launcher
from controlplane.runtime.jobs import completing
from controlplane.runtime.jobs.completing import Completer

TENSOR = '[ { name: "X", data_type: TYPE_FP32, dims: [ 4 ] } ]'
WHOLE = f'backend: "b"\ninput {TENSOR}\noutput {TENSOR}\ninstance_group [ {{ kind: KIND_GPU gpus: [ 3 ] }} ]'


class Served(Completer):
    """A completer without servers; `begun` are those that it started."""

    begun: ClassVar[list[str]] = []

    @contextlib.contextmanager
    def _serving(self, repository: Path) -> Iterator[Server]:
        self.begun.append("server")
        yield server(spec())


def test_a_model_whose_load_ends_the_server_costs_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    loaded: dict[str, Any] = {}
    ended: list[int] = []

    def load(on: Server, model: str, *, deadline_s: float, config: str | None) -> None:
        if model == "refused":
            raise EngineError(f"{on.name}: load refused: no such weights")
        if model == "ends":
            ended.append(len(Served.begun))
        answer()
        loaded[model] = json.loads(config or "{}")

    def answer(*_: object) -> None:
        if len(Served.begun) in ended:
            raise EngineError("lost")

    monkeypatch.setattr(completing, "load", load)
    monkeypatch.setattr(completing.TritonClient, "answer", answer)
    monkeypatch.setattr(completing, "unload", lambda *_, **__: None)
    monkeypatch.setattr(completing.TritonClient, "config", lambda _, model: loaded[model])
    models = ("one", "refused", "ends", "two")
    for model in models:
        (tmp_path / model / "1").mkdir(parents=True)
        (tmp_path / model / "config.pbtxt").write_text(WHOLE)
    completer = Served(cast(Launcher, None), "cpu-0", tmp_path)
    failed = completer.complete(tmp_path, models)
    assert set(failed) == {"ends", "refused"}
    assert failed["refused"] == "no such weights"
    assert len(completer.begun) == 3, "the one before may have ended it, so it is tried again"
    # A GPU of another host is no reason to refuse; what is kept names it as written.
    assert [group["kind"] for group in loaded["one"]["instance_group"]] == ["KIND_CPU"]
    assert "gpus: 3" in (read_completed(tmp_path / "two") or "")
