"""The actor's weights for `planners.inss.policy`, which runs them in plain numpy."""

from __future__ import annotations

from controlplane.papers.inss.policy import Weights
from controlplane.papers.inss.training.networks import ScoreNetwork


def exported(actor: ScoreNetwork) -> Weights:
    """Return a copy of the weights, matrices as (inputs, outputs)."""
    arrays = {
        name.replace(".weight", "").replace(".bias", "_bias"): tensor.detach().numpy().T.copy()
        for name, tensor in actor.state_dict().items()
    }
    return Weights.of(arrays)
