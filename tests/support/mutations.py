"""Mutated requests.

A corpus grows by the inputs that brought an outcome not seen before, and further ones are made from it.
"""

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

_TOKENS = [
    b"\r\n",
    b"\x00",
    b" ",
    b":",
    b"\r\n\r\n",
    b"%00",
    b"%2f",
    b"/../",
    b"\xff" * 50,
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Inference-Header-Content-Length: 10\r\n",
    b"first",
    b"second",
]


@dataclass
class Corpus:
    """Inputs, and the outcomes that they brought."""

    chance: random.Random
    inputs: list[bytes]
    seen: set[Hashable] = field(default_factory=set)

    def choose(self) -> bytes:
        """Return one to mutate."""
        return self.chance.choice(self.inputs)

    def learn(self, used: bytes, outcome: Hashable) -> None:
        """Keep an input whose outcome is new, if it is small."""
        if outcome not in self.seen and len(used) < 4096:
            self.seen.add(outcome)
            self.inputs.append(used)


def text(chance: random.Random, request: bytes, others: Sequence[bytes] = ()) -> bytes:
    """A request with bytes changed, removed, inserted or repeated, or joined with another one."""
    made = bytearray(request)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(6 if others else 5):
            case 0 if at < len(made):
                made[at] = chance.randrange(256)
            case 1:
                del made[at : at + chance.choice([1, 1, 4, 30])]
            case 2:
                made[at:at] = made[at : at + chance.choice([1, 8, 40])]
            case 3 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case 5:
                other = chance.choice(others)
                made[at:] = other[chance.randrange(len(other) + 1) :]
            case _:
                made[at:at] = chance.choice(_TOKENS)
    return bytes(made)
