"""The errors a user can meet, by consequence.

TrisectError
├── InputError          the input is wrong: names file, line and field; the same input fails again.
│                       A ValueError too, as Python callers expect for an argument out of range
├── InfeasibleError     nothing can be planned as asked; says what would fit
├── EngineError         a launch, an engine or the disk failed; nothing half-done is left
│   ├── FleetBusy       another command works on the fleet; it ends
│   ├── LaunchTimeout   it did not become ready in time; trying again may help
│   ├── NotNow          the engine is silent or the disk full, whatever was asked for; it helps to wait
│   ├── MissingTool     a program is not installed, or an engine away; says how to get it
│   └── RequestRefused  a server answered a request with an error: the text is its own words
└── GatewayError        the gateway failed or its port is taken
"""

from __future__ import annotations


class TrisectError(Exception):
    """Base of every error with a message written for the user."""


class InputError(TrisectError, ValueError):
    """The input is wrong. Never retried.

    The text reads `file:line: field: what is wrong; the way out`, leaving out what does not apply.
    """

    def __init__(
        self, problem: str, *, file: str | None = None, line: int | None = None, field: str | None = None
    ) -> None:
        place = "" if file is None else f"{file}:{line}: " if line is not None else f"{file}: "
        super().__init__(f"{place}{f'{field}: ' if field else ''}{problem}")
        self.problem = problem
        self.file = file
        self.line = line
        self.field = field


class InfeasibleError(TrisectError):
    """No plan can hold what was asked."""


class EngineError(TrisectError):
    """A launch, an engine or the disk failed."""


class FleetBusy(EngineError):
    """Another command is working on the fleet."""


class LaunchTimeout(EngineError):
    """A server did not become ready before its deadline."""


class NotNow(EngineError):
    """The engine does not answer or the disk is full: no fault of what was to be done."""


class MissingTool(EngineError):
    """A program this command needs is not on the host; the text says how to get it."""


class RequestRefused(EngineError):
    """A server answered a request with an error: the model's or the server's own words."""


class GatewayError(TrisectError):
    """The gateway failed, or its port is taken."""
