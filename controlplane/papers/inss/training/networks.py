"""The networks: one encoder shared by all GPUs, mean-pooled, so order and number of GPUs are free.

    h_k = relu(W1 [model, gpu_k])                    encoded GPU
    c_k = relu(W2 [h_k, mean_k h_k])                 the same in the context of all GPUs
    score(k, u) = v . relu(W3 action_ku + W4 c_k)    one number an action
    score(reject) = w . relu(W5 mean_k c_k)

The actor reads the scores as logits, a critic as Q values. `planners.inss.policy` computes the same in numpy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from controlplane.papers.inss.features import ACTION_FEATURES, GPU_FEATURES, MODEL_FEATURES
from controlplane.papers.inss.training.batch import TensorObservation

IMPOSSIBLE = -1e9
"""The logit of a masked action: its probability is exactly 0 in single precision."""


class ScoreNetwork(nn.Module):
    """Scores of all actions, shape (batch, GPUs x units + 1); the last is `reject`."""

    def __init__(self, width: int, action_width: int) -> None:
        super().__init__()
        self.encode = nn.Linear(MODEL_FEATURES + GPU_FEATURES, width)
        self.relate = nn.Linear(2 * width, width)
        self.action = nn.Linear(ACTION_FEATURES, action_width)
        self.context = nn.Linear(width, action_width, bias=False)
        self.score = nn.Linear(action_width, 1)
        self.pool = nn.Linear(width, action_width)
        self.reject = nn.Linear(action_width, 1)

    def forward(self, seen: TensorObservation) -> Tensor:
        """Return the scores before masking."""
        present = seen.present.unsqueeze(-1)
        count = present.sum(dim=1).clamp(min=1.0)
        model = seen.model.unsqueeze(1).expand(-1, seen.gpus.shape[1], -1)
        encoded = torch.relu(self.encode(torch.cat([model, seen.gpus], dim=-1))) * present
        mean = (encoded.sum(dim=1) / count).unsqueeze(1).expand_as(encoded)
        related = torch.relu(self.relate(torch.cat([encoded, mean], dim=-1))) * present
        hidden = torch.relu(self.action(seen.actions) + self.context(related).unsqueeze(2))
        placed = self.score(hidden).flatten(1)
        pooled = related.sum(dim=1) / count
        rejected = self.reject(torch.relu(self.pool(pooled)))
        return torch.cat([placed, rejected], dim=-1)


def log_policy(scores: Tensor, valid: Tensor) -> Tensor:
    """Return the logarithms of the probabilities; a masked action's probability is 0."""
    return torch.log_softmax(scores.masked_fill(~valid, IMPOSSIBLE), dim=-1)
