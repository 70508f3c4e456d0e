"""Hostile and broken input is refused with the file, line and field."""

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.workload import Arrivals, ShadowPlace, ShadowPolicy
from controlplane.files import documents
from controlplane.files.plans import read_spec

GOOD = """\
schema_version: 1
gpus:
  - {type: v100, count: 10, price_per_hour: 3.06}
workloads:
  - {name: W1, model: alexnet, slo_ms: 10, rate_rps: 1200}
  - name: W2
    model: alexnet
    slo_ms: 15
    rate_rps: 4e2
    arrivals: constant
    shadow: {policy: warm, place: other-gpu}
"""


def written(tmp_path: Path, text: str, name: str = "spec.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def refused(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_spec(path)
    return caught.value


def test_a_good_spec_reads_whole(tmp_path: Path) -> None:
    parsed, document = read_spec(written(tmp_path, GOOD))
    assert [w.name for w in parsed.workloads] == ["W1", "W2"]
    assert [w.endpoint for w in parsed.workloads] == ["W1", "W2"], "a model twice: clients call the names"
    assert parsed.workloads[1].rate_rps == 400
    assert parsed.workloads[1].arrivals is Arrivals.CONSTANT
    assert parsed.workloads[1].shadow.policy is ShadowPolicy.WARM
    assert parsed.workloads[1].shadow.place is ShadowPlace.OTHER_GPU
    assert parsed.gpus[0].count == 10
    assert len(document.sha256) == 64


SECOND = "workloads[1]"
CONSTANT, SHADOW = "arrivals: constant", "shadow: {policy: warm, place: other-gpu}"


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "says"),
    [
        ("schema_version: 1", "schema_version: 2", 1, "schema_version", "reads schema_version: 1"),
        ("schema_version: 1\n", "", 1, "schema_version", "is missing"),
        ("slo_ms: 15", "slo_mss: 15", 8, f"{SECOND}.slo_mss", "did you mean 'slo_ms'"),
        ("slo_ms: 15", "slo_ms: soon", 8, f"{SECOND}.slo_ms", "must be a number, not the text 'soon'"),
        ("slo_ms: 15", "slo_ms: 0", 8, f"{SECOND}.slo_ms", "must be greater than 0"),
        ("slo_ms: 15", "slo_ms: .inf", 8, f"{SECOND}.slo_ms", "finite"),
        ("slo_ms: 15", "slo_ms: 1e300", 8, f"{SECOND}.slo_ms", "at most 1e+09"),
        ("rate_rps: 4e2", "rate_rps: .nan", 9, f"{SECOND}.rate_rps", "finite"),
        ("name: W2", "name: W1", 6, f"{SECOND}.name", "already the name of workloads[0]"),
        ("name: W2", "name: ../x", 6, f"{SECOND}.name", "is not a valid name"),
        (CONSTANT, "arrivals: often", 10, f"{SECOND}.arrivals", "'poisson' or 'constant', not 'often'"),
        (CONSTANT, "dispersion: 0.5", 10, f"{SECOND}.dispersion", "must be at least 1, not 0.5"),
        (CONSTANT, f"{CONSTANT}\n    dispersion: 4", 11, f"{SECOND}.dispersion", "have no bursts"),
        (SHADOW, "shadow: cold", 11, f"{SECOND}.shadow", "must be a mapping {policy: hot | shared | warm"),
        ("policy: warm", "policy: cold", 11, f"{SECOND}.shadow.policy", "must be 'hot', 'shared', 'warm'"),
        ("count: 10", "count: 0", 3, "gpus[0].count", "at least 1"),
        ("    slo_ms: 15\n", "", 6, f"{SECOND}.slo_ms", "is missing"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, line: int, field: str, says: str) -> None:
    path = written(tmp_path, GOOD.replace(old, new))
    error = refused(path)
    assert (error.file, error.line, error.field) == (str(path), line, field)
    assert says in error.problem


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "mapping"),
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("just words", "mapping"),
        ("a: 1\na: 2\n", "duplicate key 'a'"),
        ("a: [1", "is not YAML"),
        ("a: !!python/object/apply:os.system [ls]", "is not YAML"),
        ("a: &x [1]\nb: [*x, *x]\n", "aliases"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ],
)
def test_hostile_yaml_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in str(refused(written(tmp_path, text)))


def test_json_names_duplicates_and_lines_and_a_time_in_nanoseconds_is_exact(tmp_path: Path) -> None:
    twice = written(tmp_path, '{"schema_version": 1,\n "gpus": [],\n "gpus": []}', "spec.json")
    assert "duplicate key" in str(refused(twice))
    broken = written(tmp_path, '{"schema_version": 1,\n "gpus" []}', "spec.json")
    assert refused(broken).line == 2
    assert "is empty" in str(refused(written(tmp_path, "", "spec.json")))
    assert documents.parse_json("[1795665933201290123]", "f") == [1795665933201290123]


