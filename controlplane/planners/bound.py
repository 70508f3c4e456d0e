"""What no plan of `joint` can cost less than.

A partition that shares its GPU has at least one neighbour: it needs the share that holds it beside the least
harmful one there can be, a partition of the model that slows it least, at the least share and batch of any of
that model. A partition alone on its GPU takes it all. Each way to serve a workload thus has a least size, and
GPUs are counted as bins: a partition above half a GPU cannot share with another such one, and what is left
over beside large ones bounds the rest (Martello and Toth's L2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planners.board import ask, service_curves
from controlplane.planners.contents import MOST_WORKLOADS, Judge, Options, Way
from controlplane.planners.growth import SLACK
from controlplane.planners.menu import Menu
from controlplane.planners.protocol import Device

LOOKED_AT = 12
"""Shares from the least one alone; a way that holds beside nobody at any of them needs at least the last."""
ROUNDING = 1e-6
"""Percent: sums of shares are floats."""
MOST_ASKED = 400
"""Workloads up to which the exact queue is asked too: it takes some 0.6 ms for each."""


def prices(devices: Mapping[str, Device]) -> dict[str, float]:
    """What a GPU of each type costs; 1 each where all are free, so that GPUs count."""
    told = {name: d.pool.price_per_hour for name, d in devices.items()}
    return told if any(told.values()) else dict.fromkeys(told, 1.0)


def lower_bound(options: Options, devices: Mapping[str, Device]) -> float:
    """By `prices`, of all plans for the workloads of `options`."""
    price = prices(devices)
    size = {name: _least(options, name) for name in devices}
    ways: list[list[tuple[float, Way]]] = [[] for _ in range(options.workloads)]
    for i, way in enumerate(options.ways):
        cost = min(size[name][i] * price[name] for name in devices)
        if math.isfinite(cost):
            ways[way.owner].append((float(cost) / 100.0, way))
    total = sum(min(cost * way.item.servers for cost, way in w) for w in ways)
    if len(devices) > 1:
        return total
    # Ways to serve differ in how they fill bins: large parts only bound where there is no other way.
    only = next(iter(price.values()))
    sizes = [100.0 * w[0][0] / only for w in ways if len(w) == 1 for _ in range(w[0][1].item.servers)]
    area = 100.0 * total / only
    return only * max(_bins(sizes, area - sum(sizes)), math.ceil(area / 100.0 - ROUNDING))


def _least(options: Options, device: str) -> FloatArray:
    """The least percent of each way, all of the GPU where it stands alone; infinite where it does not fit."""
    return np.where(np.isfinite(options.alone(device)), np.minimum(beside(options, device), 100.0), np.inf)


def beside(options: Options, device: str) -> FloatArray:
    """The least percent of each way beside at least one neighbour; infinite where it must stand alone."""
    menu, alone = options.hopeful[device], options.alone(device)
    size = np.full(alone.size, np.inf)
    ways = np.flatnonzero(np.isfinite(alone))
    if not ways.size:
        return size
    last = menu.percents.size - 1
    share = np.minimum(menu.least[ways][:, None] + np.arange(LOOKED_AT), last)
    model = np.repeat(menu.model[ways][:, None], LOOKED_AT, axis=1)
    batch = menu.batch[ways[:, None], share]
    # Many ways ask the same: each (model, batch, share) is asked about once.
    keys, place = np.unique(np.stack([model, batch, share]).reshape(3, -1), axis=1, return_inverse=True)
    neighbours = _least_harmful(options, device, alone)
    holds = np.zeros(share.shape, dtype=np.bool_)
    for neighbour in neighbours:
        slow, slow_cycle = _slowdown(menu, keys, neighbour, options.quantile)
        at = place.reshape(share.shape)
        held = menu.execution_tolerance[ways[:, None], share] >= slow[at]
        held &= menu.cycle_tolerance[ways[:, None], share] >= slow_cycle[at]
        held[_own(options, ways, neighbour.model, menu)] = False
        holds |= held
    column = np.where(holds.any(axis=1), holds.argmax(axis=1), LOOKED_AT)
    if options.quantile is not None and MOST_WORKLOADS < options.workloads <= MOST_ASKED:
        _ask_queue(options, device, neighbours, ways, share, column)
    found = share[np.arange(ways.size), np.minimum(column, LOOKED_AT - 1)]
    beyond = (column == LOOKED_AT) & (found == last)
    size[ways] = np.where(beyond, np.inf, menu.percents[found])
    return size


def _ask_queue(
    options: Options, device: str, neighbours: Sequence[_Neighbour], ways: IntArray, share: IntArray,
    column: IntArray,
) -> None:  # fmt: skip
    """Raise `column`, the place of each way's share in its row of `share`, until the exact queue accepts it.

    Each t(k) is the least beside any of the neighbours. Pools keep what the table says: their queue is slow.
    """
    assert options.quantile is not None
    menu, items = options.menus[device], [way.item for way in options.ways]
    judge = Judge(menu, items, options.quantile)
    single = np.array([items[i].servers == 1 for i in ways.tolist()])
    live = np.flatnonzero(single & (column < LOOKED_AT))
    while live.size:
        at = share[live, column[live]]
        batch = menu.batch[ways[live], at]
        keys, place = np.unique(np.stack([menu.model[ways[live]], batch, at]), axis=1, return_inverse=True)
        curves = np.min([_curves(menu, keys, n, options.quantile) for n in neighbours], axis=0)
        held = judge.holds(ways[live], curves[place.reshape(-1)], batch)
        column[live[~held]] += 1
        live = live[~held]
        live = live[column[live] < LOOKED_AT]


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """A model on the latency model's list, and the least share and batch it is seen with."""

    model: int
    batch: int
    percent: float


