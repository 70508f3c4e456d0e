"""Ends of commands that fail: a message on stderr, a document on stdout with `--json`, an exit code."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import signal
import stat
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from controlplane.cli.output import Verbosity, chosen, print_json
from controlplane.cli.verbs import VERBS
from controlplane.domain.errors import DISK_FULL, EngineError, InputError, TrisectError
from controlplane.report.words import printable

EXIT_NO = 1
"""The answer to a question of a script is no: --check, `ctl diff`, `ctl wait`; or the demo failed."""
EXIT_DEFECT = 70
"""A defect of ours, as sysexits.h counts."""
EXIT_PIPE = 128 + signal.SIGPIPE
"""The reader of stdout has closed it; as shells count."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP as a closed terminal sends it.

    Like Ctrl-C it runs every `finally`, so that nothing half-done is left.
    """


class Interrupted(Exception):
    """A verb that Ctrl-C, SIGTERM or SIGHUP ended."""

    def __init__(self, verb: str | None, cause: KeyboardInterrupt) -> None:
        terminated = isinstance(cause, Terminated)
        self.kind = "terminated" if terminated else "interrupted"
        self.exit_code = 128 + (signal.SIGTERM if terminated else signal.SIGINT)
        left = "" if verb is None else f": {VERBS[verb].left}"
        super().__init__(f"{self.kind}{left}")


class ClosedPipe(Exception):
    """The reader of stdout has closed it."""


_FULL = DISK_FULL | {errno.EFBIG}
_SAME_INTERRUPTION_S = 2.0
"""Signals within this time belong to one interruption: `make` and `timeout` each pass on what their group
already has."""
_ENDING = (
    b"ctl: already ending: waiting for what is under way; to leave it behind, interrupt after two seconds\n"
)
_LEAVING = b"ctl: ended at once: servers may be left\n"


def handle_signals() -> None:
    """Let the first SIGINT, SIGTERM or SIGHUP end the command, a second say so, a third end it at once.

    The second does not cut the `finally` blocks of the first short. Where SIGINT is ignored, as in a script's
    background, or SIGHUP, as under `nohup`, it stays ignored.
    """
    signal.signal(signal.SIGTERM, _end_once)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _end_once)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_once)


def _end_once(number: int, _: object) -> None:
    further = _FurtherSignals()
    for handled in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(handled) is _end_once:
            signal.signal(handled, further.received)
    if number == signal.SIGHUP:
        _leave_terminal()
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _drop_stdout() -> None:
    """Let what is still buffered go nowhere: it must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_terminal() -> None:
    """Let what is said from now on go nowhere: a write to a closed terminal would cut the clean-up short."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)


class _FurtherSignals:
    """The signals after the first."""

    def __init__(self) -> None:
        self._warned_s = math.inf

    def received(self, number: int, _: object) -> None:
        """Say that the command is ending; where that was said some time ago, end it as the system does."""
        if number == signal.SIGHUP:
            _leave_terminal()
        now_s = time.monotonic()
        leaves = now_s - self._warned_s >= _SAME_INTERRUPTION_S
        self._warned_s = min(self._warned_s, now_s)
        # Not print: the signal may have interrupted one, and a stream's buffer cannot be entered twice.
        with contextlib.suppress(OSError):
            os.write(2, _LEAVING if leaves else _ENDING)
        if leaves:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def end(error: Exception, arguments: Sequence[str]) -> int:
    """Print what went wrong and return the exit code; where no user can mend it, with the traceback."""
    match error:
        case ClosedPipe() | BrokenPipeError():  # the reader has what it wanted
            _drop_stdout()
            return EXIT_PIPE
        case OSError() if error.filename is None and error.errno in _FULL:
            _drop_stdout()
            return _print(EngineError(f"stdout cannot be written: {error.strerror}"), ())
        case InputError():
            return _print(error, arguments, file=error.file, line=error.line, field=error.field)
        case TrisectError() | Interrupted():
            return _print(error, arguments)
        case ModuleNotFoundError() if error.name is not None and (extra := extra_of(error.name)) is not None:
            needed = f"this needs the package {error.name!r}: pip install 'trisect[{extra}]'"
            return _print(EngineError(needed), arguments)
        case OSError() if error.filename is not None:
            # The host's fault: a directory that this user may not enter, a disk that is gone.
            unusable = EngineError(f"{error.filename}: {error.strerror}")
            return _print(unusable, arguments, file=str(error.filename))
        case _:
            traceback.print_exc()
            found = f"{type(error).__name__}: {error}"
            print(f"ctl: {printable(found)}: a defect of ctl: please report this", file=sys.stderr)
            _print_document("defect", EXIT_DEFECT, found, arguments)
            return EXIT_DEFECT


def misused(error: typer.TyperException, arguments: Sequence[str]) -> int:
    """Print what is wrong with the command line, after the verb's usage, and return the exit code."""
    shown: Any = error
    if hasattr(shown, "option_name") and any("--set" in one.opts for one in shown.ctx.command.params):
        shown.message += f"; `ctl {shown.ctx.info_name} --set help` lists settings."
    shown.show()
    _print_document("usage", error.exit_code, error.format_message(), arguments)
    return error.exit_code


def _print(error: TrisectError | Interrupted, arguments: Sequence[str], **place: str | int | None) -> int:
    if chosen() is Verbosity.VERBOSE:
        traceback.print_exc()
    print(f"ctl: {printable(str(error))}", file=sys.stderr)
    _print_document(error.kind, error.exit_code, str(error), arguments, **place)
    return error.exit_code


def _print_document(
    kind: str, code: int, message: str, arguments: Sequence[str], **place: str | int | None
) -> None:
    if "--json" in arguments:
        about = {"kind": kind, "exit_code": code, "message": message}
        print_json({"error": about | dict.fromkeys(("file", "line", "field")) | place})


_MODULES = {"opentelemetry": "opentelemetry-sdk"}
"""Modules that are not named like their distributions."""
_EXTRA = re.compile(r"""(?P<name>[A-Za-z0-9._-]+).*extra == ['"](?P<extra>[a-z]+)['"]""")


def extra_of(module: str) -> str | None:
    """Return the extra that installs a module; None where no extra does."""
    # Its import takes a tenth of a short command, and only an error needs it.
    from importlib.metadata import PackageNotFoundError, requires

    top = module.partition(".")[0]
    wanted = _MODULES.get(top, top.replace("_", "-"))
    try:
        declared = requires("trisect") or []
    except PackageNotFoundError:
        return None
    found = (match for line in declared if (match := _EXTRA.match(line)))
    return next((match["extra"] for match in found if match["name"].lower() == wanted), None)
