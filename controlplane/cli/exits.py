"""Exit codes."""

from __future__ import annotations

from controlplane.domain.errors import EngineError, GatewayError, InfeasibleError, InputError, TrisectError

EXIT_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_ENGINE = 4
EXIT_GATEWAY = 5
EXIT_INTERRUPTED = 130

_BY_KIND: tuple[tuple[type[TrisectError], int], ...] = (
    (InputError, EXIT_INPUT),
    (InfeasibleError, EXIT_INFEASIBLE),
    (GatewayError, EXIT_GATEWAY),
    (EngineError, EXIT_ENGINE),
)


def exit_code(error: TrisectError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _BY_KIND if isinstance(error, kind)), EXIT_ENGINE)
