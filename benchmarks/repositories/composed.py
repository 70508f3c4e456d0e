"""An ensemble of two steps and a model that calls two others: predicted, simulated and measured P99.

    python -m benchmarks.repositories.composed [--rounds 6] [--seconds 15]

Both are profiled as a whole with what they execute in their server, planned on one core, applied, and loaded
in rounds of Poisson arrivals at the planned rates, both at once. Each round's arrivals are then simulated, so
that the two P99 differ by the model and by the host, and not by chance arrivals. Last, each workload moves to
its shadow under the same load. Exit code 1 where the simulated P99 of all rounds is more than 10 % off the
measured one, an SLO does not hold or a request is lost.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from ctl_fleet import Ctl
from model_files import write_composed

from benchmarks.harness import Figures
from controlplane.profiler.load import off_core, poisson_times
from controlplane.runtime.demo import clients

AIM = 0.10
GAP_S = 5.0
"""Between two rounds: no request waits that long."""
REDIRECT_S = 8.0
RATES = {"pipeline": 16.0, "calls": 16.0}
SLO_MS = 300
Arrivals = Mapping[str, Sequence[float]]
"""Workload -> the times of its requests, in seconds."""
X = clients.Tensor("X", "FP32", np.zeros((1, 1), np.float32))


def planned(host: Ctl) -> dict[str, dict[str, float]]:
    """Profile and plan both; return what was found by workload."""
    place = ["--repository", str(host.repository), "--device", "cpu-0", "--launcher", "process"]
    few = ["--set=percents=30,100", "--set=batches=1,2,4", "--budget", "25"]
    for name in RATES:
        print(host.bare("profile", name, *place, *few).stdout, end="", flush=True)
    workloads = [{"name": n, "model": n, "slo_ms": SLO_MS, "rate_rps": rate} for n, rate in RATES.items()]
    spec = {"schema_version": 1, "gpus": [{"type": "cpu", "count": 1}], "workloads": workloads}
    (host.directory / "spec.json").write_text(json.dumps(spec))
    host.bare("plan", "spec.json", "--output", "plan.json")
    plan = json.loads((host.directory / "plan.json").read_text())
    return {
        w["name"]: {
            "percent": p["percent"],
            "batch": p["models"][0]["batch"],
            "predicted": w["predicted"]["p99_ms"],
        }
        for gpu in plan["gpus"]
        for p in gpu["partitions"]
        for w in p["workloads"]
    }


def simulated(host: Ctl, arrivals: Arrivals, seconds: float) -> dict[str, float]:
    """P99 by workload of these arrivals, as `ctl simulate` finds it."""
    options = []
    for name, due_s in arrivals.items():
        file = host.directory / f"{name}.csv"
        file.write_text("\n".join(["time_s", *(f"{at:.6f}" for at in due_s), ""]))
        options.append(f"--arrivals={name}={file}")
    done = host.bare("simulate", "plan.json", "--seconds", f"{seconds:g}", "--json", *options)
    told = json.loads(done.stdout)
    return {w["name"]: w["p99_ms"] for w in told["workloads"]}


def drawn(seconds: float, seed: int) -> Arrivals:
    """Poisson arrivals for every workload."""
    random = np.random.default_rng(seed)
    return {name: poisson_times(rate, seconds, random) for name, rate in RATES.items()}


def loaded(host: Ctl, pool: ThreadPoolExecutor, arrivals: Arrivals) -> dict[str, Future[clients.Seen]]:
    """Send the requests of every workload to its endpoint."""
    target = f"127.0.0.1:{host.grpc}"
    return {
        name: pool.submit(clients.over_grpc, target, name, [X], due_s) for name, due_s in arrivals.items()
    }


def p99(seen: Sequence[clients.Seen]) -> float:
    return float(np.percentile(np.concatenate([one.latency_ms for one in seen]), 99))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=15.0, help="of load in a round")
    asked = parser.parse_args()
    rounds = [drawn(asked.seconds, seed) for seed in range(asked.rounds)]
    each_s = asked.seconds + GAP_S
    every = {n: [i * each_s + at for i, one in enumerate(rounds) for at in one[n]] for n in RATES}
    with tempfile.TemporaryDirectory() as scratch, Ctl(Path(scratch), "steps") as host:
        write_composed(host.repository)
        found = planned(host)
        where = ["--repository", str(host.repository), "--set=serve.launcher=process"]
        host.ctl("apply", "plan.json", "--yes", *where, *host.listening)
        with off_core(0), ThreadPoolExecutor(2) as pool:
            seen = [{n: f.result() for n, f in loaded(host, pool, one).items()} for one in rounds]
            moving = loaded(host, pool, drawn(REDIRECT_S, asked.rounds))
            moved = [host.ctl("redirect", name, exit_code=None).returncode for name in RATES]
            beside = {n: f.result() for n, f in moving.items()}
        whole = simulated(host, every, asked.rounds * each_s)
        by_round = [simulated(host, one, each_s) for one in rounds]
    figures = Figures()
    figures.add("redirects that failed", sum(map(bool, moved)), at_most=0)
    for name, one in found.items():
        own = [of_round[name] for of_round in seen]
        measured = p99(own)
        lost = sum(len(of.failures) for of in own), len(beside[name].failures)
        ratios = [sim[name] / p99([of]) for sim, of in zip(by_round, own, strict=True)]
        figures.add(f"{name}, {one['percent']:g} % b{one['batch']:g}: P99", measured, "ms", at_most=SLO_MS)
        figures.add(f"{name}: predicted", one["predicted"], "ms", reference=measured)
        least, most = 1.0 - AIM, 1.0 + AIM
        figures.add(f"{name}: simulated over it", whole[name] / measured, at_least=least, at_most=most)
        figures.add(f"{name}: the same, least of a round", min(ratios))
        figures.add(f"{name}: the same, most of a round", max(ratios))
        figures.add(f"{name}: lost", lost[0], at_most=0)
        figures.add(f"{name}: lost while moved", lost[1], at_most=0)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
