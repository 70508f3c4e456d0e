"""Run the client repository's examples and the server's own tests on a plain Triton and on a fleet.

    .venv/bin/python tests/conformance/programs.py --client CLIENT --server SERVER [WORD ...]

CLIENT and SERVER are checkouts of `triton-inference-server/client` and `server`; only programs whose path or
test has one of the words are run, each test by itself. Those of decoupled models wait by their own design, up
to six minutes each. Nothing is copied from there but into a temporary folder. Models of other backends than
Python have stand-ins here; those that fail a generated request, as no apply takes them, are left out.
Prints a line for each; exit code 1 where one passes on the plain server alone.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from bare_triton import HOST, bare_triton
from ctl_fleet import Ctl
from host_ports import free_ports

_LONGEST_S = 600.0
_STAND_IN = Path(__file__).parents[1] / "data" / "stand_in" / "model.py"


def _model(batch: int, inputs: str, outputs: str, more: str = "") -> str:
    """Return a configuration; a tensor is written as name, type and dimensions."""
    text = f'backend: "python" max_batch_size: {batch} {more}'
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for name, datatype, *dims in map(str.split, tensors.split(",")):
            shape = ", ".join(dims)
            text += f' {kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {shape} ] }}'
    return text


def _identity(batch: int, kind: str, delay_ms: int, more: str = "") -> str:
    delay = f'parameters {{ key: "execute_delay_ms" value: {{ string_value: "{delay_ms}" }} }}'
    return _model(batch, f"INPUT0 {kind} -1", f"OUTPUT0 {kind} -1", f"{more} {delay}")


_DECOUPLED = "model_transaction_policy { decoupled: true }"
_REPEAT = (0, "IN INT32 -1, DELAY UINT32 -1, WAIT UINT32 1", "OUT INT32 1, IDX UINT32 1")
_OWN = {
    "repeat_int32": _model(*_REPEAT, _DECOUPLED),
    "square_int32": _model(0, "IN INT32 1", "OUT INT32 1", _DECOUPLED),
}
"""Configurations of models that the repositories build from code."""
_IDLE = "max_sequence_idle_microseconds: 6000000"
_STEP = """{ model_name: "dynamic_batch" model_version: -1 input_map { key: "INPUT0" value: "%s" }
      output_map { key: "OUTPUT0" value: "%s" } }"""
_STEPS = f"ensemble_scheduling {{ step [ {_STEP % ('INPUT0', 'out')}, {_STEP % ('out', 'OUTPUT0')} ] }}"
_SLOW = {
    "custom_identity_int32": _identity(1024, "INT32", 10_000),
    "custom_zero_1_float32": _identity(1, "FP32", 1000),
    "dynamic_batch": _identity(2, "FP32", 6000, "dynamic_batching { max_queue_delay_microseconds: 600000 }"),
    "sequence_direct": _identity(1, "FP32", 6000, f"sequence_batching {{ direct {{}} {_IDLE} }}"),
    "sequence_oldest": _identity(
        1, "FP32", 6000, f"sequence_batching {{ oldest {{ max_candidate_sequences: 1 }} {_IDLE} }}"
    ),
    "ensemble_model": _model(1, "INPUT0 FP32 -1", "OUTPUT0 FP32 -1", _STEPS).replace(
        'backend: "python"', 'platform: "ensemble"'
    ),
    "repeat_int32_non_decoupled": _model(*_REPEAT),
}
"""Those that the tests of cancelled requests write."""
_WRITTEN = {
    "pt_identity": _model(
        8, "INPUT0 FP32 8", "OUTPUT0 FP32 8", "dynamic_batching { max_queue_delay_microseconds: 1000000 }"
    ),
    "onnx_object_int32_int32": _model(
        8, "INPUT0 STRING 16, INPUT1 STRING 16", "OUTPUT0 INT32 16, OUTPUT1 INT32 16"
    ),
    "libtorch_nobatch_int32_int32_int32": _model(
        0, "INPUT0 INT32 1, INPUT1 INT32 1", "OUTPUT__1 INT32 1, OUTPUT__0 INT32 1"
    ),
}
"""Those that tests write or copy; of the last one, a step takes the sum."""
_PARAMETER = _model(0, "INPUT0 FP32 1", "key STRING -1, value STRING -1")
"""That of a model whose code completes it."""
_FIVE = "FP32 -1 -1 -1 -1 -1"
_SHAPED = {
    "non_contiguous": _model(
        0, "INPUT0 FP32 2 10 11 6 5", f"OUTPUT0 {_FIVE}, OUTPUT1 {_FIVE}, OUTPUT2 {_FIVE}"
    )
}
"""With the one shape that its code takes, which a generated request has then."""
_OF_PYTHON = """add_sub async_execute_decouple identity_bf16
    identity_fp32 identity_fp32_logging iterative_sequence non_contiguous optional request_rescheduling_addsub
    response_parameters response_parameters_decoupled string string_fixed"""
_EXAMPLES = "docs/examples/model_repository"
_BACKEND = re.compile(r'^\s*(?:platform|backend)\s*:\s*"([^"]*)"', re.MULTILINE)
_KINDS = {"python", "ensemble"}


@dataclass(frozen=True)
class Group:
    """Programs that share a repository: patterns of programs, and of folders with models."""

    root: str
    programs: tuple[str, ...]
    models: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    own: Mapping[str, str] = field(default_factory=lambda: _OWN)


GROUPS = (
    Group(
        "client",
        (
            "src/python/examples/simple_*.py",
            "src/python/examples/grpc_*client.py",
            "src/python/examples/reuse*.py",
        ),
        (f"{_EXAMPLES}/simple*", "qa/L0_client_memory_growth/models/*"),
        ("src/python/examples/grpc_image_client.py",),
    ),
    Group(
        "server",
        (
            "qa/L0_input_validation/*_test.py",
            "qa/L0_nan_inf/*_test.py",
            "qa/L0_decoupled/*_test.py",
            "qa/L0_http/generate_endpoint_test.py",
            "qa/L0_*/python_*_aio_test.py",
        ),
        (
            "qa/L0_input_validation/models/*",
            "qa/L0_nan_inf/models/*",
            "qa/L0_decoupled/models/*",
            "qa/python_models/generate_models/*",
            f"{_EXAMPLES}/simple*",
        ),
        (f"{_EXAMPLES}/simple_dyna_sequence",),
        {**_OWN, **_WRITTEN},
    ),
    Group(
        "server",
        (
            "qa/L0_backend_python/parameters/*_test.py",
            "qa/L0_backend_python/async_execute/*_test.py",
            "qa/L0_backend_python/request_rescheduling/*_test.py",
            "qa/L0_backend_python/ensemble/*_test.py",
            "qa/L0_backend_python/logging/*_test.py",
            "qa/L0_backend_python/python_test.py",
        ),
        (*(f"qa/python_models/{name}" for name in re.findall(r"\w+", _OF_PYTHON)),),
        own={**_OWN, **_SHAPED},
    ),
    Group(
        "server",
        (
            "qa/L0_parameters/parameters_test.py",
            "qa/L0_logging/logging_endpoint_test.py",
        ),
        ("qa/L0_parameters/model_repository/*",),
        own={"parameter": _PARAMETER},
    ),
    Group("server", ("qa/L0_client_timeout/*_test.py",), ("qa/L0_client_timeout/models/*",)),
    Group(
        "server",
        ("qa/L0_request_cancellation/[gs]*_test.py", "qa/L0_grpc_state_cleanup/*_test.py"),
        (),
        own={**_OWN, **_SLOW},
    ),
)


@dataclass(frozen=True)
class Servers:
    """Where programs are pointed."""

    http_port: int
    grpc_port: int
    metrics_port: int


def main() -> int:
    """Run all groups."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--client", type=Path, required=True, help="a checkout of the client repository")
    parser.add_argument("--server", type=Path, required=True, help="a checkout of the server repository")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    roots = {"client": given.client.absolute(), "server": given.server.absolute()}
    rows: list[tuple[str, str, str]] = []
    for group in GROUPS:
        found = _found(roots[group.root], group.programs, group.left_out)
        runs = [(program, test) for program in found for test in _tests(program)]
        runs = [run for run in runs if not given.words or any(w in f"{run[0]} {run[1]}" for w in given.words)]
        if runs:
            with tempfile.TemporaryDirectory(prefix="programs") as folder:
                rows += _compared(Path(folder), group, runs, roots)
    passed = [sum(row[side] == "passes" for row in rows) for side in (1, 2)]
    print(f"{len(rows)} tests and programs: {passed[0]} pass on a plain Triton, {passed[1]} through a fleet")
    return int(any(plain == "passes" != fleet for _, plain, fleet in rows))


