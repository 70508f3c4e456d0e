"""Processes of this host, as /proc shows them."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from background import running, until

from launchers.host import process_table
from launchers.process import prune
from launchers.triton import labels

BECOMES = """
import os, sys, time
print(flush=True)
time.sleep(0.1)
os.execve(sys.argv[1], ['sleep', '30'], {sys.argv[2]: 'n'})
"""


def test_a_process_that_becomes_a_server_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "_EXEC_S", 30.0)  # however long a busy host takes for it
    # As between two programs of one process: alive, and its environment empty.
    command = [sys.executable, "-c", BECOMES, "/bin/sleep", labels.NAME]
    with running(command, env={}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # what takes long is the start of an interpreter
        found = process_table.find(process.pid)
    assert found is not None
    assert found.name == "n"


def test_a_kill_also_ends_a_process_that_becomes_a_server_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "_EXEC_S", 30.0)
    # Within exec the command line is empty too.
    becomes = f"echo; sleep 0.1; export {labels.NAME}=becomes; exec sleep 30"
    with running(["", "-c", becomes], executable="/bin/sh", env={}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process_table.kill_all(partial(process_table.members, name="becomes")) == ()
        assert process.wait(timeout=30) == -signal.SIGKILL


def test_what_becomes_a_server_leads_it_and_the_shell_beside_it_does_not() -> None:
    becomes = ("sh", "-c", "sleep 30; :", "sh", "tritonserver", "--id=becomes")
    environment = {**os.environ, labels.NAME: "becomes"}
    shell = subprocess.run(
        [*process_table.DETACHED, *becomes], env=environment, stdout=subprocess.PIPE, check=True
    )
    present = partial(process_table.members, name="becomes")
    try:
        # It, its own child, and the shell that waits; a child that was just forked looks as its parent.
        until(lambda: "sleep\n" in [Path(f"/proc/{m.pid}/comm").read_text() for m in present()])
        found = present()
        assert len(found) == 3
        assert [member.pid for member in found if member.leader] == [int(shell.stdout)]
    finally:
        process_table.kill_all(present)


def test_the_dead_and_the_unlabelled_are_none() -> None:
    with running(["sleep", "30"], env={"OTHER": "1"}) as process:
        until(Path(f"/proc/{process.pid}/environ").read_bytes)
        assert process_table.find(process.pid) is None
    assert process_table.find(process.pid) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="CAPABILITY MISSING: only root starts what runs as two users")
@pytest.mark.parametrize(("real_user", "found"), [(0, True), (1000, False)])
def test_a_setuid_program_with_our_labels_is_no_server(real_user: int, found: bool) -> None:
    # Its owner is root, its environment is the caller's.
    command = ["setpriv", f"--ruid={real_user}", "sleep", "30"]
    with running(command, env={**os.environ, labels.NAME: "n"}) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        assert (process_table.find(process.pid) is not None) == found


def test_a_blocked_sigterm_stays_pending_and_is_seen() -> None:
    # A shell in the background ignores SIGINT, and so do its children.
    command = ["env", "--default-signal=INT", *process_table.BLOCK_TERM, "sleep", "30"]
    with running(command, stdout=subprocess.PIPE) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        assert not process_table.has_pending_term(process.pid)
        process.terminate()
        assert process_table.has_pending_term(process.pid)
        process.send_signal(process_table.END)
        assert process.wait(timeout=30) == -signal.SIGINT
    assert not process_table.has_pending_term(process.pid), "it is gone"


def test_a_log_that_another_start_removed_meanwhile_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "gone.log").symlink_to(tmp_path / "removed")
    (tmp_path / "kept.log").touch()
    prune(tmp_path)
    assert (tmp_path / "kept.log").exists()