def test_a_plan_is_no_spec(tmp_path: Path) -> None:
    plan = written(tmp_path, '{"schema_version": 1, "strategy": "joint", "gpus": []}', "plan.json")
    assert "is a plan, not a spec: a spec lists `workloads`, and `ctl apply` runs a plan" in str(
        refused(plan)
    )


def test_too_large_missing_and_binary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_YAML_LIMIT_BYTES", 64)
    assert "larger than" in str(refused(written(tmp_path, GOOD)))
    assert "no such file" in str(refused(tmp_path / "absent.yaml"))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in str(refused(binary))


SPEC = """schema_version: 1
gpus: [{type: v100}]
workloads:
  - {name: a, model: ssd, slo_ms: 60, rate_rps: 50}
  - {name: b, model: ssd, slo_ms: 60, rate_rps: 50, isolated: yes}
"""


def test_a_workload_may_ask_for_a_queue_of_its_own_by_true(tmp_path: Path) -> None:
    path = written(tmp_path, SPEC.replace("yes", "true"))
    assert [w.isolated for w in read_spec(path)[0].workloads] == [False, True]
    error = refused(written(tmp_path, SPEC.replace("yes", "'no'")))
    assert (error.line, error.field) == (5, f"{SECOND}.isolated")


@pytest.mark.parametrize(
    "number", ["0x" + "f" * 100_000, "9" * 5000, "0b" + "1" * 100, "1:" * 400 + "1.5", "2001-99-99"]
)
@pytest.mark.parametrize("field", ["slo_ms", "client_batch"])
def test_a_number_that_nothing_can_hold_is_named_by_its_line(tmp_path: Path, number: str, field: str) -> None:
    given = ", ".join(f"{name}: {value}" for name, value in {"slo_ms": "60", field: number}.items())
    path = written(tmp_path, f"{SPEC}  - {{name: c, model: ssd, rate_rps: 50, {given}}}\n")
    assert refused(path).line == 6


def test_a_long_number_in_json_is_named_by_its_line_and_field(tmp_path: Path) -> None:
    workload = f'{{"name": "a", "model": "ssd", "slo_ms": {"9" * 5000}, "rate_rps": 5}}'
    text = f'{{"schema_version": 1, "gpus": [{{"type": "v100"}}],\n"workloads": [{workload}]}}'
    error = refused(written(tmp_path, text, "spec.json"))
    assert (error.line, error.field) == (2, "workloads[0].slo_ms")


PAGE = Path(__file__).parents[3] / "docs/spec.md"


def test_the_example_of_the_page_is_read(tmp_path: Path) -> None:
    blocks = PAGE.read_text().split("\n\n")
    text = next(block for block in blocks if block.startswith("    schema_version"))
    spec, _ = read_spec(written(tmp_path, text))
    assert [w.endpoint for w in spec.workloads] == ["resnet50", "feed", "ssd"]


def test_a_second_workload_of_a_model_changes_the_default_endpoint(tmp_path: Path) -> None:
    lines = SPEC.replace(", isolated: yes", "").splitlines()
    for kept, endpoints in ((lines[:4], ["ssd"]), (lines, ["a", "b"])):
        spec, _ = read_spec(written(tmp_path, "\n".join(kept)))
        assert [w.endpoint for w in spec.workloads] == endpoints


def test_options_of_servers_are_read_and_ours_are_refused_by_name(tmp_path: Path) -> None:
    valid = SPEC.replace("yes", "true")
    read, _ = read_spec(written(tmp_path, f"{valid}triton_args: [--log-verbose=1]\nenv: {{THREADS: 2}}\n"))
    assert (read.triton_args, read.env) == (("--log-verbose=1",), {"THREADS": "2"})
    error = refused(written(tmp_path, f"{valid}triton_args: [--log-verbose=1, --http-port=80]\n"))
    assert error.field == "triton_args[1]"


@pytest.mark.parametrize("shadow", ["{policy: none, covers: 1.1}", "{covers: 0.9}", "{covers: 2.5}"])
def test_a_demand_that_no_shadow_can_meet_is_named_by_its_line(tmp_path: Path, shadow: str) -> None:
    error = refused(written(tmp_path, SPEC.replace("isolated: yes", f"shadow: {shadow}")))
    assert (error.line, error.field) == (5, "workloads[1].shadow.covers")
