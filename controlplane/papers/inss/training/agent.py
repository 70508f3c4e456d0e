"""Discrete soft actor-critic (Christodoulou 2019) with masked actions, its networks and its replay buffer.

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

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.papers.inss.policy import FEATURES, Observation, Weights

IMPOSSIBLE = -1e9
"""The logit of a masked action: its probability is exactly 0 in single precision."""


class TensorObservation(NamedTuple):
    """`inss.policy.Observation` as tensors, the same fields and shapes."""

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


class Agent(nn.Module):
    """Actor, twin critics with their slow copies, and temperature."""

    def __init__(self, settings: SacSettings) -> None:
        super().__init__()
        self._settings = settings
        self.actor, *critics = (ScoreNetwork(settings.width) for _ in range(3))
        self._critics = nn.ModuleList(critics)
        self._targets = nn.ModuleList(ScoreNetwork(settings.width) for _ in critics)
        self._targets.load_state_dict(self._critics.state_dict())
        self._targets.requires_grad_(False)
        self._log_temperature = nn.Parameter(torch.tensor(float(settings.temperature)).log())
        # Each loss has gradients for its own part alone, so one optimiser makes the steps of all.
        trained = *self.actor.parameters(), *self._critics.parameters(), self._log_temperature
        self._optimiser = torch.optim.Adam(trained, lr=settings.learning_rate)

    @torch.no_grad()
    def act(self, seen: TensorObservation, generator: torch.Generator) -> Tensor:
        """Draw an action for each row from the policy; never a masked one."""
        policy = log_policy(self.actor(seen), seen.valid).exp()
        return torch.multinomial(policy, 1, generator=generator).squeeze(1)

    def update(self, steps: Transitions, progress: float) -> Losses:
        """Make one step; `progress` in [0, 1] sets the target of the entropy."""
        settings, state = self._settings, steps.state
        alpha = self._log_temperature.exp().detach()
        with torch.no_grad():
            log_next = log_policy(self.actor(steps.next_state), steps.next_state.valid)
            next_value = torch.minimum(*(target(steps.next_state) for target in self._targets))
            soft = _expected(log_next.exp(), next_value - alpha * log_next)
            goal = steps.reward + settings.discount * (1.0 - steps.last) * soft
        values = [critic(state) for critic in self._critics]
        chosen = (v.gather(1, steps.action.unsqueeze(1)).squeeze(1) for v in values)
        critic_loss = torch.stack([0.5 * mse_loss(v, goal) for v in chosen]).sum()

        log_pi = log_policy(self.actor(state), state.valid)
        pi = log_pi.exp()
        entropy = -_expected(pi, log_pi)
        actor_loss = (-alpha * entropy - _expected(pi, torch.minimum(*values).detach())).mean()

        first, last = settings.entropy_ratio
        wanted = (first + progress * (last - first)) * state.valid.sum(dim=1).float().log()
        temperature_loss = self._log_temperature.exp() * (entropy.detach() - wanted).mean()

        self._optimiser.zero_grad(set_to_none=True)
        (critic_loss + actor_loss + temperature_loss).backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        with torch.no_grad():
            for slow, fast in zip(self._targets.parameters(), self._critics.parameters(), strict=True):
                slow.lerp_(fast, settings.soft_update)
        temperature = self._log_temperature.exp().item()
        return Losses(critic_loss.item(), actor_loss.item(), temperature, entropy.mean().item())

    def state(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        return {"networks": self.state_dict(), "optimiser": self._optimiser.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of an agent with the same settings."""
        self.load_state_dict(state["networks"])
        self._optimiser.load_state_dict(state["optimiser"])


def _expected(pi: Tensor, value: Tensor) -> Tensor:
    """Return the mean over actions; a masked one's probability is 0, its value finite."""
    return (pi * value).sum(dim=1)


class Replay:
    """Holds `capacity` steps of `lanes` episodes in lockstep, padded to so many actions.

    An episode is pushed whole, so each step's successor is `lanes` rows on. The ring overwrites the oldest
    first, so a partly overwritten episode keeps its end, with all successors.
    """

    def __init__(self, capacity: int, lanes: int, actions: int) -> None:
        self._lanes = lanes
        self._rows = {
            "actions": torch.zeros((capacity, actions, FEATURES)),
            "valid": torch.zeros((capacity, actions), dtype=torch.bool),
            "action": torch.zeros(capacity, dtype=torch.int64),
            "reward": torch.zeros(capacity),
            "last": torch.zeros(capacity),
        }
        self._at = 0
        self.size = 0

    def push(self, seen: list[Observation], actions: list[IntArray], rewards: list[FloatArray]) -> None:
        """Add an episode of every lane: step t's observation, action and reward, of shape (lanes, ...)."""
        rows, capacity = self._rows, len(self._rows["action"])
        if len(seen) * self._lanes > capacity:
            raise ValueError(f"{capacity} rows cannot hold {len(seen)} steps of {self._lanes} episodes")
        for t, (state, action, reward) in enumerate(zip(seen, actions, rewards, strict=True)):
            at, width = (self._at + np.arange(self._lanes)) % capacity, state.valid.shape[1]
            rows["actions"][at, :width] = torch.from_numpy(state.actions)
            rows["valid"][at] = False
            rows["valid"][at, :width] = torch.from_numpy(state.valid)
            rows["action"][at] = torch.from_numpy(action)
            rows["reward"][at] = torch.from_numpy(reward).float()
            rows["last"][at] = float(t == len(seen) - 1)
            self._at = (self._at + self._lanes) % capacity
            self.size = min(self.size + self._lanes, capacity)

    def sample(self, rng: np.random.Generator, count: int) -> Transitions:
        """Draw `count` steps uniformly, with replacement."""
        rows = self._rows
        at = torch.from_numpy(rng.integers(self.size, size=count))
        last = rows["last"][at]
        after = torch.where(last > 0, at, (at + self._lanes) % len(rows["last"]))
        state, next_state = (TensorObservation(rows["actions"][n], rows["valid"][n]) for n in (at, after))
        return Transitions(state, rows["action"][at], rows["reward"][at], next_state, last)

    def state(self) -> dict[str, object]:
        """Return the whole state, for a checkpoint."""
        rows = {name: rows[: self.size].clone() for name, rows in self._rows.items()}
        return {"at": self._at, "size": self.size, "rows": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of a buffer of the same shape."""
        self._at, self.size = state["at"], state["size"]
        for name, kept in state["rows"].items():
            self._rows[name][: self.size] = kept
