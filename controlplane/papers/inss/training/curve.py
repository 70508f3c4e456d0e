"""The learning curve, point by point. Without torch, so that any program can write or draw it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """A point of the learning curve: the likeliest plans on held-out problems.

    reward: of the last round's episodes, with drawn actions or the search's. goodput_percent of the offered
    requests; violations_percent: the part of them for models that were placed and break their SLO; value as
    `problem.value`. Of the last round's updates: the critics' and the actor's loss, the temperature, and the
    policy's entropy in nats.
    """

    round: int
    episodes: int
    reward: float
    goodput_percent: float
    violations_percent: float
    value: float
    critic_loss: float
    actor_loss: float
    temperature: float
    entropy: float
