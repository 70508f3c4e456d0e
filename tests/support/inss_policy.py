"""Problems and episodes for the tests of the policy and of its training."""

from __future__ import annotations

import inss_instances as instances
from inss_setup import tables

from controlplane.papers.inss.problem import Problem
from controlplane.papers.inss.training.episodes import Around


def base() -> Problem:
    """The paper's eight models at the middle of their rates on its four GPUs."""
    rates = [(m.least_rps + m.most_rps) / 2 for m in instances.MODELS.values()]
    return instances.paper(
        tables(), list(instances.MODELS), rates, ["rtx2060s", "rtx2060s", "rtx2060", "rtx2060"]
    )


def around(models: int, gpus: int, lanes: int) -> Around:
    return Around(base(), models, gpus, lanes)
