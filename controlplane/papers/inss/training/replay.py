"""The replay buffer: a ring of steps. A step's next state is the next row of its episode."""

from __future__ import annotations

from collections.abc import Mapping

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
            "actions": np.zeros((capacity, actions, FEATURES), dtype=np.float32),
            "valid": np.zeros((capacity, actions), dtype=np.bool_),
            "action": np.zeros(capacity, dtype=np.int64),
            "reward": np.zeros(capacity, dtype=np.float32),
            "last": np.zeros(capacity, dtype=np.float32),
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
            self._rows["actions"][rows, :width] = state.actions
            self._rows["valid"][rows] = False
            self._rows["valid"][rows, :width] = state.valid
            self._rows["action"][rows] = action
            self._rows["reward"][rows] = reward
            self._rows["last"][rows] = float(t == len(seen) - 1)
            self._at = int((self._at + self._lanes) % self.capacity)
            self.size = min(self.size + self._lanes, self.capacity)

    def sample(self, rng: np.random.Generator, count: int) -> Transitions:
        """Draw `count` steps uniformly, with replacement."""
        rows = rng.integers(self.size, size=count)
        after = np.where(self._rows["last"][rows] > 0, rows, (rows + self._lanes) % self.capacity)
        return Transitions(
            self._state(rows),
            torch.from_numpy(self._rows["action"][rows]),
            torch.from_numpy(self._rows["reward"][rows]),
            self._state(after),
            torch.from_numpy(self._rows["last"][rows]),
        )

    def state_dict(self) -> dict[str, object]:
        """Return the whole state, for a checkpoint."""
        return {
            "at": self._at,
            "size": self.size,
            "rows": {name: torch.from_numpy(rows[: self.size].copy()) for name, rows in self._rows.items()},
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore a `state_dict` of a buffer of the same shape."""
        at, size, rows = state["at"], state["size"], state["rows"]
        assert isinstance(at, int)
        assert isinstance(size, int)
        assert isinstance(rows, dict)
        self._at, self.size = at, size
        for name, kept in rows.items():
            assert isinstance(kept, Tensor)
            self._rows[name][:size] = kept.numpy()

    def _state(self, rows: IntArray) -> TensorObservation:
        drawn = (self._rows[name][rows] for name in TensorObservation._fields)
        return TensorObservation(*(torch.from_numpy(a).clone() for a in drawn))
