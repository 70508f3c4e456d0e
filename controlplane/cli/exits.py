"""Exit codes, and the kinds of errors that they stand for."""

from __future__ import annotations

from typing import NamedTuple

from controlplane.domain.errors import EngineError, GatewayError, InfeasibleError, InputError, TrisectError

EXIT_NO = 1
"""The answer to a question of a script is no: --check, --exit-code, `ctl wait`; or the demo failed."""
EXIT_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_ENGINE = 4
EXIT_GATEWAY = 5
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells count."""
EXIT_PIPE = 141
"""128 + SIGPIPE: the reader of stdout has closed it."""
EXIT_TERMINATED = 143
"""128 + SIGTERM."""


class Kind(NamedTuple):
    """An error's kind as in JSON, and its exit code."""

    name: str
    code: int


INPUT = Kind("input", EXIT_INPUT)
ENGINE = Kind("engine", EXIT_ENGINE)
INTERRUPTED = Kind("interrupted", EXIT_INTERRUPTED)
TERMINATED = Kind("terminated", EXIT_TERMINATED)

_KINDS: tuple[tuple[type[TrisectError], Kind], ...] = (
    (InputError, INPUT),
    (InfeasibleError, Kind("infeasible", EXIT_INFEASIBLE)),
    (GatewayError, Kind("gateway", EXIT_GATEWAY)),
    (EngineError, ENGINE),
)


def kind_of(error: TrisectError) -> Kind:
    """Return the kind of an error."""
    return next((kind for type_, kind in _KINDS if isinstance(error, type_)), ENGINE)


def exit_code(error: TrisectError) -> int:
    """Return the exit code of an error."""
    return kind_of(error).code
