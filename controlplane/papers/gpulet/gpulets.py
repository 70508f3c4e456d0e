"""Gpulets: the pieces into which GPUs are cut, the models that take turns in each, and neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.papers.gpulet.sizing import Demand, Runs, TimeOf, Times


@dataclass(slots=True)
class Resident:
    """A model in a gpulet: the rate that was left when it came, its batch, and the rate that it serves."""

    demand: Demand
    rate: float
    batch: int
    throughput: float


@dataclass(slots=True, eq=False)
class Gpulet:
    """A piece of a GPU; empty without residents. One batch of each resident runs in a duty cycle.

    `occupancy` is the busy part of the cycle; 1 is a saturated gpulet, which has one resident.
    """

    percent: int
    residents: list[Resident] = field(default_factory=list)
    duty_ms: float = 0.0
    occupancy: float = 0.0

    @property
    def saturated(self) -> bool:
        """Whether its model runs batch after batch."""
        return self.occupancy == 1.0

    def serve(self, demand: Demand, rate: int, batch: int, taken: float, duty_ms: float) -> float:
        """Run batches of one demand that take `taken` ms, one a cycle; return the rate that it serves."""
        throughput = MILLIS_PER_SECOND * batch / duty_ms
        self.residents = [Resident(demand, rate, batch, throughput)]
        self.duty_ms, self.occupancy = duty_ms, taken / duty_ms
        return throughput

    def clear(self) -> None:
        """Take all residents out."""
        self.residents, self.duty_ms, self.occupancy = [], 0.0, 0.0

    def takes(self, demand: Demand) -> Resident | None:
        """The resident that serves this demand, None where there is none."""
        return next((r for r in self.residents if r.demand.key == demand.key), None)


@dataclass(slots=True)
class Gpu:
    """One GPU: its pieces, and the memory that processes and models may take."""

    memory_mb: float
    process_mb: float
    pieces: list[Gpulet] = field(default_factory=lambda: [Gpulet(100)])

    def used_mb(self) -> float:
        """Memory of all processes and their models."""
        return sum(
            self.process_mb + sum(r.demand.memory_mb for r in piece.residents)
            for piece in self.pieces
            if piece.residents
        )

    def suffices(self) -> bool:
        """Whether its memory holds what it has."""
        return self.used_mb() < self.memory_mb

    def fits(self, piece: Gpulet, demand: Demand) -> bool:
        """Whether there is memory for this model in this piece."""
        if piece.takes(demand):
            return True
        process_mb = 0.0 if piece.residents else self.process_mb
        return self.used_mb() + process_mb + demand.memory_mb < self.memory_mb

    def cut(self, piece: Gpulet, percent: int) -> Gpulet:
        """Cut an empty whole GPU in two; return the rest."""
        rest = Gpulet(piece.percent - percent)
        piece.percent = percent
        self.pieces.append(rest)
        return rest

    def join_empty(self, cuts: bool) -> None:
        """Make a GPU whole again that was cut and is empty."""
        if cuts and not any(piece.residents for piece in self.pieces):
            self.pieces[:] = [Gpulet(100)]

    def saved(self) -> list[tuple[Gpulet, Gpulet]]:
        """Every piece, and what it is now; for `restore`."""
        return [(piece, replace(piece)) for piece in self.pieces]

    def restore(self, saved: Sequence[tuple[Gpulet, Gpulet]]) -> None:
        """Take back what happened to the pieces since `saved`; residents are exchanged, never changed."""
        self.pieces[:] = [piece for piece, _ in saved]
        for piece, was in saved:
            piece.percent, piece.residents = was.percent, was.residents
            piece.duty_ms, piece.occupancy = was.duty_ms, was.occupancy

    def others(self, piece: Gpulet) -> Iterator[Runs]:
        """What runs in the other pieces."""
        for other in self.pieces:
            if other is not piece:
                for resident in other.residents:
                    yield resident.demand.model, other.percent, resident.batch


@dataclass(slots=True)
class Cluster:
    """The GPUs of a plan in the making; `interference`: whether neighbours count."""

    gpus: list[Gpu]
    times: Times
    interference: bool

    def pieces(self) -> Iterator[tuple[Gpu, Gpulet]]:
        """Every piece with its GPU, in order."""
        for gpu in self.gpus:
            for piece in list(gpu.pieces):
                yield gpu, piece

    def gpu_of(self, piece: Gpulet) -> Gpu:
        """The GPU of a piece."""
        return next(gpu for gpu in self.gpus if any(own is piece for own in gpu.pieces))

    def time_ms(self, demand: Demand, piece: Gpulet, batch: int) -> float:
        """Time of a batch in a piece, beside what runs on the same GPU where that counts."""
        if not self.interference:
            return self.times.alone(demand.model, piece.percent, batch)
        own = demand.model, piece.percent, batch
        return self.times.beside(own, self.gpu_of(piece).others(piece))

    def time_of(self, demand: Demand, piece: Gpulet) -> TimeOf:
        """The same of any batch."""
        return lambda batch: self.time_ms(demand, piece, batch)

    def served(self, demand: Demand) -> float:
        """The rate that all gpulets of a demand serve."""
        return sum(r.throughput for _, piece in self.pieces() if (r := piece.takes(demand)))
