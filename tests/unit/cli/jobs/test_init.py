"""`ctl init` on models whose configurations are written: no server starts."""

import os
from pathlib import Path

import jsonschema
import pytest
from object_store import served
from told import Ctl

from controlplane.cli.main import run
from controlplane.cli.schemas import schema
from controlplane.files.plans import read_spec

CONFIG = """backend: "b" max_batch_size: 16
input [ { name: "X", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 4 ] } ]
"""


@pytest.fixture(autouse=True)
def directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # No Triton, so that no backend is known to be missing.
    monkeypatch.setenv("TRISECT_TRITON_HOME", str(directory / "triton"))
    write(directory / "models" / "m", CONFIG)
    return directory


def write(model: Path, config: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(config)


def test_the_document_is_valid_and_the_spec_is_written(ctl: Ctl) -> None:
    document = ctl("init models --json").document
    jsonschema.Draft202012Validator(schema("init")).validate(document)
    assert (document["spec"], document["models"][0]["state"]) == ("spec.yaml", "ready")
    assert "profile" in ctl("plan spec.yaml", code=2).err


def test_a_spec_that_exists_is_kept_without_force_and_by_check(directory: Path, ctl: Ctl) -> None:
    (directory / "spec.yaml").write_text("mine")
    assert "--force" in ctl("init models", code=2).err
    ctl("init models --check")
    write(directory / "models" / "open", CONFIG.replace("[ 4 ]", "[ -1 ]"))
    assert "needs inputs" in ctl("init models --check", code=1).out
    assert (directory / "spec.yaml").read_text() == "mine"
    ctl("init models --force")
    assert (directory / "spec.yaml").read_text() != "mine"


def test_a_folder_that_is_no_model_is_named(directory: Path, ctl: Ctl) -> None:
    (directory / "models" / "empty").mkdir()
    (directory / "models" / ".git").mkdir()
    warned = ctl("init models --check").err
    assert "models/empty is no model" in warned
    assert ".git" not in warned


def test_a_backend_that_is_not_installed_is_named(directory: Path, ctl: Ctl) -> None:
    binary = directory / "triton" / "bin" / "tritonserver"
    binary.parent.mkdir(parents=True)
    binary.write_text("")
    binary.chmod(0o755)
    (directory / "triton" / "backends" / "python").mkdir(parents=True)
    assert "no backend b (it has: python)" in ctl("init models --launcher process", code=3).out


def test_without_a_model_that_can_be_planned_nothing_is_written(directory: Path) -> None:
    (directory / "models" / "m" / "config.pbtxt").write_text(CONFIG.replace('"b"', '"vllm"'))
    assert run(["init", "models"]) == 3
    assert not (directory / "spec.yaml").exists()


@pytest.mark.parametrize(
    "name",
    [
        b"\x1b[31mred\x1b]0;title\x07",
        b"in\xe8 Latin-1",
        b"x\n  - {name: evil, model: m, slo_ms: 1, rate_rps: 1}\n  #",
        b"right\xe2\x80\xaeleft",
    ],
)
@pytest.mark.parametrize("json", [False, True])
def test_a_folders_name_steers_no_terminal_and_adds_no_workload(
    directory: Path, capfdbinary: pytest.CaptureFixture[bytes], name: bytes, json: bool
) -> None:
    os.makedirs(os.fsencode(directory / "models") + b"/" + name + b"/1")
    assert run(["init", "models", *(["--json"] if json else [])]) == 0
    out, err = capfdbinary.readouterr()
    text = (out + err + (directory / "spec.yaml").read_bytes()).decode()
    assert all(c.isprintable() or c == "\n" for c in text)
    assert [w.name for w in read_spec(directory / "spec.yaml")[0].workloads] == ["m"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("init nowhere", "nowhere: REPOSITORY: is not a directory"),
        ("init gs://bucket/models", "models: exists already"),
        ("profile --repository s3://http://host:9000/b/models", "`ctl init s3://http://host:9000/b/models`"),
        ("render plan.json --repository gs://b/models", "`ctl init gs://b/models` copies it to models"),
    ],
)
def test_a_repository_that_cannot_be_used_is_refused(arguments: str, says: str, ctl: Ctl) -> None:
    assert says in ctl(arguments, code=2).err


def test_a_bucket_is_copied_and_its_copy_stands_in_the_spec(
    directory: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    files = {"all/mine/m/config.pbtxt": CONFIG.encode(), "all/mine/m/1/model": b"weights"}
    with served(files) as (_, endpoint):
        told = ctl(f"init s3://{endpoint}/bucket/all/mine")
    assert f"s3://{endpoint}/bucket/all/mine: copied 2 files" in told.err
    assert (directory / "mine" / "m" / "1" / "model").read_bytes() == b"weights"
    assert "Made by `ctl init mine`" in (directory / "spec.yaml").read_text()
