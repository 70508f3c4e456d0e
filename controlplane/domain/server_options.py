"""Options and environment variables that a user passes on to every Triton of a fleet.

Values are kept in plans and labels, and shown by `ctl apply --dry-run`: they are no place for secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.domain.errors import InputError

_OURS = """
    help id exit-timeout-secs log-info log-error log-format log-file model-store model-repository
    disable-auto-complete-config strict-model-config model-control-mode repository-poll-secs load-model
    allow-http http-address http-port reuse-http-port http-restricted-api allow-grpc grpc-address grpc-port
    reuse-grpc-port grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
    grpc-restricted-protocol allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
    allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model allow-metrics
    allow-gpu-metrics metrics-address metrics-port metrics-config backend-directory rate-limit
    rate-limit-resource
"""
_PASSES = """
    log-verbose log-warning exit-on-error strict-readiness model-load-thread-count model-load-retry-count
    enable-peer-access http-header-forward-pattern http-thread-count grpc-header-forward-pattern
    grpc-infer-allocation-pool-size grpc-infer-response-compression-level grpc-keepalive-time
    grpc-keepalive-timeout grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
    grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
    grpc-max-connection-age-grace allow-cpu-metrics metrics-interval-ms trace-config backend-config
    repoagent-directory cache-config cache-directory pinned-memory-pool-byte-size cuda-memory-pool-byte-size
    cuda-virtual-address-size min-supported-compute-capability buffer-manager-thread-count host-policy
    model-load-gpu-limit response-cache-byte-size trace-level trace-rate trace-count
    trace-log-frequency
"""
_NO_TRACE_FILE = "several servers would write one file: export traces, --trace-config=mode=opentelemetry"
_REFUSED = {
    "model-config-name": "servers would read configs/NAME.pbtxt past the plan: make it the config.pbtxt",
    "model-namespacing": "clients and plans name a model by its name alone: name your models differently",
    "trace-file": _NO_TRACE_FILE,
}
"""Options that change what a server reads, and what to do instead."""

JUDGED: Mapping[str, str] = {
    **{name: f"Trisect sets --{name} itself; leave it out" for name in _OURS.split()},
    **dict.fromkeys(_PASSES.split(), ""),
    **{name: f"--{name} is refused: {instead}" for name, instead in _REFUSED.items()},
}
"""Each option of Triton's help -> why it is refused; empty for one that passes, as options not listed do."""

_SETTINGS = {
    "backend-config": {
        "shm-region-prefix-name": "Trisect sets the backend's shm-region-prefix-name itself; leave it out",
        "default-max-batch-size": "default-max-batch-size is refused: write max_batch_size into config.pbtxt",
    },
    "trace-config": {"triton,file=": f"a file of traces is refused: {_NO_TRACE_FILE}"},
}
"""By option, the settings that are refused, and why."""

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
    meant = [name] if name in JUDGED else [option for option in JUDGED if option.startswith(name)]
    refused = next((JUDGED[option] for option in meant if JUDGED[option]), None)
    settings = (one for option, refusals in _SETTINGS.items() if option in meant for one in refusals.items())
    if refused is None:
        refused = next((why for setting, why in settings if setting in argument), None)
    if refused is not None:
        raise InputError(f"--{name}: {refused}", field=field)


def _check_variable(name: str, value: str) -> None:
    field = f"env.{name}"
    if not _VARIABLE.fullmatch(name) or "\0" in value:
        raise InputError(f"{name!r} is not the name of an environment variable with a value", field=field)
    if any(name == owned or (owned.endswith("_") and name.startswith(owned)) for owned in _OWNED_VARIABLES):
        raise InputError("Trisect sets this variable itself; leave it out", field=field)
