"""Files that others wrote: what is no file is named, and no one waits for it."""

import os
import socket
from pathlib import Path

import pytest

from controlplane.cli.main import run
from controlplane.domain.errors import InputError
from controlplane.files.reading import Remembered, exists, read_bytes

TENSOR = '[ { name: "X", data_type: TYPE_FP32, dims: [ 4 ] } ]'
CONFIG = f'backend: "b"\ninput {TENSOR}\noutput {TENSOR}\n'


def test_what_is_no_file_or_missing_or_too_large_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for place in (tmp_path / "pipe", tmp_path / "socket", tmp_path, Path("/dev/null")):
            with pytest.raises(InputError, match="not a file") as caught:
                read_bytes(place)
            assert caught.value.file == str(place)
    (tmp_path / "large").write_bytes(bytes(2**20 + 1))
    for name, problem in (("none", "no such file"), ("large", "larger than 1 MiB")):
        with pytest.raises(InputError, match=problem):
            read_bytes(tmp_path / name, 2**20)


def test_what_cannot_be_looked_into_does_not_count_as_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    known = {".": True, "file": True, "none": False, "file/in": False}
    assert {name: exists(tmp_path / name) for name in known} == known
    with pytest.raises(OSError, match="too long"):  # as root nothing is forbidden
        exists(tmp_path / ("a" * 300))


def test_a_stream_that_the_command_was_started_with_is_read() -> None:
    taken, given = os.pipe()
    os.write(given, b"spec")
    os.close(given)
    assert read_bytes(Path(f"/dev/fd/{taken}")) == b"spec"
    os.close(taken)


@pytest.mark.parametrize(
    "command",
    [
        "plan pipe",
        "compare pipe",
        "simulate pipe",
        "apply pipe --dry-run",
        "plan spec.yaml --against pipe",
        "plan spec.yaml --strategy inss --set inss.policy=pipe",
        "simulate plan.json --arrivals W=pipe",
        "profile m --input-data m:pipe",
        "import m 1:pipe --from perf-analyzer --device t4",
        "import m 1:pipe --from aiperf --device t4",
        "profile configured",
        "profile calling",
        "render plan.json",
    ],
)
def test_no_verb_waits_for_a_pipe_without_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    os.mkfifo("pipe")
    for model in ("m", "configured", "calling"):
        (tmp_path / "model_repository" / model / "1").mkdir(parents=True)
        if model != "configured":
            (tmp_path / "model_repository" / model / "config.pbtxt").write_text(CONFIG)
    os.mkfifo("model_repository/configured/config.pbtxt")
    os.mkfifo("model_repository/calling/1/model.py")
    workload = "{name: W, model: vgg19, slo_ms: 90, rate_rps: 9}"
    Path("spec.yaml").write_text(f"schema_version: 1\ngpus: [{{type: v100}}]\nworkloads: [{workload}]\n")
    if command == "render plan.json":
        os.mkfifo("plan.json")
    elif "plan.json" in command:
        assert run(["plan", "spec.yaml", "-o", "plan.json", "-q"]) == 0
    capsys.readouterr()
    assert run(command.split()) == 2
    message = capsys.readouterr().err
    assert any(name in message for name in ("pipe", "config.pbtxt", "model.py", "plan.json"))


OLD_NS = 10**18


def test_only_a_file_that_may_have_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "f"
    read: list[str] = []

    def make() -> str:
        read.append(file.read_text() if file.exists() else "none")
        return read[-1]

    remembered = Remembered(file, make)
    assert [remembered.get(), remembered.get()] == ["none", "none"]
    file.write_text("one")
    assert remembered.get() == "one"
    file.write_text("two")
    assert remembered.get() == "two", "written within the same grain of time, perhaps"
    os.utime(file, ns=(OLD_NS, OLD_NS))
    read.clear()
    assert [remembered.get() for _ in range(3)] == ["two"] * 3
    assert len(read) == 1
    file.write_text("three")
    assert remembered.get() == "three"
    file.unlink()
    assert remembered.get() == "none"
