"""Options and environment variables that a user passes on to every Triton of a fleet.

Values are kept in plans and labels, and shown by `ctl apply --dry-run`: they are no place for secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.domain.errors import InputError

_OWNED = (
    "id",
    "model-repository",
    "model-store",
    "backend-directory",
    "exit-timeout-secs",
    "model-control-mode",
    "load-model",
    "repository-poll-secs",
    "disable-auto-complete-config",
    "strict-model-config",
    "rate-limit",
    "rate-limit-resource",
    "allow-http",
    "http-address",
    "http-port",
    "http-restricted-api",
    "reuse-http-port",
    "allow-grpc",
    "grpc-address",
    "grpc-port",
    "grpc-restricted-protocol",
    "reuse-grpc-port",
    "grpc-use-ssl",
    "grpc-use-ssl-mutual",
    "allow-metrics",
    "allow-gpu-metrics",
    "metrics-address",
    "metrics-port",
    "metrics-config",
    "allow-sagemaker",
    "sagemaker-port",
    "allow-vertex-ai",
    "vertex-ai-port",
    "log-file",
    "log-format",
    "log-error",
    "log-info",
)
"""The options of Triton that Trisect sets, or that would make a server another one than it knows."""

_OWNED_SETTING = "shm-region-prefix-name"
"""The setting of `--backend-config=python,...` by which Trisect finds a server's shared memory."""

_OWNED_VARIABLES = (
    "TRISECT_",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_",
    "NVIDIA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "PATH",
)
_ARGUMENT = re.compile(r"--([a-z0-9-]+)(=.*)?", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Further arguments of tritonserver, each `--name=value`, and environment variables.

    Raises InputError for what Trisect sets itself, and for other forms.
    """

    triton_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for i, argument in enumerate(self.triton_args):
            _check_argument(argument, f"triton_args[{i}]")
        for name, value in self.env.items():
            _check_variable(name, value)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.triton_args or self.env)


NO_OPTIONS = ServerOptions()


def _check_argument(argument: str, field: str) -> None:
    found = _ARGUMENT.fullmatch(argument)
    if found is None or "\0" in argument:
        raise InputError(f"{argument!r} is not --NAME=VALUE or --NAME", field=field)
    # Triton takes every beginning of an option's name that is not the beginning of another one's too.
    name = found[1]
    owned = next((option for option in _OWNED if option.startswith(name)), None)
    if owned is not None:
        raise InputError(f"--{name}: Trisect sets --{owned} itself; leave it out", field=field)
    if "backend-config".startswith(name) and _OWNED_SETTING in argument:
        raise InputError(f"Trisect sets the backend's {_OWNED_SETTING} itself; leave it out", field=field)


def _check_variable(name: str, value: str) -> None:
    field = f"env.{name}"
    if not _VARIABLE.fullmatch(name) or "\0" in value:
        raise InputError(f"{name!r} is not the name of an environment variable with a value", field=field)
    if any(name == owned or (owned.endswith("_") and name.startswith(owned)) for owned in _OWNED_VARIABLES):
        raise InputError("Trisect sets this variable itself; leave it out", field=field)
