"""The blocks of the tutorial."""

import re
from dataclasses import dataclass
from pathlib import Path

INSTALL = "pip install --find-links dist trisect"
_PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(console|yaml|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block and its kind: console, yaml or python."""

    kind: str
    text: str

    @property
    def command(self) -> str:
        """The command line of a console."""
        return self.text.removeprefix("$ ").partition("\n")[0]


def blocks() -> list[Block]:
    """Return the blocks in their order."""
    return [Block(*found) for found in _BLOCK.findall(_PAGE.read_text())]