def _found(root: Path, patterns: Sequence[str], left_out: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from (
            path for path in sorted(root.glob(pattern)) if str(path.relative_to(root)) not in left_out
        )


def _tests(program: Path) -> list[str]:
    """A program's tests, for its command line; an empty text for one that has none."""
    classes = [one for one in ast.parse(program.read_text()).body if isinstance(one, ast.ClassDef)]
    return [
        f"{one.name}.{test.name}"
        for one in classes
        for test in one.body
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_")
    ] or [""]


def _compared(
    here: Path, group: Group, runs: Sequence[tuple[Path, str]], roots: dict[str, Path]
) -> list[tuple[str, str, str]]:
    """Run a group's tests on both; print and return a row for each: its name and how it ended."""
    names = [f"{program.relative_to(roots[group.root])} {test}".rstrip() for program, test in runs]
    models = here / "source"
    for source in _found(roots["server"], group.models, group.left_out):
        _add_model(source, models)
    for name, config in group.own.items():
        (models / name / "1").mkdir(parents=True, exist_ok=True)
        (models / name / "config.pbtxt").write_text(config)
        if "ensemble" not in config and not (models / name / "1" / "model.py").exists():
            shutil.copy(_STAND_IN, models / name / "1" / "model.py")
    plain = []
    with bare_triton(models, here / "plain.log", complete=True, deadline_s=120) as bare:
        servers = Servers(bare.http_port, bare.grpc_port, free_ports(1)[0])
        plain = [_ended(*run, servers, here / "plain", roots) for run in runs]
    with Ctl(here, models=models) as fleet:
        fleet.apply(
            _plan(models), "--allow", "all-cores", "--no-controller", "--set=serve.fleet_wide_calls=true"
        )
        servers = Servers(fleet.http, fleet.grpc, fleet.metrics)
        rows = []
        for name, run, before in zip(names, runs, plain, strict=True):
            rows.append((name, before, _ended(*run, servers, here / "through", roots)))
            print(
                "  ".join(rows[-1]) if before == rows[-1][2] else f"{'  '.join(rows[-1])}  DIFFERS",
                flush=True,
            )
    return rows


def _add_model(source: Path, models: Path) -> None:
    """Copy a model; what another backend serves gets the stand-in."""
    shutil.copytree(source, models / source.name, dirs_exist_ok=True)
    if not (source / "config.pbtxt").exists():
        return
    folder, text = models / source.name, (source / "config.pbtxt").read_text()
    (folder / "1").mkdir(exist_ok=True)
    for code in folder.glob("*.py"):  # where its test puts it
        code.rename(folder / "1" / code.name)
    backend = _BACKEND.search(text)
    if backend is not None and backend.group(1) not in _KINDS:
        (folder / "config.pbtxt").write_text(_BACKEND.sub('backend: "python"', text))
        shutil.copy(_STAND_IN, folder / "1" / "model.py")


def _plan(models: Path) -> dict[str, object]:
    """Return a plan of all models, each with its largest batch; ensembles have a partition of their own.

    There they find their steps, since no model is served twice in one partition.
    """
    alone, ensembles = {}, {}
    for folder in sorted(models.iterdir()):
        text = (folder / "config.pbtxt").read_text()
        written = re.search(r"max_batch_size\s*:\s*(\d+)", text)
        placed = ensembles if "ensemble_scheduling" in text else alone
        placed[folder.name] = max(1, int(written.group(1)) if written else 0)
    parts = [alone, *({name: batch} for name, batch in ensembles.items())]
    gpus: dict[str, list[object]] = {"cpu-0": [], "cpu-1": []}
    for number, batches in enumerate(parts):
        share = 80 if number == 0 else 80 // (len(parts) - 1)
        gpus["cpu-1" if number else "cpu-0"].append(_partition(f"part{number}", share, batches))
    terms = {"schema_version": 1, "strategy": "igniter", "rule": "half-slo", "latency_model": "igniter"}
    cores = [{"id": core, "type": "cpu", "partitions": placed} for core, placed in gpus.items()]
    return {**terms, "gpus": cores}


def _partition(name: str, percent: int, batches: Mapping[str, int]) -> dict[str, object]:
    workloads = [{"name": n, "endpoint": n, "model": n, "rate_rps": 1, "slo_ms": 60_000} for n in batches]
    models = [{"model": model, "batch": batch} for model, batch in batches.items()]
    return {"id": name, "percent": percent, "shadow": None, "models": models, "workloads": workloads}


def _copy(source: Path, folder: Path, servers: Servers) -> None:
    """Copy a folder's programs, with these servers' ports."""
    ports = {"8000": servers.http_port, "8001": servers.grpc_port, "8002": servers.metrics_port}
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("models"))
    for code in folder.rglob("*.py"):
        code.write_text(re.sub(r"(?<=:)800[012]\b", lambda port: str(ports[port.group()]), code.read_text()))


def _ended(program: Path, test: str, servers: Servers, here: Path, roots: dict[str, Path]) -> str:
    """Run a test, or a program without any, with these servers' ports; return how it ended."""
    folder = here / program.parent.name
    for source in (program.parent, roots["server"] / "qa" / "common"):
        _copy(source, here / source.name, servers)
    address = f"{HOST}:{servers.grpc_port if 'grpc' in program.name else servers.http_port}"
    arguments = ["-u", address] if program.is_relative_to(roots["client"]) else [test] if test else []
    paths = [here / "common", folder]
    their_own = {"TRITONSERVER_IPADDR": HOST, "TEST_HEADER": "test_params"}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **their_own}
    try:
        done = subprocess.run(
            [sys.executable, program.name, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    (here / f"{program.stem}{test}.log").write_text(done.stdout + done.stderr)
    return "passes" if done.returncode == 0 else f"ends with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
