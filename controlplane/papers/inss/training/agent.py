"""Discrete soft actor-critic (Christodoulou 2019) with masked actions, and its networks.

One small network scores each action by its features alone, so order and number of GPUs are free. The actor
reads the scores as logits, a critic as Q values. `inss.policy` computes the same in numpy.

    V(s') = sum_a pi(a|s') [min_j Q'_j(s', a) - alpha ln pi(a|s')]
    y     = r + gamma (1 - last) V(s'),  J_Qj = 1/2 (Q_j(s, a) - y)^2
    J_pi  = sum_a pi(a|s) [alpha ln pi(a|s) - min_j Q_j(s, a)]
    J_al  = alpha sum_a pi(a|s) [-ln pi(a|s) - H(s)],  H(s) = ratio ln |valid actions of s|
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from controlplane.papers.inss.features import FEATURES, Observation
from controlplane.papers.inss.policy import Weights

IMPOSSIBLE = -1e9
"""The logit of a masked action: its probability is exactly 0 in single precision."""


class TensorObservation(NamedTuple):
    """`inss.features.Observation` as tensors, the same fields and shapes."""

    actions: Tensor
    valid: Tensor

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


class ScoreNetwork(nn.Module):
    """Scores of all actions, (batch, 1 + K U): 0 where masked."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.second = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, seen: TensorObservation) -> Tensor:
        """Return the scores."""
        # Fewer than half of the actions are valid, and this is most of the training's time.
        hidden = torch.relu(self.second(torch.relu(self.first(seen.actions[seen.valid]))))
        scores = seen.actions.new_zeros(seen.valid.shape)
        scores[seen.valid] = self.score(hidden).squeeze(-1)
        return scores


def log_policy(scores: Tensor, valid: Tensor) -> Tensor:
    """Return the logarithms of the probabilities; a masked action's probability is 0."""
    return torch.log_softmax(scores.masked_fill(~valid, IMPOSSIBLE), dim=-1)


def exported(actor: ScoreNetwork) -> Weights:
    """Return a copy of the weights, matrices as (inputs, outputs)."""
    arrays = {
        name.replace(".weight", "").replace(".bias", "_bias"): tensor.detach().numpy().T.copy()
        for name, tensor in actor.state_dict().items()
    }
    return Weights.of(arrays)


@dataclass(frozen=True, slots=True)
class SacSettings:
    """Sizes and rates. `entropy_ratio`: H(s) over the largest entropy, at the start and at the end."""

    width: int = 48
    learning_rate: float = 1e-3
    discount: float = 1.0
    soft_update: float = 0.01
    temperature: float = 0.003
    entropy_ratio: tuple[float, float] = (0.2, 0.02)


class Losses(NamedTuple):
    """Losses of one update, in the reward's unit (squared for the critics), and the entropy in nats."""

    critic: float
    actor: float
    temperature: float
    entropy: float


class Agent:
    """Actor, twin critics with their slow copies, temperature, and an optimiser for each."""

    def __init__(self, settings: SacSettings) -> None:
        self._settings = settings
        self.actor, *self._critics = (_network(settings) for _ in range(3))
        self._targets = [_network(settings) for _ in self._critics]
        for target, critic in zip(self._targets, self._critics, strict=True):
            target.load_state_dict(critic.state_dict())
            target.requires_grad_(False)
        self._log_temperature = torch.tensor(float(settings.temperature)).log().requires_grad_()
        rate = settings.learning_rate
        self._actor_steps = torch.optim.Adam(self.actor.parameters(), lr=rate)
        self._critic_steps = torch.optim.Adam([p for c in self._critics for p in c.parameters()], lr=rate)
        self._temperature_steps = torch.optim.Adam([self._log_temperature], lr=rate)

    @property
    def temperature(self) -> float:
        """Alpha."""
        return self._log_temperature.exp().item()

    @torch.no_grad()
    def act(self, seen: TensorObservation, generator: torch.Generator) -> Tensor:
        """Draw an action for each row from the policy; never a masked one."""
        policy = log_policy(self.actor(seen), seen.valid).exp()
        return torch.multinomial(policy, 1, generator=generator).squeeze(1)

    def update(self, steps: Transitions, progress: float) -> Losses:
        """Make a step of each optimiser; `progress` in [0, 1] sets the target of the entropy."""
        alpha = self._log_temperature.exp().detach()
        goal = self._goal(steps, alpha)
        chosen = steps.action.unsqueeze(1)
        values = [c(steps.state) for c in self._critics]
        critic_loss = torch.stack(
            [0.5 * mse_loss(v.gather(1, chosen).squeeze(1), goal) for v in values]
        ).sum()
        _step(self._critic_steps, critic_loss)

        log_pi = log_policy(self.actor(steps.state), steps.state.valid)
        pi = log_pi.exp()
        value = torch.minimum(*values).detach()
        entropy = -_expected(pi, log_pi)
        actor_loss = (-alpha * entropy - _expected(pi, value)).mean()
        _step(self._actor_steps, actor_loss)

        first, last = self._settings.entropy_ratio
        wanted = (first + progress * (last - first)) * steps.state.valid.sum(dim=1).float().log()
        excess = (entropy.detach() - wanted).mean()
        _step(self._temperature_steps, self._log_temperature.exp() * excess)
        self._follow()
        return Losses(critic_loss.item(), actor_loss.item(), self.temperature, entropy.mean().item())

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        return {
            "networks": [n.state_dict() for n in (self.actor, *self._critics, *self._targets)],
            "log_temperature": self._log_temperature.detach(),
            "optimisers": [o.state_dict() for o in self._optimisers()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of an agent with the same settings."""
        networks = (self.actor, *self._critics, *self._targets)
        for network, kept in zip(networks, state["networks"], strict=True):
            network.load_state_dict(kept)
        with torch.no_grad():
            self._log_temperature.copy_(state["log_temperature"])
        for optimiser, kept in zip(self._optimisers(), state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)

    @torch.no_grad()
    def _goal(self, steps: Transitions, alpha: Tensor) -> Tensor:
        log_pi = log_policy(self.actor(steps.next_state), steps.next_state.valid)
        value = torch.minimum(*(t(steps.next_state) for t in self._targets))
        soft = _expected(log_pi.exp(), value - alpha * log_pi)
        return steps.reward + self._settings.discount * (1.0 - steps.last) * soft

    @torch.no_grad()
    def _follow(self) -> None:
        for target, critic in zip(self._targets, self._critics, strict=True):
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(fast, self._settings.soft_update)

    def _optimisers(self) -> tuple[torch.optim.Optimizer, ...]:
        return self._actor_steps, self._critic_steps, self._temperature_steps


def _network(settings: SacSettings) -> ScoreNetwork:
    return ScoreNetwork(settings.width)


def _expected(pi: Tensor, value: Tensor) -> Tensor:
    """Return the mean over actions; a masked one's probability is 0, its value finite."""
    return (pi * value).sum(dim=1)


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
