"""The errors that a user can get, by consequence.

TrisectError
├── InputError          the input is wrong: names file, line and field; the same input fails again.
│                       A ValueError too, as Python callers expect for an argument out of range
├── InfeasibleError     no plan is possible; says what would fit
├── EngineError         a launch, an engine or the disk failed; nothing half-done is left
│   ├── FleetBusy       another command works on the fleet; try again when it has ended
│   ├── LaunchTimeout   a server did not become ready in time; another try may help
│   ├── NotNow          the engine does not answer, or the disk, descriptors or memory are used up; waiting
│   │                   may help
│   ├── MissingTool     a program is not installed, or an engine does not run; says how to get it
│   └── RequestRefused  a server answered a request with an error; the text is the server's message
└── GatewayError        the gateway failed or its port is taken
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Hashable

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EIO})


class TrisectError(Exception):
    """Base of every error with a message written for the user: its kind as in JSON, and its exit code."""

    kind = "engine"
    exit_code = 4


class InputError(TrisectError, ValueError):
    """The input is wrong. Never retried.

    The text reads `file:line: field: what is wrong; the way out`, leaving out what does not apply.
    """

    kind = "input"
    exit_code = 2

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
    """No plan keeps the SLOs on the given GPUs."""

    kind = "infeasible"
    exit_code = 3


class EngineError(TrisectError):
    """A launch, an engine or the disk failed."""


class FleetBusy(EngineError):
    """Another command is working on the fleet."""


class LaunchTimeout(EngineError):
    """A server did not become ready before its deadline."""


class LibraryIgnored(EngineError):
    """A server's Triton has not the batch library: it ignores it, or cannot load it."""


class NotNow(EngineError):
    """The engine does not answer, the disk is full or this process lacks descriptors or memory.

    The operation itself is fine, and what it concerns may be too.
    """


class MissingTool(EngineError):
    """A needed program is not on the host; the text says how to get it."""


class RequestRefused(EngineError):
    """A server answered a request with an error; the text is the model's or the server's message."""


class GatewayError(TrisectError):
    """The gateway failed, or its port is taken."""

    kind = "gateway"
    exit_code = 5


def server_words(text: str) -> str:
    """Return the start of a Triton's message, without the traceback of a model's code."""
    return text.split("\n\nAt:", 1)[0].strip().rstrip(";")[:300]


_POLICY = ("exceeds maximum queue size", "timeout expired")
"""Words of Triton's messages for a full queue and for a request that waited too long in it."""


def declined_by_policy(message: str) -> bool:
    """Return whether a Triton's error says that it declined a request by the queue policy of its model."""
    return any(words in message.lower() for words in _POLICY)


def is_own_lack(error: BaseException) -> bool:
    """Return whether a call failed for lack of descriptors, memory or a disk of this process or its host.

    Such a failure says nothing of what the call was about. Libraries wrap it, so its causes count too.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _LACKS:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class LogOnce:
    """Tells what is new: what begins, changes, or was last said `every_s` ago."""

    def __init__(self, every_s: float = math.inf) -> None:
        self._every_s = every_s
        self._said: dict[Hashable, tuple[str, float]] = {}

    def is_new(self, what: str, about: Hashable = "", now_s: float = 0.0) -> bool:
        """Return whether to say this about something; nothing (an empty text) is said of it at first."""
        self._said = {key: said for key, said in self._said.items() if now_s - said[1] < self._every_s}
        if self._said.get(about, ("", now_s))[0] == what:
            return False
        self._said[about] = what, now_s
        return True


class Troubles:
    """Say a trouble when it begins or changes, not at each try."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._once = LogOnce()

    def met(self, error: Exception) -> None:
        """Say it, unless it is the one that was said last."""
        if self._once.is_new(str(error)):
            self._say(str(error))

    def over(self) -> None:
        """Note that a try succeeded: the same trouble is said again when it comes back."""
        self._once.is_new("")
