"""Options that a user passes on to Triton: which are taken, and which Trisect keeps for itself."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.server_options import JUDGED, NO_OPTIONS, ServerOptions
from launchers.triton import program


@pytest.mark.parametrize(
    "argument",
    [
        "--log-verbose=1",
        "--backend-config=onnxruntime,enable-global-threadpool=1",
        "--pinned-memory-pool-byte-size=0",
        "--trace-config=mode=opentelemetry",
    ],
)
def test_options_of_triton_are_taken(argument: str) -> None:
    assert ServerOptions((argument,)).triton_args == (argument,)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--http-port=1", "Trisect sets --http-port itself"),
        ("--http-po=1", "--http-po: Trisect sets --http-port itself"),
        ("--model-repository=/x", "Trisect sets --model-repository itself"),
        ("--model-config-name=h100", "config.pbtxt"),
        ("--backend-config=onnxruntime,default-max-batch-size=8", "config.pbtxt"),
        ("--backend-c=default-max-batch-size=8", "config.pbtxt"),
        ("--backend-config=python,shm-region-prefix-name=x", "shm-region-prefix-name itself"),
        ("--trace-config=triton,file=/tmp/trace.json", "opentelemetry"),
        ("--trace-file=/tmp/trace.json", "opentelemetry"),
        ("log-verbose=1", "is not --NAME=VALUE"),
        ("-v", "is not --NAME=VALUE"),
        ("--log-verbose 1", "is not --NAME=VALUE"),
    ],
)
def test_what_trisect_sets_itself_is_refused_by_name(argument: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        ServerOptions(("--log-verbose=1", argument))
    assert caught.value.field == "triton_args[1]"


@pytest.mark.parametrize("name", ["PATH", "TRISECT_NAME", "CUDA_MPS_PIPE_DIRECTORY", "1A", "A=B", ""])
def test_variables_of_ours_and_wrong_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"env.{name}"):
        ServerOptions(env={name: "x"})
    assert ServerOptions(env={"PATHS": "x", "HF_HOME": ""})


def test_every_option_in_tritons_help_is_judged() -> None:
    home = program.find_home()
    said = subprocess.run(
        [home.binary, "--help"],
        env={"LD_LIBRARY_PATH": str(home.libraries)},
        capture_output=True,
        text=True,
        check=False,
    )
    options = set(re.findall(r"^  --([a-z0-9-]+)", said.stdout + said.stderr, re.MULTILINE))
    assert len(options) > 80
    assert options == set(JUDGED)


def test_every_option_that_trisect_gives_is_its_own() -> None:
    spec = ServerSpec(Labels("f", "h", "p", Role.ACTIVE, "r"), "/models", ("m",), "cpu-0", 30.0, turns=True)
    given = [
        argument
        for one in (False, True)
        for argument in program.command_line(
            Server("", replace(spec, reloads=one), ServerState.RUNNING, "127.0.0.1", 1, 2, 3),
            program.TritonHome(Path("/t")),
            gpu=True,
        )[1:]
    ]
    for argument in given:
        with pytest.raises(InputError):
            ServerOptions((argument,))
    assert not NO_OPTIONS
