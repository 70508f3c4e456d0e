"""The replay buffer: a ring of steps. A step's next state is the next row of its episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.papers.inss.features import FEATURES, Observation
from controlplane.papers.inss.training.agent import TensorObservation, Transitions


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

    @property
    def capacity(self) -> int:
        """The largest number of steps."""
        return len(self._rows["action"])

    def push(self, seen: list[Observation], actions: list[IntArray], rewards: list[FloatArray]) -> None:
        """Add an episode of every lane: step t's observation, action and reward, of shape (lanes, ...)."""
        if len(seen) * self._lanes > self.capacity:
            raise ValueError(f"{self.capacity} rows cannot hold {len(seen)} steps of {self._lanes} episodes")
        for t, (state, action, reward) in enumerate(zip(seen, actions, rewards, strict=True)):
            rows = (self._at + np.arange(self._lanes)) % self.capacity
            width = state.valid.shape[1]
            self._rows["actions"][rows, :width] = torch.from_numpy(state.actions)
            self._rows["valid"][rows] = False
            self._rows["valid"][rows, :width] = torch.from_numpy(state.valid)
            self._rows["action"][rows] = torch.from_numpy(action)
            self._rows["reward"][rows] = torch.from_numpy(reward).float()
            self._rows["last"][rows] = float(t == len(seen) - 1)
            self._at = int((self._at + self._lanes) % self.capacity)
            self.size = min(self.size + self._lanes, self.capacity)

    def sample(self, rng: np.random.Generator, count: int) -> Transitions:
        """Draw `count` steps uniformly, with replacement."""
        rows = torch.from_numpy(rng.integers(self.size, size=count))
        last = self._rows["last"][rows]
        after = torch.where(last > 0, rows, (rows + self._lanes) % self.capacity)
        action, reward = self._rows["action"][rows], self._rows["reward"][rows]
        return Transitions(self._state(rows), action, reward, self._state(after), last)

    def state_dict(self) -> dict[str, object]:
        """Return the whole state, for a checkpoint."""
        rows = {name: rows[: self.size].clone() for name, rows in self._rows.items()}
        return {"at": self._at, "size": self.size, "rows": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of a buffer of the same shape."""
        self._at, self.size = state["at"], state["size"]
        for name, kept in state["rows"].items():
            self._rows[name][: self.size] = kept

    def _state(self, rows: Tensor) -> TensorObservation:
        return TensorObservation(self._rows["actions"][rows], self._rows["valid"][rows])
