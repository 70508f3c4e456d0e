"""InSS's policy beside the local search, on problems it was not trained on.

python -m benchmarks.plans.inss_policy             a minute: 64 problems a size, 0.05 s of search each
python -m benchmarks.plans.inss_policy --full      hours: 256 problems a size, 10 s of search each
python -m benchmarks.plans.inss_policy --train 3   minutes a seed: trains before, and says what it took

Times are CPU seconds of this process, so a busy machine does not change them. Problems are those of
`planners.inss.instances`, drawn with another seed and by other means than those trained on.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
import inss_instances as instances
import numpy as np
from inss_setup import surfaces

from benchmarks.harness import Figures
from controlplane.papers import inss
from controlplane.papers.inss.policy import Weights, built_in, decide, read, worth
from controlplane.papers.inss.problem import REJECTED, Problem, fits, goodput
from controlplane.papers.inss.search import WARM, search
from controlplane.papers.inss.training.episodes import greedy

SIZES = ((6, 4), (8, 5), (12, 4))
"""Models, GPUs: one trained on, one with a GPU more than ever seen, one where not all fit."""
OF_SEARCH = {SIZES[0]: 0.99, SIZES[1]: 0.99}
"""Where GPUs are short the policy alone is known to lose a tenth."""
AT_EQUAL_TIME = 0.98
LARGE = (100, 50)
SEED = 20_240
EQUAL_TIMES_S = (0.01, 0.05)
Assignment = tuple[np.ndarray, np.ndarray]


class CpuClock:
    """`ports.Clock` that counts this process's CPU time."""

    def monotonic(self) -> float:
        return time.process_time()

    def wall(self) -> float:
        return time.time()


CLOCK = CpuClock()


@dataclass(frozen=True)
class Answer:
    """An assignment of each problem, and the CPU ms each took."""

    gpu: np.ndarray
    units: np.ndarray
    ms: np.ndarray

    @staticmethod
    def of(problems: list[Problem], decide_one) -> Answer:
        found, took = [], []
        for problem in problems:
            began = time.process_time()
            found.append(decide_one(problem))
            took.append((time.process_time() - began) * 1000.0)
            assert fits(problem, *found[-1])
        return Answer(np.stack([g for g, _ in found]), np.stack([u for _, u in found]), np.array(took))


def drawn(models: int, gpus: int, count: int) -> list[Problem]:
    rng = np.random.default_rng([SEED, models, gpus])
    return [instances.sample(rng, surfaces(), models, gpus) for _ in range(count)]


def searched(problem: Problem, budget_s: float) -> Assignment:
    found = search(problem, CLOCK, budget_s=budget_s)
    return found.gpu, np.where(found.gpu == REJECTED, 1, found.units)


def by_rule(problem: Problem) -> Assignment:
    """What the exact look at each action is worth without learning."""
    gpu, units = greedy(Problem.stack([problem]))
    return gpu[0], units[0]


def polished(problem: Problem, policy: Weights, budget_s: float) -> Assignment:
    """Policy, then search from there in what is left of the time."""
    began = time.process_time()
    start = decide(problem, policy)
    left = budget_s - (time.process_time() - began)
    found = search(problem, CLOCK, start=start, budget_s=max(left, 0.0), first=WARM)
    return found.gpu, np.where(found.gpu == REJECTED, 1, found.units)


def good(problems: list[Problem], answer: Answer) -> np.ndarray:
    """Parts of the offered requests served within their SLO."""
    stacked = Problem.stack(problems)
    outcome = goodput(stacked, answer.gpu, answer.units)
    return outcome.goodput_rps.sum(axis=1) / stacked.rates_rps.sum(axis=1)


def late(problems: list[Problem], answer: Answer) -> float:
    """The part of the offered requests on models that were placed and break their SLO."""
    stacked = Problem.stack(problems)
    broken = goodput(stacked, answer.gpu, answer.units).violated & (answer.gpu != REJECTED)
    return float(((broken * stacked.rates_rps).sum(axis=1) / stacked.rates_rps.sum(axis=1)).mean())


def values(problems: list[Problem], answer: Answer) -> np.ndarray:
    return worth(Problem.stack(problems), answer.gpu, answer.units, None)


def trained(seeds: int, directory: Path) -> dict[str, Weights]:
    """Train with `ctl train` as the built-in policy was; one seed after the other."""
    spec = Path(inss.__file__).parent / "policy.yaml"
    policies = {}
    for seed in range(1, seeds + 1):
        path = directory / f"{seed}.npz"
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "controlplane.cli.main",
                "train",
                str(spec),
                "--most-models",
                "7",
                "--seed",
                str(seed),
                "--output",
                str(path),
            ],
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"seed {seed}: trained in {time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU", flush=True)
        policies[f"seed {seed}"] = read(path.read_bytes(), str(path))[0]
    return policies


