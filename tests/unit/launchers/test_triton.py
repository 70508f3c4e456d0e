import sys
from dataclasses import replace
from pathlib import Path

import build
import pytest

from controlplane.domain.errors import MissingTool
from controlplane.domain.fleet import ServerSpec
from controlplane.domain.server_options import ServerOptions
from launchers.triton import program

SPEC = build.spec()


def install(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "backends").mkdir()
    (folder / "bin" / "tritonserver").write_text("#!/bin/sh\n")
    (folder / "bin" / "tritonserver").chmod(0o755)
    return folder


def test_the_variable_comes_before_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, here = install(tmp_path / "told"), install(tmp_path / "here" / ".tools" / "triton")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv(program.HOME_VARIABLE, str(told))
    assert program.find_home().path == told
    monkeypatch.delenv(program.HOME_VARIABLE)
    assert program.find_home().path == here


def test_the_clone_of_the_environment_is_searched_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = install(tmp_path / "clone" / ".tools" / "triton")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "clone" / ".venv"))
    monkeypatch.delenv(program.HOME_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert program.find_home().path == installed


def test_a_missing_triton_is_told_with_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(program.HOME_VARIABLE, str(tmp_path))
    with pytest.raises(MissingTool, match=rf"{tmp_path}/bin/tritonserver.*make setup.*TRISECT_TRITON_HOME"):
        program.find_home()


def line_of(spec: ServerSpec, *, gpu: bool = False) -> list[str]:
    server = build.server(spec, reload_key="k")
    return program.command_line(server, program.TritonHome(Path("/opt/tritonserver")), gpu=gpu)


def test_the_command_line() -> None:
    assert line_of(SPEC) == [
        "/opt/tritonserver/bin/tritonserver",
        "--id=f.p.active.r",
        "--model-repository=/m",
        "--backend-directory=/opt/tritonserver/backends",
        "--http-address=127.0.0.1",
        "--http-port=1",
        "--grpc-address=127.0.0.1",
        "--grpc-port=2",
        "--metrics-address=127.0.0.1",
        "--metrics-port=3",
        "--metrics-config=summary_latencies=true",
        "--exit-timeout-secs=3600",
        "--backend-config=python,shm-region-prefix-name=trisect~f~85ff481e4a23~",
        "--allow-gpu-metrics=false",
        "--model-control-mode=none",
        "--http-restricted-api=model-repository,shared-memory,trace,logging:trisect:locked=for-ever",
        "--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:trisect:locked=for-ever",
        "--disable-auto-complete-config",
        "--pinned-memory-pool-byte-size=0",
    ]


def test_a_server_on_sockets_has_its_paths_as_addresses() -> None:
    server = replace(
        build.server(SPEC), host="unix:/run/0f/t", http_port=8000, grpc_port=8001, metrics_port=8002
    )
    line = program.command_line(server, program.TritonHome(Path("/opt")), gpu=False)
    assert [argument for argument in line if "-address=" in argument] == [
        "--http-address=unix:/run/0f/t:8000",
        "--grpc-address=unix:/run/0f/t",
        "--metrics-address=unix:/run/0f/t:8002",
    ]
    assert "--grpc-port=8001" in line


def test_the_users_own_options_come_last() -> None:
    assert line_of(replace(SPEC, options=ServerOptions(("--log-verbose=1",))))[-1] == "--log-verbose=1"


@pytest.mark.parametrize(
    ("spec", "gpu", "more", "less"),
    [
        (
            replace(SPEC, reloads=True, completes=True),
            False,
            {"--model-control-mode=explicit"},
            {"--model-control-mode=none", "--disable-auto-complete-config"},
        ),
        (SPEC, True, set(), {"--pinned-memory-pool-byte-size=0"}),
        (replace(SPEC, turns=True), False, {"--rate-limit=execution_count"}, set()),
    ],
    ids=["completes", "on a GPU", "turns"],
)
def test_what_a_server_has_more_and_less_in_its_line(
    spec: ServerSpec, gpu: bool, more: set[str], less: set[str]
) -> None:
    def options(line: list[str]) -> set[str]:
        return {option for option in line if "restricted" not in option}

    plain, found = options(line_of(SPEC)), options(line_of(spec, gpu=gpu))
    assert (found - plain, plain - found) == (more, less)


def test_only_a_server_that_reloads_has_a_key_and_only_over_http() -> None:
    def locks(spec: ServerSpec) -> list[str]:
        return [a for a in line_of(spec) if "restricted" in a or "control" in a]

    assert locks(replace(SPEC, reloads=True)) == [
        "--model-control-mode=explicit",
        "--http-restricted-api=model-repository:trisect-reload=k",
        "--http-restricted-api=shared-memory,trace,logging:trisect:locked=for-ever",
        "--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:trisect:locked=for-ever",
    ]
    assert locks(replace(SPEC, fleet_wide_calls=True)) == [
        "--model-control-mode=none",
        "--http-restricted-api=model-repository:trisect:locked=for-ever",
        "--grpc-restricted-protocol=model-repository:trisect:locked=for-ever",
    ]
    assert program.new_reload_key(SPEC) is None
    assert program.new_reload_key(replace(SPEC, reloads=True)) != program.new_reload_key(
        replace(SPEC, reloads=True)
    )
