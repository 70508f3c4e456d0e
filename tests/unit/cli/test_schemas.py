"""The JSON Schemas: one for each verb, and true of what the verbs print."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from build import partition, plan
from told import Ctl

from controlplane.cli.fleet.targets import converged
from controlplane.cli.jobs.profile import written_document
from controlplane.cli.output import print_json, print_json_line
from controlplane.cli.schemas import NAMES, schema
from controlplane.cli.verbs import VERBS
from controlplane.control.converge.actions import Stop
from controlplane.domain.device import ShareKind
from controlplane.domain.observation import Event, RateSeen
from controlplane.domain.plan import Source
from controlplane.domain.profile import Environment, Profile
from controlplane.files import catalogue
from controlplane.files.documents.yaml_text import parse
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
from controlplane.files.measurements.profiles import write_profile
from controlplane.planning.replan.differences import TermChange
from controlplane.report.tables.demo_table import DemoRow, Repair, Span
from controlplane.report.tables.observed_table import Kept, Unseen, observed_document
from controlplane.report.tables.status_table import (
    BatchRow,
    GuardRow,
    LoadView,
    Restarted,
    Status,
    StatusRow,
    WorkloadRow,
    status_document,
)
from controlplane.runtime.fleet.fleet import Outcome
from controlplane.runtime.jobs.profile import Written

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = """schema_version: 1
gpus: [{type: v100}]
workloads: [{name: search, model: resnet50, slo_ms: 40, rate_rps: 50}]
"""
CONFIG = """name: "resnet50" backend: "python" max_batch_size: 32
input [{ name: "IN" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [1] }]
"""


@pytest.fixture(autouse=True)
def directory(directory: Path) -> Path:
    """A working directory with two specs, a model, and the files of a fleet without servers."""
    tmp_path = directory
    (tmp_path / "spec.yaml").write_text((EXAMPLES / "twelve.yaml").read_text())
    (tmp_path / "small.yaml").write_text(SMALL)
    alexnet = catalogue.profiles("v100")["alexnet"]
    write_profile(tmp_path, replace(alexnet, points=alexnet.points[:12], colocation=()))
    (tmp_path / "models" / "resnet50" / "1").mkdir(parents=True)
    (tmp_path / "models" / "resnet50" / "config.pbtxt").write_text(CONFIG)
    files = FleetFiles(state_root(), "default")
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    files.write_plans(plan(partition("P", 50.0, "search", model="resnet50", batch=8)), None)
    return tmp_path


def closed(part: Any) -> Any:
    """The same schema without unknown keys: a key that the schema does not name is a mistake here."""
    if isinstance(part, list):
        return [closed(one) for one in part]
    if not isinstance(part, dict):
        return part
    inner = {key: closed(value) for key, value in part.items()}
    return {**inner, "additionalProperties": False} if "properties" in inner else inner


def check(name: str, document: object) -> None:
    jsonschema.Draft202012Validator(closed(schema(name))).validate(document)


def test_every_verb_with_json_has_a_schema() -> None:
    for verb in set(VERBS) - {"schema", "logs"}:
        assert verb in NAMES, f"the documents of {verb} are not described"
    assert set(NAMES) - set(VERBS) == {"spec", "error"}


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_valid_and_printed(name: str, ctl: Ctl) -> None:
    jsonschema.Draft202012Validator.check_schema(ctl("schema", name).document)


def test_an_unknown_document_is_refused(ctl: Ctl) -> None:
    assert "did you mean 'plan'" in ctl("schema plans", code=2).err


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("doctor", 0),
        ("validate --profile v100/alexnet.json", 0),
        ("plan spec.yaml --strategy igniter", 0),
        ("compare small.yaml --strategies igniter --truths measured --seconds 1", 0),
        ("events", 0),
        ("token create web --endpoint search", 0),
        ("token list", 0),
        ("token revoke other", 0),
        ("list", 0),
        ("limit set search --max-rate 10", 0),
        ("limit list", 0),
        ("limit remove search", 0),
        ("wait --timeout 0", 1),
        ("status", 0),
        ("destroy --yes", 0),
    ],
)
def test_what_a_verb_prints_is_valid(line: str, code: int, ctl: Ctl) -> None:
    ctl("token create other --endpoint search")
    ctl("limit set search --max-requests 3")
    check(line.split()[0], ctl(line, "--json", code=code).document)


def test_a_simulation_and_a_rendering_are_valid(ctl: Ctl) -> None:
    ctl("plan spec.yaml --strategy igniter -o plan.json")
    first = json.loads(Path("plan.json").read_text())["gpus"][0]["partitions"][0]
    check("plan", ctl("show plan.json --json").document)
    for line in (
        "simulate plan.json --seconds 2",
        f"simulate plan.json --seconds 2 --guard --fault crash:{first['id']}@1",
        f"show plan.json --explain {first['workloads'][0]['name']}",
        "show plan.json --against plan.json",
        "show --fleet default",
    ):
        check(line.split()[0], ctl(line, "--json").document)
    check("error", ctl("render plan.json --repository models --json", code=2).document)
    ctl("plan small.yaml -o small.json")
    check("render", ctl("render small.json --repository models --json").document)


def test_a_spec_is_valid(directory: Path) -> None:
    check("spec", parse((directory / "spec.yaml").read_text(), "spec.yaml"))


def test_documents_of_running_fleets_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    """Every field filled, as a fleet under load fills them."""
    event = Event(1.0, "info", "redirect", "search", "slow server")
    rate = RateSeen("search", 100, 90.0, 80.0, 110.0, 1.0, False)
    server = StatusRow("P", "active", "running", "v100-0", 50.0, "MPS", ("search",), True, "a", "b")
    calm = GuardRow("P", "calm", 3.0, "shadow", True)
    status = Status(
        (replace(server, slo_ms=40.0, p99_ms=30.0, batches=(BatchRow("search", 8, 4),)),),
        (WorkloadRow("search", "search", ("P",), 40.0, 100.0, 30.0, 99.0, 0, (Source.LEARNED,)),),
        (replace(calm, redirected_s=4.0, redirect="late", said_s=1.0, said="x"),),
        7,
        restarts=(Restarted(2.0, "haproxy: killed"),),
        load=LoadView("yes", (rate,)),
    )
    outcome = Outcome((Stop("old"),), (), (TermChange("search", "slo_ms", 40.0, 30.0),))
    row = DemoRow("w", "m", 20.0, 4, 1.0, 1.1, 10.0, 100, 0, 1.0, 2.0, 3.0)
    span = Span("before", -5.0, 0.0, 10, 0, 1.0, None)
    repair = Repair("w", 40.0, 20.0, 10.0, 0.5, "slow", 0.6, 1.0, "shadow", (span,))
    kept = Kept("search", "P", 3, None, 100.0, 99.0, 0, 30.0, 29.0, 31.0, 40.0)
    environment = Environment("CPU", None, "2.51", "onnxruntime", "host", "2026-11-22")
    profile = Profile("m", "cpu", ShareKind.CPU_QUOTA, environment, (), holdout_error={"ours": 0.1})
    written = Written(profile, Path("m.json"), 30.0)
    pytest.importorskip("torch", reason="the extra rl is not installed")  # takes seconds
    from controlplane.papers.inss.training.training import Check

    check_point = Check(*(0.5 for _ in fields(Check)))
    documents: dict[str, dict[str, Any]] = {
        "status": dict(status_document("default", status)),
        "rollback": converged("default", outcome),
        "apply": {**converged("default", outcome), "listening": {"host": "::1", "http": 1, "grpc": 2}},
        "demo": {"workloads": [asdict(row)], "repair": asdict(repair), "no_repair": None},
        "validate": observed_document((), (Unseen("P", "idle"),), (kept,)),
        "profile": {"profiles": [written_document(written, 4)]},
        "train": {"policy": "p.npz", "summary": "s", "curve": [asdict(check_point)]},
        "redirect": {"fleet": "default", "routes": {"search": ["a", "b"]}},
    }
    for name, document in documents.items():
        print_json(document)
        check(name, json.loads(capsys.readouterr().out))
    print_json_line(asdict(event))
    check("controller", json.loads(capsys.readouterr().out))
