"""What a process that looks for a plan does in tests of it."""

import sys
import threading
from multiprocessing.connection import Connection

from controlplane.control.autoscaler.state import Kind, Proposal

LONG = "x" * 500_000
"""More than a pipe holds."""


def hang(_: str, __: Connection) -> None:
    threading.Event().wait()


def die(_: str, caller: Connection) -> None:
    caller.recv()
    sys.exit(3)


def echo(_: str, caller: Connection) -> None:
    asked, workloads, _ = caller.recv()
    caller.send(Proposal(asked.number, Kind.PLAN, asked.rates_rps, summary=LONG, made_from=workloads[0]))