def _least_harmful(options: Options, device: str, alone: FloatArray) -> list[_Neighbour]:
    """One of each model that is served on this GPU type."""
    menu = options.hopeful[device]
    found = []
    for model in np.unique(menu.model[np.isfinite(alone)]).tolist():
        ways = np.flatnonzero(np.isfinite(alone) & (menu.model == model))
        used = np.arange(menu.percents.size) >= menu.least[ways][:, None]
        least = int(np.where(used, menu.batch[ways], np.iinfo(np.int64).max).min())
        found.append(_Neighbour(model, least, float(alone[ways].min())))
    return found


def _own(options: Options, ways: IntArray, model: int, menu: Menu) -> BoolArray:
    """Which of these ways are all there is of a model: none of it can stand beside them."""
    same = [i for i in range(len(options.ways)) if menu.model[i] == model]
    many = len({options.ways[i].owner for i in same}) > 1 or any(
        options.ways[i].item.servers > 1 for i in same
    )
    return np.asarray((menu.model[ways] == model) & (not many), dtype=np.bool_)


def _beside(menu: Menu, keys: IntArray, neighbour: _Neighbour) -> Slots:
    """Each (model, batch, share) of `keys` (3, n) in the first slot, the neighbour in the second."""
    model, batch, share = keys
    count = model.size
    return Slots.of(
        np.stack([model, np.full(count, neighbour.model)], axis=1),
        np.stack([batch, np.full(count, neighbour.batch)], axis=1),
        np.stack([menu.percents[share], np.full(count, neighbour.percent)], axis=1),
    )


def _slowdown(
    menu: Menu, keys: IntArray, neighbour: _Neighbour, quantile: float | None
) -> tuple[FloatArray, FloatArray]:
    """By how much it slows execution and cycle of each (model, batch, share): shapes (n,) for keys (3, n)."""
    execution, cycle = ask(menu.device.latency, _beside(menu, keys, neighbour), quantile)
    at = (keys[0], keys[1] - 1, keys[2])
    slow = execution[:, 0] / menu.alone.execution[at], cycle[:, 0] / menu.alone.cycle[at]
    return slow[0] * (1.0 - SLACK), slow[1] * (1.0 - SLACK)


def _curves(menu: Menu, keys: IntArray, neighbour: _Neighbour, quantile: float) -> FloatArray:
    """t(k) of each (model, batch, share) beside it: shape (n, largest batch)."""
    rows = np.arange(keys.shape[1])
    slots = _beside(menu, keys, neighbour)
    return service_curves(menu.device.latency, slots, rows, np.zeros_like(rows), quantile)


def _bins(sizes: Sequence[float], loose: float) -> int:
    """L2 for bins of 100; `loose` can be cut into anything."""
    best = 0
    ordered = sorted(sizes, reverse=True)
    for least in {0.0, *(s for s in ordered if s <= 50.0 + ROUNDING)}:
        huge = [s for s in ordered if s > 100.0 - least + ROUNDING]
        large = [s for s in ordered if 50.0 + ROUNDING < s <= 100.0 - least + ROUNDING]
        small = sum(s for s in ordered if least <= s <= 50.0 + ROUNDING)
        over = small + (loose if least == 0.0 else 0.0) - sum(100.0 - s for s in large)
        if least == 0.0:
            over -= sum(100.0 - s for s in huge)
        best = max(best, len(huge) + len(large) + max(0, math.ceil(over / 100.0 - ROUNDING)))
    return best
