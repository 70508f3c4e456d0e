"""The paper's evaluation (Sec. 6.1): its cluster, models, SLOs, and random problems around them.

Rate ranges are those of the authors' code for its six models. For ResNet18 and VGG19, whose ranges it does
not name, those of ResNet50 and VGG16 are assumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from controlplane.domain.device import GpuPool
from controlplane.domain.workload import Workload
from controlplane.files import catalogue
from controlplane.latency import registry as latency_registry
from controlplane.papers.inss.problem import Problem, Tables, tabulate
from controlplane.papers.inss.training.episodes import Around
from controlplane.planning.protocol import Device


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the evaluation: its SLO, and the bounds and start of its rate's walk."""

    slo_ms: float
    least_rps: float
    most_rps: float
    memory_mb: float


MODELS: Mapping[str, Served] = {
    "alexnet": Served(25.0, 100.0, 500.0, 1000.0),
    "resnet50": Served(80.0, 100.0, 400.0, 1900.0),
    "vgg16": Served(150.0, 50.0, 200.0, 1500.0),
    "mnasnet": Served(50.0, 100.0, 400.0, 1500.0),
    "mobilenet_v3": Served(60.0, 100.0, 450.0, 1000.0),
    "efficientnet": Served(40.0, 100.0, 400.0, 1900.0),
    "resnet18": Served(60.0, 100.0, 400.0, 1500.0),
    "vgg19": Served(200.0, 50.0, 200.0, 1500.0),
}
"""In the paper's order; memory in MB of the authors' code."""
GPUS: Mapping[str, float] = {"rtx2060s": 8000.0, "rtx2060": 6000.0}
"""Memory of each type in MB; the paper has two of each."""
SLO_SCALE = (0.75, 1.5)
LOAD = (0.7, 1.7)
"""How an instance's rates are scaled as a whole: the paper's own range fills its four GPUs by half."""


def paper(tables: Tables, models: Sequence[str], rates_rps: ArrayLike, gpus: Sequence[str]) -> Problem:
    """The paper's models with its SLOs at these rates on these GPU types, hot shadows on the same GPU."""
    served = [MODELS[m] for m in models]
    return Problem(
        tables,
        np.array([list(MODELS).index(m) for m in models], dtype=np.int64),
        np.array(rates_rps, dtype=np.float64),
        np.array([s.slo_ms for s in served]),
        np.zeros(len(served)),
        np.array([list(GPUS).index(g) for g in gpus], dtype=np.int64),
        np.array([GPUS[g] for g in gpus]),
        np.array([[2.0 * s.memory_mb] * len(GPUS) for s in served]),
    )


def sample(rng: np.random.Generator, tables: Tables, n: int, gpus: int, backlog_s: float = 0.0) -> Problem:
    """A random problem of `n` of the paper's models (repeated beyond its eight) on `gpus` GPUs of both types.

    Rates are uniform in each model's range, times the instance's load; SLOs the paper's, scaled one by one.
    Up to `backlog_s` seconds of requests are queued already.
    """
    names = list(MODELS)
    order = np.concatenate([rng.permutation(len(names)) for _ in range(-(-n // len(names)))])[:n]
    drawn = [names[i] for i in order]
    load = rng.uniform(*LOAD)
    rates = load * np.array([rng.uniform(MODELS[m].least_rps, MODELS[m].most_rps) for m in drawn])
    types = list(GPUS)
    kinds = [types[i] for i in rng.integers(len(types), size=gpus)]
    problem = paper(tables, drawn, rates, kinds)
    slos = problem.slos_ms * rng.uniform(*SLO_SCALE, size=n)
    backlog = np.floor(rates * rng.uniform(0.0, backlog_s, size=n))
    return problem._replace(slos_ms=slos, backlog=backlog)


FOUR = (("rtx2060s", 2), ("rtx2060", 2))


@cache
def devices(latency: str = "inss", counts: Sequence[tuple[str, int]] = FOUR) -> Mapping[str, Device]:
    found = {}
    for name, count in counts:
        kind, profiles = catalogue.device(name), catalogue.profiles(name)
        assert kind is not None
        found[name] = Device(
            GpuPool(kind, count, 1.0), latency_registry.build(latency, kind, profiles), profiles
        )
    return found


@cache
def tables() -> Tables:
    return tabulate(devices(), [(model, 1) for model in MODELS])


def workloads(rates_rps: Mapping[str, float]) -> tuple[Workload, ...]:
    """The paper's models at these rates, with its SLOs."""
    return tuple(Workload(m, m, MODELS[m].slo_ms, rate, endpoint=m) for m, rate in rates_rps.items())


def base() -> Problem:
    """The paper's eight models at the middle of their rates on its four GPUs."""
    rates = [(m.least_rps + m.most_rps) / 2 for m in MODELS.values()]
    return paper(tables(), list(MODELS), rates, ["rtx2060s", "rtx2060s", "rtx2060", "rtx2060"])


def around(models: int, gpus: int, lanes: int) -> Around:
    return Around(base(), models, gpus, lanes)
