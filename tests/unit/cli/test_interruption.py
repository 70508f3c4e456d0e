"""Ctrl-C, SIGTERM and SIGHUP: a real process says what is left and how to go on, and its exit code."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from background import running
from terminal import on_terminal

from controlplane.cli.verbs import VERBS

pytestmark = pytest.mark.slow

# What a script runs in the background ignores SIGINT.
CTL = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "from controlplane.cli.main import main; main()"
)
CODES = {
    signal.SIGINT: (130, "interrupted"),
    signal.SIGTERM: (143, "terminated"),
    signal.SIGHUP: (143, "terminated"),
}


def interrupted(tmp_path: Path, sent: signal.Signals, *arguments: str) -> tuple[int, str, str]:
    """Interrupt a verb while it reads a file that has not ended; return its exit code, stdout and stderr."""
    command = [sys.executable, "-c", CTL, *(a.format("/dev/stdin") for a in arguments)]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    with running(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdin is not None
        process.stdin.write("#" * 2**20)  # more than a pipe holds: returns when the verb reads it
        process.send_signal(sent)
        # Now the file ends: Python sees a signal that came just before a read only when the read returns.
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


RUNS = """
import pathlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from controlplane.cli.endings import handle_signals
handle_signals()
try:
    print("runs", flush=True)
    while True:
        signal.pause()
"""
STOPPED_IN_A_FINALLY = f"""{RUNS}
except KeyboardInterrupt as first:
    print(type(first).__name__, flush=True)
    for line in sys.stdin:
        print("stopped what it had started")
        break
"""


@contextmanager
def ending(first: signal.Signals, program: str = STOPPED_IN_A_FINALLY) -> Iterator[subprocess.Popen[str]]:
    """Run a program that `first` has ended, and whose clean-up waits for a line."""
    pipe = subprocess.PIPE
    with running([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(first)
        assert process.stdout.readline() in {"KeyboardInterrupt\n", "Terminated\n"}
        yield process


def answer(process: subprocess.Popen[str], sent: signal.Signals) -> str:
    process.send_signal(sent)
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.parametrize("first", CODES)
@pytest.mark.parametrize("later", CODES)
def test_a_later_signal_does_not_cut_the_end_short(first: signal.Signals, later: signal.Signals) -> None:
    with ending(first) as process:
        assert "already ending" in answer(process, later)
        assert "already ending" in answer(process, later), "`make` and `timeout` pass on what their group has"
        out, err = process.communicate("go on\n", timeout=60)
    assert (process.returncode, out, err) == (0, "stopped what it had started\n", "")


@pytest.mark.parametrize("later", CODES)
def test_a_signal_after_the_warning_ends_a_clean_up_that_hangs(later: signal.Signals) -> None:
    at_once = "import controlplane.cli.endings as e; e._SAME_INTERRUPTION_S = 0.0"
    with ending(signal.SIGINT, at_once + STOPPED_IN_A_FINALLY) as process:
        assert "to leave it behind" in answer(process, later)
        assert "servers may be left" in answer(process, later)
        assert process.wait(timeout=60) == -later


def test_a_closed_terminal_does_not_cut_the_end_short(tmp_path: Path) -> None:
    """A terminal that is gone fails each write."""
    done = tmp_path / "done"
    program = f"""{RUNS}
finally:
    print("stops what it has started", flush=True)
    pathlib.Path({str(done)!r}).touch()
"""
    with on_terminal([sys.executable, "-c", program], os.environ) as terminal:
        terminal.await_text("runs")
        terminal.hang_up()
        terminal.await_end()
    assert done.exists()


@pytest.mark.parametrize("sent", CODES)
@pytest.mark.parametrize("verb", ["plan", "simulate", "render", "apply"])
def test_a_signal_ends_a_verb_with_the_way_on(verb: str, sent: signal.Signals, tmp_path: Path) -> None:
    code, name = CODES[sent]
    ended, out, err = interrupted(tmp_path, sent, verb, "{}")
    assert (ended, out) == (code, "")
    assert err.splitlines()[-1] == f"ctl: {name}: {VERBS[verb].left}"
    assert "Traceback" not in err


def test_a_signal_is_an_error_in_json_too(tmp_path: Path) -> None:
    ended, out, _ = interrupted(tmp_path, signal.SIGTERM, "plan", "{}", "--json")
    error = json.loads(out)["error"]
    assert (ended, error["exit_code"], error["kind"]) == (143, 143, "terminated")
    assert VERBS["plan"].left in error["message"]


def test_an_interrupted_plan_leaves_the_old_file(tmp_path: Path) -> None:
    old = tmp_path / "plan.json"
    old.write_text("old")
    ended, _, _ = interrupted(tmp_path, signal.SIGINT, "plan", "{}", "-o", str(old))
    assert (ended, old.read_text()) == (130, "old")
