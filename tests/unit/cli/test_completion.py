"""Completion by Tab: the words that bash, zsh and fish get from `ctl`."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from build import plan

from controlplane.cli.verbs import VERBS
from controlplane.domain.plan import Partition, Placement, ServedModel
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
from controlplane.planning.registry import STRATEGIES

pytestmark = pytest.mark.slow

WITHOUT_SOCKETS = """
import os, sys
sys.addaudithook(lambda event, _: event.startswith("socket.") and os._exit(9))
from controlplane.cli.main import main
main()
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """An environment whose state directory has the fleet `shop`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    files = FleetFiles(state_root(), "shop")
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    placement = Placement("search", "find", "ssd", 60, 50)
    files.write_plans(plan(Partition("P", 50.0, (ServedModel("ssd", 8),), (placement,))), None)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PATH": path}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ctl ", list(VERBS)),
        ("ctl re", ["render", "redirect", "report"]),
        ("ctl --vers", ["--version"]),
        ("ctl status --fl", ["--fleet"]),
        ("ctl status --fleet ", ["shop"]),
        ("ctl redirect --fleet shop ", ["search"]),
        ("ctl redirect --fleet none ", []),
        ("ctl redirect --fleet ../etc ", []),
        ("ctl token ", ["create", "list", "revoke"]),
        ("ctl token create --fleet shop web --endpoint ", ["find"]),
        ("ctl token revoke --fleet shop ", []),
        ("ctl plan --strategy ", sorted(STRATEGIES)),
        ("ctl plan --set quan", ["quantile="]),
        ("ctl apply --set serve.listen.h", ["serve.listen.host=", "serve.listen.http="]),
        ("ctl profile --repository nowhere ", []),
        ("ctl validate --catalogue v", ["v100"]),
    ],
)
def test_a_completion_proposes_what_fits_and_opens_no_socket(
    line: str, expected: list[str], environment: Mapping[str, str]
) -> None:
    asked = {"_CTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    command = [sys.executable, "-c", WITHOUT_SOCKETS]
    assert subprocess.check_output(command, env={**environment, **asked}, text=True).split() == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_verbs_with_their_summaries(shell: str, environment: Mapping[str, str]) -> None:
    asked = {
        "_CTL_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "ctl sim",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    proposed = subprocess.check_output(["ctl"], env={**environment, **asked}, text=True)
    assert "simulate" in proposed
    assert VERBS["simulate"].summary in proposed
    assert "plan.json" not in proposed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, environment: Mapping[str, str]) -> None:
    script = subprocess.check_output(
        ["ctl"], env={**environment, "_CTL_COMPLETE": f"source_{shell}"}, text=True
    )
    assert f"_CTL_COMPLETE=complete_{shell}" in script
