"""The replay buffer: a ring of steps. A step's next state is the next row of its episode."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.papers.inss.features import (
    ACTION_FEATURES,
    GPU_FEATURES,
    MODEL_FEATURES,
    Observation,
)
from controlplane.papers.inss.training.agent import TensorObservation, Transitions


class Replay:
    """Holds `capacity` steps of `lanes` episodes in lockstep, padded to `gpus` GPUs of `units` units.

    An episode is pushed whole, so each step's successor is `lanes` rows on. The ring overwrites the oldest
    first, so a partly overwritten episode keeps its end, with all successors.
    """

    def __init__(self, capacity: int, lanes: int, gpus: int, units: int) -> None:
        self._lanes = lanes
        self._shape = (gpus, units)
        self._rows = {
            "model": np.zeros((capacity, MODEL_FEATURES), dtype=np.float32),
            "gpus": np.zeros((capacity, gpus, GPU_FEATURES), dtype=np.float32),
            "actions": np.zeros((capacity, gpus, units, ACTION_FEATURES), dtype=np.float32),
            "valid": np.zeros((capacity, gpus * units + 1), dtype=np.bool_),
            "present": np.zeros((capacity, gpus), dtype=np.float32),
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
        gpus, units = self._shape
        for t, (state, action, reward) in enumerate(zip(seen, actions, rewards, strict=True)):
            rows = (self._at + np.arange(self._lanes)) % self.capacity
            k, u = state.actions.shape[1:3]
            self._rows["model"][rows] = state.model
            for name, value in (("gpus", state.gpus), ("actions", state.actions), ("present", state.present)):
                padded = np.zeros((self._lanes, *self._rows[name].shape[1:]), dtype=np.float32)
                padded[tuple(slice(0, s) for s in value.shape)] = value
                self._rows[name][rows] = padded
            self._rows["valid"][rows] = pad_valid(state.valid, (k, u), (gpus, units))
            self._rows["action"][rows] = pad_action(action, (k, u), (gpus, units))
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


def pad_valid(valid: BoolArray, shape: tuple[int, int], wide: tuple[int, int]) -> BoolArray:
    """Return a mask over `shape` = (GPUs, units) and reject as one over `wide`, masking the added actions."""
    padded = np.zeros((len(valid), *wide), dtype=np.bool_)
    padded[:, : shape[0], : shape[1]] = valid[:, :-1].reshape(len(valid), *shape)
    return np.concatenate([padded.reshape(len(valid), -1), valid[:, -1:]], axis=1)


def pad_action(action: IntArray, shape: tuple[int, int], wide: tuple[int, int]) -> IntArray:
    """Return an index into `shape` and reject as one into `wide` and reject."""
    gpu, unit = np.divmod(action, shape[1])
    return np.where(action == shape[0] * shape[1], wide[0] * wide[1], gpu * wide[1] + unit)
