"""Real servers start from what an apply pinned, whatever becomes of the repository and the state folder."""

import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton_http
from background import until
from ctl_fleet import Ctl, X, partition, plan

pytestmark = pytest.mark.long

PLAN = plan(partition("a", 20))
COMPLETES = """
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [4]})
        return config

"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path, "pin") as here:
        yield here


@pytest.fixture
def short_host() -> Iterator[Ctl]:
    """A host whose state folder has the sockets of its servers, as a user's has: its path is short."""
    with (
        tempfile.TemporaryDirectory(prefix="pin", dir="/tmp") as directory,
        Ctl(Path(directory), "pin") as here,
    ):
        yield here


def applied(host: Ctl, *more: str) -> str:
    told = host.apply(PLAN, *more)
    return told.stdout + told.stderr


def answer(host: Ctl) -> float:
    """What the served model adds to its input."""
    x = triton_http.InferInput("X", [1, 4], "FP32")
    x.set_data_from_numpy(X)
    client = triton_http.InferenceServerClient(f"127.0.0.1:{host.http}")
    added = client.infer("a", [x]).as_numpy("Y") - X
    assert np.ptp(added) == 0
    return float(added[0, 0])


def edit(host: Ctl, added: int) -> None:
    """Edit the model in place: it adds a number to its input."""
    with (host.repository / "echo" / "1" / "model.py").open("r+") as stream:
        text = re.sub(r"x( \+ \d+)?\)\]", f"x + {added})]", stream.read())
        stream.seek(0)
        stream.write(text)
        stream.truncate()


def test_servers_start_from_what_was_applied_and_a_rollback_brings_it_back(host: Ctl) -> None:
    applied(host)
    until(lambda: host.guarded())
    edit(host, 7)
    for _ in range(2):  # then the standby answers, and then what was started after the edit
        killed_s = time.time()
        host.kill("a")
        host.await_event("redirect", since_s=killed_s)
        until(lambda: host.guarded())
        assert answer(host) == 0
    until(lambda: bool(host.events("drift")))
    (drift,) = host.events("drift")
    assert "changed: echo/1/model.py" in drift.reason
    applied(host)
    assert answer(host) == 7
    assert "nothing to do" in applied(host)
    edit(host, 9)
    host.ctl("rollback", "--yes")
    assert answer(host) == 0


def removed(folder: Path) -> bool:
    """Whether a folder is gone, after it was removed beside processes that still write into it."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_an_apply_after_the_state_folder_was_removed_takes_its_own_ports_back(host: Ctl) -> None:
    said = applied(host)
    assert "CVE-" in said
    assert "CVE-" not in applied(host)
    assert [e for e in host.events("controller") if "another command" in e.reason] == []
    until(lambda: removed(host.directory / "state"))
    applied(host)
    host.infer("a")
    until(lambda: host.guarded())
    # Nor does a destroy leave anything behind, which `ended` checks.
    until(lambda: removed(host.directory / "state"))


def test_the_first_apply_after_the_state_folder_went_with_its_sockets_starts_the_servers_anew(
    short_host: Ctl,
) -> None:
    applied(short_host)
    assert list(short_host.files.glob("servers/*"))
    until(lambda: removed(short_host.directory / "state"))
    applied(short_host)
    short_host.infer("a")
    until(lambda: short_host.guarded())


def test_a_dry_run_after_a_new_version_completes_the_configuration_as_an_apply_does(host: Ctl) -> None:
    model = host.repository / "echo"
    (model / "config.pbtxt").unlink()
    file = model / "1" / "model.py"
    file.write_text(
        file.read_text().replace("class TritonPythonModel:\n", f"class TritonPythonModel:\n{COMPLETES}")
    )
    applied(host)
    shutil.copytree(model / "1", model / "2", ignore=shutil.ignore_patterns("__pycache__"))
    told = host.apply(PLAN, "--dry-run")
    started = [line.split()[1] for line in told.stdout.splitlines() if line.startswith("start ")]
    assert len(started) == 2
    done = host.apply(PLAN, "--json")
    assert sorted(json.loads(done.stdout)["servers"]) == sorted(started), done.stderr
