"""What a person sees on a terminal: completion by Tab as `--install-completion` sets it up, and Ctrl-C."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from terminal import INTERRUPT, Terminal, on_terminal

from controlplane.cli.verbs import VERBS
from controlplane.domain.plan import Plan, Rule
from controlplane.files.fleets import FleetFiles, FleetSettings

pytestmark = pytest.mark.slow

SHELLS = {"bash": ["bash", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish"]}
TABS = 6
"""In zsh the first one of a session only loads the script that Typer wrote."""
TAB_S = 5.0
TO_THE_BEGINNING = "\x01"
END_OF_INPUT = "\x04"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with the state of a fleet `shop`."""
    state = tmp_path / ".local" / "state" / "trisect"
    files = FleetFiles(state, "shop")
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    files.write_plans(Plan("joint", Rule.P99, "ours", ()), None)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {
        "HOME": str(home),
        "PATH": path,
        "LANG": "C.UTF-8",
        "XDG_STATE_HOME": str(home / ".local" / "state"),
    }


def await_prompt(terminal: Terminal) -> None:
    """Wait until the shell executes what is typed. The quotes keep the echo of the keys apart."""
    terminal.type("echo rea''dy\n")
    terminal.await_text("ready\n")
    terminal.await_line_editor()


def completed(terminal: Terminal, typed: str, expected: str) -> None:
    """Complete what was typed and let the shell print the words of the line."""
    terminal.type(typed)
    for _ in range(TABS):
        terminal.type("\t")
        if terminal.shows(expected, TAB_S):
            break
    terminal.await_text(expected, 0.0)
    terminal.type(f"{TO_THE_BEGINNING}printf '<%s>' \n")
    terminal.await_text("".join(f"<{word}>" for word in expected.split()))
    terminal.await_line_editor()


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_after_the_completion_was_installed(shell: str, home: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(
            f"COMPLETION NOT TESTED: there is no {shell}; `make test-packages` installs it where it may"
        )
    with on_terminal(SHELLS[shell], environment(home), directory=home) as terminal:
        await_prompt(terminal)
        terminal.type("ctl --install-completion; exit\n")
        assert terminal.ended() == 0, terminal.text
        assert "completion installed" in terminal.text
    with on_terminal(SHELLS[shell], environment(home), directory=home) as terminal:
        await_prompt(terminal)
        completed(terminal, "ctl sim", "ctl simulate")
        completed(terminal, "ctl status --fleet s", "ctl status --fleet shop")


@pytest.mark.parametrize("verb", ["plan", "simulate", "apply"])
def test_ctrl_c_says_what_is_left_and_gives_the_terminal_back(verb: str, home: Path) -> None:
    endless = home / "endless"
    os.mkfifo(endless)
    command = ["bash", "-c", f"exec ctl {verb} /dev/fd/9 9< {endless}"]
    with (
        on_terminal(command, environment(home), directory=home) as terminal,
        endless.open("w") as begun,
    ):
        begun.write("#" * 2**20)  # more than a pipe holds: returns when the verb reads it
        begun.flush()
        terminal.await_reading()
        terminal.type(INTERRUPT)
        assert terminal.ended() == 130
        assert terminal.text == f"^Cctl: interrupted: {VERBS[verb].left}\n"
        assert terminal.echoes()


@pytest.mark.parametrize(
    ("key", "code", "expected"),
    [
        (INTERRUPT, 130, f"ctl: interrupted: {VERBS['destroy'].left}"),
        (END_OF_INPUT, 2, "--yes skips the question"),
        ("n\n", 0, "[y/N]: n\n"),
    ],
)
def test_a_question_can_be_left(key: str, code: int, expected: str, home: Path) -> None:
    command = ["ctl", "destroy", "--fleet", "shop"]
    with on_terminal(command, environment(home), directory=home) as terminal:
        terminal.await_text("[y/N]")
        terminal.await_reading()
        terminal.type(key)
        assert terminal.ended() == code, terminal.text
        assert expected in terminal.text
