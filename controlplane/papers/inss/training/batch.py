"""Observations as tensors, and transitions drawn from the replay buffer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from controlplane.papers.inss.features import Observation


class TensorObservation(NamedTuple):
    """`planners.inss.features.Observation` as tensors, the same fields and shapes."""

    model: Tensor
    gpus: Tensor
    actions: Tensor
    valid: Tensor
    present: Tensor

    @staticmethod
    def of(seen: Observation) -> TensorObservation:
        """Copy an observation into tensors that torch aligns: BLAS adds up in an order that depends on it."""
        return TensorObservation(*(torch.from_numpy(np.ascontiguousarray(a)).clone() for a in seen))


class Transitions(NamedTuple):
    """Steps (s, a, r, s', last); all with the same leading dimension."""

    state: TensorObservation
    action: Tensor
    reward: Tensor
    next_state: TensorObservation
    last: Tensor
