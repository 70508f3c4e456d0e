"""An ensemble and a model that calls others, with what they execute: measured, served and moved."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from ctl_fleet import Ctl, partition, plan
from model_files import write_composed

from controlplane.files.measurements.profiles import read_profile
from controlplane.profiler.load import poisson_times
from controlplane.runtime.demo import clients

X = clients.Tensor("X", "FP32", np.zeros((1, 1), np.float32))


def test_models_that_execute_others_are_surveyed_and_measured_with_them(tmp_path: Path) -> None:
    with Ctl(tmp_path, "composed") as host:
        write_composed(host.repository)
        surveyed = host.bare("init", str(host.repository), "--json")
        notes = {one["model"]: (one["state"], one["note"]) for one in json.loads(surveyed.stdout)["models"]}
        whole = "executes first, second: measured as a whole, with them in its server"
        assert notes["pipeline"] == notes["calls"] == ("ready", whole)

        few = ["--set=percents=100", "--set=batches=1,4", "--budget", "5", "--launcher", "process"]
        host.bare("profile", "pipeline", "calls", "--repository", str(host.repository), *few)
        for model in ("pipeline", "calls"):
            one, four = read_profile(tmp_path / "profiles" / "cpu" / f"{model}.json").points
            # The work of both steps: 2 ms and 1 ms for each inference.
            assert one.execution_ms > 6
            assert four.execution_ms > 12

        parts = [partition(name, 40, model=name) for name in ("pipeline", "calls")]
        host.apply(plan(*parts))
        due = poisson_times(20.0, 6.0, np.random.default_rng(1))
        with ThreadPoolExecutor(2) as pool:
            load = [
                pool.submit(clients.over_grpc, f"127.0.0.1:{host.grpc}", name, [X], due)
                for name in ("pipeline", "calls")
            ]
            for name in ("pipeline", "calls"):
                host.ctl("redirect", name)
            seen = [future.result() for future in load]
        assert [(s.latency_ms.size, s.failures) for s in seen] == [(len(due), ())] * 2
