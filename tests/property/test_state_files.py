"""State files after a crash: cut anywhere, or with garbage in them, they are read or refused by name."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.observation import Event
from controlplane.files import fleets, gateway
from controlplane.files.fleets import FleetFiles
from controlplane.files.writing import write_vital
from controlplane.runtime.fleet.history import History

BEFORE = Path(__file__).parents[1] / "data" / "state_before"

READERS: dict[str, Callable[[FleetFiles], object]] = {
    "fleet.json": lambda files: files.settings(),
    "host": lambda files: files.check_host("here"),
    "plan.json": lambda files: files.plan(),
    "guard.json": lambda files: fleets.read_guarding(files.guarding),
    "gateway/settings.json": lambda files: gateway.read_settings(files.gateway / "settings.json"),
    "gateway/slots.json": lambda files: gateway.read_slots(files.gateway / "slots.json"),
    "gateway/restarts.jsonl": lambda files: gateway.read_restarts(files.gateway / "restarts.jsonl"),
    "history.sqlite": lambda files: History(files.history).events(),
}
HARMLESS = {"guard.json", "gateway/restarts.jsonl"}
"""Of which a loss does not matter: never an error."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut short, and with a part overwritten, as by a disk that lost a block."""
    cut = content[: draw(st.integers(0, len(content)))]
    at = draw(st.integers(0, len(cut)))
    block = draw(st.sampled_from([b"", bytes(16), b"\xff" * 16, b"{", b"]", b"1e999"]))
    return cut[:at] + block + cut[at + len(block) :]


@pytest.mark.parametrize("name", sorted(READERS))
@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_by_its_name(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(BEFORE, Path(folder, "state"))
        files = FleetFiles(Path(folder), "state")
        path = files.directory / name
        if not path.exists():
            path.write_bytes(made(name, files))
        path.write_bytes(data.draw(damaged(path.read_bytes())))
        refused = refusal(lambda: READERS[name](files))
        assert refused is None or (str(path) in refused and name not in HARMLESS), refused


def refusal(read: Callable[[], object]) -> str | None:
    """The message of an error that a user sees; any other error is raised."""
    try:
        read()
    except (InputError, EngineError) as error:
        return str(error)
    return None


def made(name: str, files: FleetFiles) -> bytes:
    """What the recorded state lacks."""
    if name == "history.sqlite":
        History(files.history).write(Event(1.0, "info", "apply", "f", "a reason"))
        return files.history.read_bytes()
    if name == "gateway/restarts.jsonl":
        return json.dumps({"at_s": 1.0, "role": "haproxy", "reason": "x"}).encode() + b"\n"
    return b"here\n" if name == "host" else b'{"schema_version": 1}'


def test_a_broken_settings_file_says_how_to_go_on(tmp_path: Path) -> None:
    shutil.copytree(BEFORE, tmp_path / "state")
    files = FleetFiles(tmp_path, "state")
    (files.directory / "fleet.json").write_bytes(b"")
    with pytest.raises(InputError, match=r"fleet.json: is empty; .*remove the file.*ctl apply"):
        files.settings()
    (files.directory / "plan.json").write_bytes(b"{")
    with pytest.raises(InputError, match=r"plan.json:1: is not JSON.*remove the file.*ctl apply"):
        files.plan()


def test_a_line_of_the_journal_that_a_full_disk_cut_costs_no_other_line(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    files.append_journal(1.0, "start", {})
    with (files.directory / "journal.jsonl").open("ab") as stream:
        stream.write(b'{"at": 2.0, "eve\xc3')
    files.append_journal(3.0, "stop", {})
    lines = (files.directory / "journal.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["event"] for line in (lines[0], lines[-1])] == ["start", "stop"]


WRITES = """
import sys
from pathlib import Path
from controlplane.files import writing
from controlplane.domain.errors import EngineError

path, how = Path(sys.argv[1]), sys.argv[2]
def full(*_, **__):
    raise EngineError("full") from OSError(28, "No space left on device")

if how == "overwrite":
    writing._replace = full
print(flush=True)
number = 0
while True:
    number += 1
    # Of changing length: what is left of a longer one would be no JSON.
    writing.write_vital(path, writing.to_json({"number": number, "text": "x" * (number * 37 % 3000)}))
"""


@pytest.mark.parametrize("how", ["replace", "overwrite"])
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path, how: str) -> None:
    path = tmp_path / "slots.json"
    write_vital(path, json.dumps({"number": 0, "text": "x" * 4000}))
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITES, str(path), how], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            first = path.read_bytes()
            while path.read_bytes() == first:
                assert writer.poll() is None
            os.kill(writer.pid, signal.SIGKILL)
        assert json.loads(path.read_text())["number"] > 0
