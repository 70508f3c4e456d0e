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
    """Actor, twin critics with their slow copies, temperature, and an optimiser for each."""

    def __init__(self, settings: SacSettings) -> None:
        super().__init__()
        self._settings = settings
        self.actor, *critics = (ScoreNetwork(settings.width) for _ in range(3))
        self._critics = nn.ModuleList(critics)
        self._targets = nn.ModuleList(ScoreNetwork(settings.width) for _ in critics)
        self._targets.load_state_dict(self._critics.state_dict())
        self._targets.requires_grad_(False)
        self._log_temperature = nn.Parameter(torch.tensor(float(settings.temperature)).log())
        trained = self.actor.parameters(), self._critics.parameters(), [self._log_temperature]
        self._optimisers = [torch.optim.Adam(own, lr=settings.learning_rate) for own in trained]

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
        actor_steps, critic_steps, temperature_steps = self._optimisers
        chosen = steps.action.unsqueeze(1)
        values = [c(steps.state) for c in self._critics]
        critic_loss = torch.stack(
            [0.5 * mse_loss(v.gather(1, chosen).squeeze(1), goal) for v in values]
        ).sum()
        _step(critic_steps, critic_loss)

        log_pi = log_policy(self.actor(steps.state), steps.state.valid)
        pi = log_pi.exp()
        value = torch.minimum(*values).detach()
        entropy = -_expected(pi, log_pi)
        actor_loss = (-alpha * entropy - _expected(pi, value)).mean()
        _step(actor_steps, actor_loss)

        first, last = self._settings.entropy_ratio
        wanted = (first + progress * (last - first)) * steps.state.valid.sum(dim=1).float().log()
        excess = (entropy.detach() - wanted).mean()
        _step(temperature_steps, self._log_temperature.exp() * excess)
        self._follow()
        return Losses(critic_loss.item(), actor_loss.item(), self.temperature, entropy.mean().item())

    def state(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        return {"networks": self.state_dict(), "optimisers": [o.state_dict() for o in self._optimisers]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of an agent with the same settings."""
        self.load_state_dict(state["networks"])
        for optimiser, kept in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)

    @torch.no_grad()
    def _goal(self, steps: Transitions, alpha: Tensor) -> Tensor:
        log_pi = log_policy(self.actor(steps.next_state), steps.next_state.valid)
        value = torch.minimum(*(t(steps.next_state) for t in self._targets))
        soft = _expected(log_pi.exp(), value - alpha * log_pi)
        return steps.reward + self._settings.discount * (1.0 - steps.last) * soft

    @torch.no_grad()
    def _follow(self) -> None:
        for slow, fast in zip(self._targets.parameters(), self._critics.parameters(), strict=True):
            slow.lerp_(fast, self._settings.soft_update)


def _expected(pi: Tensor, value: Tensor) -> Tensor:
    """Return the mean over actions; a masked one's probability is 0, its value finite."""
    return (pi * value).sum(dim=1)


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


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
        capacity = len(self._rows["action"])
        if len(seen) * self._lanes > capacity:
            raise ValueError(f"{capacity} rows cannot hold {len(seen)} steps of {self._lanes} episodes")
        for t, (state, action, reward) in enumerate(zip(seen, actions, rewards, strict=True)):
            rows = (self._at + np.arange(self._lanes)) % capacity
            width = state.valid.shape[1]
            self._rows["actions"][rows, :width] = torch.from_numpy(state.actions)
            self._rows["valid"][rows] = False
            self._rows["valid"][rows, :width] = torch.from_numpy(state.valid)
            self._rows["action"][rows] = torch.from_numpy(action)
            self._rows["reward"][rows] = torch.from_numpy(reward).float()
            self._rows["last"][rows] = float(t == len(seen) - 1)
            self._at = (self._at + self._lanes) % capacity
            self.size = min(self.size + self._lanes, capacity)

    def sample(self, rng: np.random.Generator, count: int) -> Transitions:
        """Draw `count` steps uniformly, with replacement."""
        rows = torch.from_numpy(rng.integers(self.size, size=count))
        last_of = self._rows["last"]
        last = last_of[rows]
        after = torch.where(last > 0, rows, (rows + self._lanes) % len(last_of))
        action, reward = self._rows["action"][rows], self._rows["reward"][rows]
        return Transitions(self._state(rows), action, reward, self._state(after), last)

    def state(self) -> dict[str, object]:
        """Return the whole state, for a checkpoint."""
        rows = {name: rows[: self.size].clone() for name, rows in self._rows.items()}
        return {"at": self._at, "size": self.size, "rows": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of a buffer of the same shape."""
        self._at, self.size = state["at"], state["size"]
        for name, kept in state["rows"].items():
            self._rows[name][: self.size] = kept

    def _state(self, rows: Tensor) -> TensorObservation:
        return TensorObservation(self._rows["actions"][rows], self._rows["valid"][rows])
