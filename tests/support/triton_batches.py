"""How Triton 2.51 puts requests of several inferences together: real servers and the simulator must agree."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A batcher with delay 0, requests of `client_batch` inferences, and how many run together in turn.

    The first request runs alone; all others arrive, one after another, before it ends.
    """

    preferred: int
    client_batch: int
    max_batch_size: int
    together: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"b{self.preferred}.k{self.client_batch}.m{self.max_batch_size}"


SEEN = (
    Case(8, 4, 32, (1, 2, 2, 2, 2, 1)),
    Case(4, 8, 32, (1,) * 10),
    Case(5, 2, 32, (1, 3, 2, 2, 2)),
    Case(4, 3, 32, (1, 2, 2, 1, 1, 1, 1, 1)),
    Case(6, 4, 8, (1, 2, 2, 1, 1, 1, 1, 1)),
    Case(8, 3, 32, (1, 3, 2, 2, 2)),
    Case(8, 3, 8, (1, 2, 2, 2, 2, 1)),
    Case(16, 3, 32, (1, 6, 3)),
)
