"""Completion of model configurations by a temporary Triton, which loads the models one after another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from google.protobuf.json_format import MessageToJson, ParseDict
from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain import units
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import EngineError, InputError, MissingTool
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from controlplane.files.models import write_completed
from controlplane.ports import Launcher
from controlplane.profiler.temporary import check_python_path, exclusive, running
from controlplane.render.config import backend_of, completed_config, is_complete, place_instances
from controlplane.render.source import read_written, to_complete
from controlplane.triton.client import TritonClient, load, unload

_START_S = 60.0
LOAD_S = 120.0
"""The longest time for one model to load, unless the user gives another."""


@dataclass(frozen=True, slots=True)
class Completer:
    """Has a Triton complete configurations.

    `device` is the launcher's name for the one it runs on; `scratch` holds locks; `options` are the user's.
    `backends` are those of the Triton, None where they are unknown, as of an image.
    """

    launcher: Launcher
    device: str
    scratch: Path
    options: ServerOptions = NO_OPTIONS
    backends: frozenset[str] | None = None
    load_s: float = LOAD_S

    @property
    def on_core(self) -> bool:
        """Whether it runs on a core of this host, and not on a GPU."""
        return self.device.startswith(CPU_DEVICE)

    def complete(self, repository: Path, models: Sequence[str]) -> Mapping[str, str]:
        """Complete and keep those of the models' configurations that need it.

        Starts no server where none does. Returns Triton's message by model for each that it did not load.
        Raises InputError for a configuration that cannot be read, FleetBusy where another command completes
        the same repository, EngineError where the server or the disk fails.
        """
        found = {units.safe_name(model, "model"): repository.resolve() / model for model in models}
        wanted = [model for model in found if found[model].is_dir() and self._is_wanted(repository, model)]
        if not wanted:
            return {}
        if any(path for model in wanted for path in found[model].glob("[0-9]*/model.py")):
            check_python_path(self.launcher, repository.resolve())
        failed: dict[str, str] = {}
        left, place = wanted, repository.resolve()
        try:
            while left:
                with self._serving(place) as server, TritonClient(server) as client:
                    left = self._on_one_server(place, left, server, client, failed)
        except MissingTool:
            if any(not _is_whole(found[model]) for model in wanted):
                raise
            # A laptop without a Triton looks at what is written.
        return failed

    def _on_one_server(
        self,
        repository: Path,
        models: list[str],
        server: Server,
        client: TritonClient,
        failed: dict[str, str],
    ) -> list[str]:
        """Complete models, and add to the `failed` ones; return those that need another server."""
        refused = False
        for index, model in enumerate(models):
            written = read_written(repository / model)
            try:
                config = self._loaded_config(server, client, model, written)
            except EngineError as error:
                lives = True
                try:
                    client.answer()
                except EngineError:
                    lives = False
                if not lives and refused:
                    return models[index:]  # the one before may have ended the server
                said, refused = str(error).removeprefix(f"{server.name}: load {model}: "), True
                failed[model] = said if lives else f"its load ended the server ({said})"
                if not lives:
                    return models[index + 1 :]
            else:
                write_completed(repository / model, completed_config(written, config))
        return []

    def _loaded_config(
        self, server: Server, client: TritonClient, model: str, written: ModelConfig | None
    ) -> ModelConfig:
        """Load a model, read its configuration and unload it. Raises EngineError with Triton's message.

        Its instances are placed as in a plan: the GPUs that are written may be of another host.
        """
        placed = None
        if written is not None and written.instance_group:
            there = ModelConfig()
            there.CopyFrom(written)
            place_instances(there, count=1, gpu_type=CPU_DEVICE if self.on_core else "", turns=False)
            placed = MessageToJson(there, preserving_proto_field_name=True)
        load(server, model, deadline_s=self.load_s, config=placed)
        config: ModelConfig = ParseDict(dict(client.config(model)), ModelConfig(), ignore_unknown_fields=True)
        unload(server, model, deadline_s=self.load_s)
        return config

    def _is_wanted(self, repository: Path, model: str) -> bool:
        """Return whether a configuration is to be completed; not where its backend is known to be missing."""
        folder = repository.resolve() / model
        written = read_written(folder)
        if written is not None and lacks_backend(written, folder, self.backends):
            return not _is_whole(folder)
        return to_complete(repository, model)

    @contextlib.contextmanager
    def _serving(self, repository: Path) -> Iterator[Server]:
        """Run a server that completes, alone on its repository, and stop it at the end."""
        fleet = f"complete-{sha256(str(repository).encode()).hexdigest()[:10]}"
        spec = ServerSpec(
            labels=Labels(fleet, "complete", "complete", Role.PROFILE, "r1"),
            repository=str(repository),
            endpoints=(),
            device=self.device,
            percent=100.0,
            reloads=True,
            completes=True,
            options=self.options,
        )
        busy = f"another command completes the configurations of {repository}; wait for it to end"
        with (
            exclusive(self.launcher, fleet, self.scratch / f"{fleet}.lock", busy),
            running(self.launcher, spec, deadline_s=_START_S) as server,
        ):
            yield server


def _is_whole(folder: Path) -> bool:
    """Return whether what is written says all that a plan needs."""
    written = read_written(folder)
    return written is not None and is_complete(written)


def lacks_backend(config: ModelConfig, folder: Path, backends: frozenset[str] | None) -> bool:
    """Return whether a Triton with these backends has not that of a model, whose folder may bring it."""
    name = backend_of(config)
    if name is None or backends is None or name in backends:
        return False
    return not any((place / f"libtriton_{name}.so").exists() for place in (folder, *folder.glob("[0-9]*")))


def complete_or_refuse(completer: Completer, repository: Path, models: Sequence[str]) -> None:
    """Complete what needs it. Raises InputError with Triton's message for a model that it did not load."""
    for model, said in completer.complete(repository, models).items():
        raise not_completed(repository, model, said)


def not_completed(repository: Path, model: str, said: str) -> InputError:
    """Return the refusal of a model that Triton did not load, with its message."""
    problem = f"Triton cannot complete this model's configuration: {said}"
    return InputError(problem, file=str(repository / model), field="model")