def quality(figures: Figures, policies: dict[str, Weights], count: int, search_s: float) -> None:
    print(f"{count} problems a size; search: {search_s:g} s of CPU each")
    print(f"{'':22}{'goodput %':>10}{'of search':>11}{'late %':>8}{'ms':>9}")
    ratios: dict[tuple[int, int], list[float]] = {}
    for size in SIZES:
        problems = drawn(*size, count)
        best = Answer.of(problems, lambda p: searched(p, search_s))
        reference = good(problems, best)
        rows = {"search": best, "a greedy rule": Answer.of(problems, by_rule)}
        for name, policy in policies.items():
            decide(problems[0], policy)
            rows[name] = Answer.of(problems, lambda p, w=policy: decide(p, w))
            rows[f"{name}, greedy"] = Answer.of(problems, lambda p, w=policy: decide(p, w, drawn=0))
            ratios.setdefault(size, []).append(float((good(problems, rows[name]) / reference).mean()))
        print(f"{size[0]} models, {size[1]} GPUs")
        for name, answer in rows.items():
            own = good(problems, answer)
            print(
                f"  {name:20}{100 * own.mean():10.2f}{(own / reference).mean():11.4f}"
                f"{100 * late(problems, answer):8.2f}{np.median(answer.ms):9.2f}"
            )
        told = ratios[size]
        print(f"  of search: mean {np.mean(told):.4f}, spread {min(told):.4f} to {max(told):.4f}")
        name = f"{size[0]} models, {size[1]} GPUs: goodput over the search's"
        figures.add(name, np.mean(told), at_least=OF_SEARCH.get(size))


def equal_time(figures: Figures, policies: dict[str, Weights], count: int) -> None:
    print("policy and polish against the search alone in the same CPU time, by value")
    print(f"{'':22}{'time, ms':>10}{'ratio':>9}{'worse by > 1 %':>16}")
    for size in SIZES:
        problems = drawn(*size, count)
        for budget_s in EQUAL_TIMES_S:
            alone = values(problems, Answer.of(problems, lambda p, s=budget_s: searched(p, s)))
            for name, policy in policies.items():
                both = Answer.of(problems, lambda p, w=policy, s=budget_s: polished(p, w, s))
                ratio = values(problems, both) / alone
                print(
                    f"  {size[0]}/{size[1]}, {name:14}{1000 * budget_s:10.0f}{ratio.mean():9.4f}"
                    f"{100 * (ratio < 0.99).mean():14.1f} %"
                )
                what = f"{size[0]}/{size[1]}, {name}, {1000 * budget_s:g} ms: value over the search's"
                figures.add(what, ratio.mean(), at_least=AT_EQUAL_TIME)


def large(policy: Weights) -> None:
    problems = drawn(*LARGE, 5)
    decide(problems[0], policy)
    answer = Answer.of(problems, lambda p: decide(p, policy))
    alone = Answer.of(problems, lambda p: searched(p, 0.05))
    own, other = (100 * good(problems, a).mean() for a in (answer, alone))
    print(f"{LARGE[0]} models, {LARGE[1]} GPUs: policy {np.median(answer.ms):.1f} ms, goodput {own:.1f} %;")
    print(f"  search alone {np.median(alone.ms):.1f} ms, goodput {other:.1f} %")


def main() -> int:
    figures = Figures()
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--full", action="store_true")
    arguments.add_argument("--problems", type=int, default=64)
    arguments.add_argument("--search", type=float, default=0.05, help="CPU seconds a problem")
    arguments.add_argument("--train", type=int, default=0, metavar="SEEDS")
    arguments.add_argument("--policy", type=Path, nargs="*", default=[], help="files instead of the built-in")
    chosen = arguments.parse_args()
    count, search_s = (256, 10.0) if chosen.full else (chosen.problems, chosen.search)
    with tempfile.TemporaryDirectory() as directory:
        if chosen.train:
            policies = trained(chosen.train, Path(directory))
        elif chosen.policy:
            policies = {path.stem: read(path.read_bytes(), str(path))[0] for path in chosen.policy}
        else:
            policies = {"built in": built_in()}
    search(drawn(6, 4, 1)[0], CLOCK, rounds=1)  # compiled before anything is timed
    quality(figures, policies, count, search_s)
    equal_time(figures, policies, count)
    large(next(iter(policies.values())))
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
