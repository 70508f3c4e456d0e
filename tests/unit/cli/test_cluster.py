"""How a controller in a cluster ends: its pod's exit code, and the Lease that the next one takes."""

import os
import signal
from pathlib import Path

import pytest
from fake_kubernetes import served

from controlplane.cli.endings import EXIT_DEFECT
from controlplane.cli.main import run
from controlplane.runtime.controller import elected


@pytest.mark.parametrize(("defect", "code"), [(KeyError("defect"), EXIT_DEFECT), (None, 0)])
def test_a_leader_that_ends_frees_its_lease_and_a_defect_is_its_exit_code(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    defect: Exception | None,
    code: int,
) -> None:
    holders: list[str] = []

    def lead(*_: object) -> None:
        (lease,) = (kept for (kind, *_), kept in cluster.store.objects.items() if kind == "leases")
        holders.append(lease["spec"]["holderIdentity"])
        if defect is not None:
            raise defect

    def leave(status: int) -> None:
        raise SystemExit(status)

    (directory / "token").write_text("the-token")
    monkeypatch.setenv("TRISECT_GATEWAY_TOKEN_FILE", str(directory / "token"))
    monkeypatch.setattr(elected, "lead", lead)
    monkeypatch.setattr(os, "_exit", leave)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with served() as (cluster, _):
            monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(directory / "kubeconfig")))
            with pytest.raises(SystemExit) as ended:
                run(["controller", "--elected", "--repository", str(directory)])
            (lease,) = (kept for (kind, *_), kept in cluster.store.objects.items() if kind == "leases")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert ended.value.code == code
    assert holders == [os.uname().nodename]
    assert lease["spec"]["holderIdentity"] == ""
    assert ("KeyError: 'defect'" in capsys.readouterr().err) == (defect is not None)
