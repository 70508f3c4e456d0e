"""Gpulets: the pieces into which GPUs are cut, the models that take turns in each, and neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.papers.gpulet.sizing import Demand, Reading, Runs, TimeOf, Times, WantedGpulet


@dataclass(slots=True)
class Resident:
    """A model in a gpulet: the rate that was left when it came, its batch, and the rate that it serves."""

    demand: Demand
    rate: int
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


@dataclass(slots=True)
class Task:
    """A demand while it is being placed: its rate that is left, and what neighbours took of it as `extra`."""

    demand: Demand
    rate: int
    extra: int = 0

    @property
    def left(self) -> int:
        """The rate without a place."""
        return self.rate + self.extra


def refit_saturated(piece: Gpulet, cluster: Cluster) -> int | None:
    """Reduce the batch until two in a row keep the SLO; return the throughput lost, None where none does."""
    (resident,) = piece.residents
    before, batch = resident.throughput, resident.batch
    taken = cluster.time_ms(resident.demand, piece, batch)
    while 2.0 * taken > resident.demand.slo_ms:
        batch -= 1
        if batch == 0:
            return None
        taken = cluster.time_ms(resident.demand, piece, batch)
    resident.batch, piece.duty_ms = batch, taken
    resident.throughput = MILLIS_PER_SECOND * batch / taken
    return max(int(before - resident.throughput), 0)


def refit_residue(piece: Gpulet, cluster: Cluster, reading: Reading) -> bool:
    """Reduce batches and the duty cycle until every resident keeps its SLO; False where none do."""
    times = [cluster.time_ms(r.demand, piece, r.batch) for r in piece.residents]
    whole = sum(times)
    if all(whole + piece.duty_ms <= r.demand.slo_ms * reading.slack for r in piece.residents):
        return True
    shortest, batches = piece.duty_ms, []
    for resident, own in zip(piece.residents, times, strict=True):
        batch, duty, taken = resident.batch, piece.duty_ms, own
        while resident.demand.slo_ms < whole - own + taken + duty:
            batch -= 1
            if batch == 0:
                return False
            taken = cluster.time_ms(resident.demand, piece, batch)
            duty *= batch / resident.batch
        shortest = min(shortest, duty)
        batches.append(batch)
    for resident, batch in zip(piece.residents, batches, strict=True):
        resident.batch = batch
        resident.throughput = MILLIS_PER_SECOND * batch / shortest
    busy = sum(cluster.time_ms(r.demand, piece, r.batch) for r in piece.residents)
    piece.duty_ms, piece.occupancy = shortest, busy / shortest
    return True


def suffers(demand: Demand, want: WantedGpulet, piece: Gpulet, cluster: Cluster, reading: Reading) -> bool:
    """Whether a neighbour of `piece` would miss its SLO with this newcomer beside it.

    The authors' code asks for the neighbour's time on a GPU without the newcomer, so what it holds against
    the SLO is two duty cycles and the time to assemble a batch.
    """
    if piece.percent == 100:
        return False
    gpu = cluster.gpu_of(piece)
    newcomer = demand.model, piece.percent, want.batch
    for other in gpu.pieces:
        if other is piece:
            continue
        for r in other.residents:
            if reading.neighbour_cycles:
                host = cluster.times.host[r.demand.model][r.batch - 1]
                if host + 2.0 * other.duty_ms > r.demand.slo_ms:
                    return True
            elif cluster.interference:
                own = r.demand.model, other.percent, r.batch
                taken = cluster.times.beside(own, [newcomer])
                cycle = taken if other.saturated else other.duty_ms
                if taken + cycle > r.demand.slo_ms:
                    return True
    return False
