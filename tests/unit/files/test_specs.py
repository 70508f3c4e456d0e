from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.spec import Spec
from controlplane.files.specs import read_spec

SPEC = """schema_version: 1
gpus: [{type: v100}]
workloads:
  - {name: a, model: ssd, slo_ms: 60, rate_rps: 50}
  - {name: b, model: ssd, slo_ms: 60, rate_rps: 50, isolated: yes}
"""


def test_a_workload_may_ask_for_a_queue_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("yes", "true"))
    assert [w.isolated for w in read_spec(path)[0].workloads] == [False, True]


def test_isolated_is_true_or_false(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("yes", "'no'"))
    with pytest.raises(InputError, match=r"true or false|boolean") as told:
        read_spec(path)
    assert told.value.field == "workloads[1].isolated"
    assert told.value.line == 5


@pytest.mark.parametrize(
    "number", ["0x" + "f" * 100_000, "9" * 5000, "0b" + "1" * 100, "1:" * 400 + "1.5", "2001-99-99"]
)
@pytest.mark.parametrize("field", ["slo_ms", "client_batch"])
def test_a_number_that_nothing_can_hold_is_named_by_its_line(tmp_path: Path, number: str, field: str) -> None:
    path = tmp_path / "spec.yaml"
    fields = {"slo_ms": "60", field: number}
    given = ", ".join(f"{name}: {value}" for name, value in fields.items())
    path.write_text(f"{SPEC}  - {{name: c, model: ssd, rate_rps: 50, {given}}}\n")
    with pytest.raises(InputError) as told:
        read_spec(path)
    assert told.value.line == 6


def test_a_long_number_in_json_is_named_by_its_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    workload = f'{{"name": "a", "model": "ssd", "slo_ms": {"9" * 5000}, "rate_rps": 5}}'
    path.write_text(f'{{"schema_version": 1, "gpus": [{{"type": "v100"}}],\n"workloads": [{workload}]}}')
    with pytest.raises(InputError) as told:
        read_spec(path)
    assert (told.value.line, told.value.field) == (2, "workloads[0].slo_ms")


PAGE = Path(__file__).parents[3] / "docs/spec.md"


def fields_of(kind: Any, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        yield prefix + field.name, field
        for inner in (hints[field.name], *get_args(hints[field.name])):
            if is_dataclass(inner):
                many = "[]" if get_origin(hints[field.name]) is tuple else ""
                yield from fields_of(inner, f"{prefix}{field.name}{many}.")


def test_the_page_of_the_spec_tells_of_every_field_and_its_default() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    told = {row[1].strip(" `"): row[4].strip() for row in rows}
    known = dict(fields_of(Spec))
    assert set(told) == {"schema_version", *known}
    for name, field in known.items():
        if field.default is MISSING and field.default_factory is MISSING:
            assert told[name].startswith("required"), name
        elif isinstance(field.default, float):
            assert told[name] == f"`{field.default:g}`", name
        elif isinstance(field.default, bool | int | str):
            assert told[name] == f"`{str(field.default).lower()}`", name


def test_the_example_of_the_page_is_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    blocks = PAGE.read_text().split("\n\n")
    path.write_text(next(block for block in blocks if block.startswith("    schema_version")))
    spec, _ = read_spec(path)
    assert [w.endpoint for w in spec.workloads] == ["resnet50", "feed", "ssd"]


def test_a_second_workload_of_a_model_changes_the_default_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    lines = SPEC.replace(", isolated: yes", "").splitlines()
    for kept, endpoints in ((lines[:4], ["ssd"]), (lines, ["a", "b"])):
        path.write_text("\n".join(kept))
        assert [w.endpoint for w in read_spec(path)[0].workloads] == endpoints


def test_options_of_servers_are_read_and_ours_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("yes", "true") + "triton_args: [--log-verbose=1]\nenv: {THREADS: 2}\n")
    read = read_spec(path)[0]
    assert (read.triton_args, read.env) == (("--log-verbose=1",), {"THREADS": "2"})
    path.write_text(SPEC.replace("yes", "true") + "triton_args: [--log-verbose=1, --http-port=80]\n")
    with pytest.raises(InputError, match=r"triton_args\[1\]: --http-port: Trisect sets --http-port itself"):
        read_spec(path)


@pytest.mark.parametrize("shadow", ["{policy: none, covers: 1.1}", "{covers: 0.9}", "{covers: 2.5}"])
def test_a_demand_that_no_shadow_can_meet_is_named_by_its_line(tmp_path: Path, shadow: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("isolated: yes", f"shadow: {shadow}"))
    with pytest.raises(InputError) as told:
        read_spec(path)
    assert (told.value.line, told.value.field) == (5, "workloads[1].shadow.covers")
